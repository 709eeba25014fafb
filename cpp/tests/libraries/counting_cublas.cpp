// A cuBLAS and cuBLASLt that accept every call, compute nothing, and count the products.
#include <cstddef>
#include <cstdint>

namespace {
int products = 0;
int dummy = 0;
struct HeuristicResult {
    uint64_t algorithm[8];
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
};
int create(void** to) {
    *to = &dummy;
    return 0;
}
}  // namespace

extern "C" {
int counted_products() { return products; }

int cublasGetVersion_v2(void*, int* version) { return *version = 130000, 0; }
int cublasCreate_v2(void** handle) { return create(handle); }
int cublasSetStream_v2(void*, void*) { return 0; }
int cublasSetWorkspace_v2(void*, void*, size_t) { return 0; }
int cublasSetMathMode(void*, int) { return 0; }
int cublasGemmStridedBatchedEx(void*, int, int, int, int, int, const void*, const void*, int, int, long long,
                               const void*, int, int, long long, const void*, void*, int, int, long long, int,
                               int, int) {
    return ++products, 0;
}

size_t cublasLtGetVersion() { return 130000; }
int cublasLtCreate(void** handle) { return create(handle); }
int cublasLtMatmulDescCreate(void** to, int, int) { return ++products, create(to); }
int cublasLtMatmulDescDestroy(void*) { return 0; }
int cublasLtMatmulDescSetAttribute(void*, int, const void*, size_t) { return 0; }
int cublasLtMatrixLayoutCreate(void** to, int, uint64_t, uint64_t, int64_t) { return create(to); }
int cublasLtMatrixLayoutDestroy(void*) { return 0; }
int cublasLtMatrixLayoutSetAttribute(void*, int, const void*, size_t) { return 0; }
int cublasLtMatmulPreferenceCreate(void** to) { return create(to); }
int cublasLtMatmulPreferenceDestroy(void*) { return 0; }
int cublasLtMatmulPreferenceSetAttribute(void*, int, const void*, size_t) { return 0; }
int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int, HeuristicResult* to,
                                   int* count) {
    to[0] = {};
    return *count = 1, 0;
}
int cublasLtMatmulAlgoConfigGetAttribute(const void*, int, void* to, size_t, size_t* written) {
    *static_cast<int32_t*>(to) = 0;
    return *written = 4, 0;
}
int cublasLtMatmul(void*, void*, const void*, const void*, void*, const void*, void*, const void*,
                   const void*, void*, void*, void*, const void*, void*, size_t, void*) {
    return ++products, 0;
}
}
