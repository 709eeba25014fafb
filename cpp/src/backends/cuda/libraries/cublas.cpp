// cuda/libraries/cublas.cpp: matrix products by cuBLAS, without epilogue and with cuBLAS's choice of
// algorithm.
//
// The options of a call are those of Gemm (vendor_library.h). Arguments: a, b, y.
#include <map>
#include <mutex>

#include "backends/cuda/libraries/vendor_library.h"

namespace xpurt::cuda {
namespace {

using cublasHandle_t = void*;
constexpr int success = 0, default_algorithm = -1;
constexpr int sums_stay_wide =
    16;  // CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION added to the default mode
constexpr size_t workspace_size = size_t{32}
                                  << 20;  // NVIDIA's recommendation for Hopper; other architectures need less

#define XPURT_CUBLAS_SYMBOLS(X)                                                                          \
    X(cublasGetVersion_v2, ResultCode(cublasHandle_t, int*))                                             \
    X(cublasCreate_v2, ResultCode(cublasHandle_t*))                                                      \
    X(cublasSetStream_v2, ResultCode(cublasHandle_t, CUstream))                                          \
    X(cublasSetWorkspace_v2, ResultCode(cublasHandle_t, void*, size_t))                                  \
    X(cublasSetMathMode, ResultCode(cublasHandle_t, int))                                                \
    X(cublasGemmStridedBatchedEx,                                                                        \
      ResultCode(cublasHandle_t, int, int, int, int, int, const void*, const void*, int, int, long long, \
                 const void*, int, int, long long, const void*, void*, int, int, long long, int, int, int))

struct CublasApi {
#define XPURT_MEMBER(name, type) std::add_pointer_t<type> name = nullptr;
    XPURT_CUBLAS_SYMBOLS(XPURT_MEMBER)
#undef XPURT_MEMBER

    explicit CublasApi(const Library& library) {
        size_t index = 0;
#define XPURT_FILL(name, type) name = reinterpret_cast<std::add_pointer_t<type>>(library.address(index++));
        XPURT_CUBLAS_SYMBOLS(XPURT_FILL)
#undef XPURT_FILL
    }
};

// A handle holds a stream and a workspace, so launches are serialized.
struct CublasHandle {
    std::mutex mutex;
    cublasHandle_t handle = nullptr;
};

class CublasKernel final : public StreamKernel {
  public:
    CublasKernel(const CublasApi& f, CublasHandle& handle_state) : f_(f), handle_(handle_state) {}

    Status prepare(const KernelCall& call) {
        kernel_ = call.kernel;
        g_ = Gemm::of(call);
        if (call.symbol != "gemm" || g_.bias || g_.residual || g_.act != "none")
            return {Code::invalid, call.kernel + ": cuBLAS supports only a matrix product without epilogue",
                    ""};
        if (cuda_type(g_.in) < 0 || cuda_type(g_.out) < 0)
            return {Code::invalid, call.kernel + ": no cuBLAS type for " + g_.in + " or " + g_.out, ""};
        return g_.check(call);
    }

    Status launch(void* const* args, void* workspace, CUstream stream) const override {
        const float alpha = static_cast<float>(g_.alpha), beta = 0;
        const double wide_alpha = g_.alpha, wide_beta = 0;
        const void *one = &alpha, *none = &beta;
        if (g_.wide()) one = &wide_alpha, none = &wide_beta;
        const int in = cuda_type(g_.in), out = cuda_type(g_.out);
        const std::lock_guard<std::mutex> lock(handle_.mutex);
        int result = f_.cublasSetStream_v2(handle_.handle, stream);
        if (result == success) result = f_.cublasSetWorkspace_v2(handle_.handle, workspace, workspace_size);
        if (result == success) result = f_.cublasSetMathMode(handle_.handle, sums_stay_wide);
        if (result == success)
            result = f_.cublasGemmStridedBatchedEx(
                handle_.handle, g_.b_transposed ? 1 : 0, g_.a_transposed ? 1 : 0, static_cast<int>(g_.n),
                static_cast<int>(g_.m), static_cast<int>(g_.k), one, args[1], in, static_cast<int>(g_.b_line),
                g_.b_step, args[0], in, static_cast<int>(g_.a_line), g_.a_step, none, args[2], out,
                static_cast<int>(g_.y_line), g_.y_step, static_cast<int>(g_.batch), g_.compute(),
                default_algorithm);
        if (result != success)
            return {Code::call_failed,
                    kernel_ + ": cublasGemmStridedBatchedEx returned " + std::to_string(result), ""};
        return {};
    }

    size_t workspace_bytes() const override { return workspace_size; }
    std::string implementation() const override { return "cublasGemmStridedBatchedEx, default algorithm"; }

  private:
    const CublasApi& f_;
    CublasHandle& handle_;
    Gemm g_{};
    std::string kernel_;
};

class CublasLibrary final : public StreamLibrary {
  public:
    std::string version() const override {
        const CublasApi* const f = api(nullptr);
        int v = 0;
        if (f == nullptr || f->cublasGetVersion_v2(nullptr, &v) != success) return "";
        return std::to_string(v / 10000) + "." + std::to_string(v / 100 % 100) + "." +
               std::to_string(v % 100);
    }

    Result<std::unique_ptr<StreamKernel>> prepare(const KernelCall& call, Device& device) override {
        Status reason;
        const CublasApi* const f = api(&reason);
        if (f == nullptr) return reason;
        CublasHandle* handle_state = nullptr;
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            std::unique_ptr<CublasHandle>& entry = handle_[device.index];
            if (!entry) entry = std::make_unique<CublasHandle>();
            if (entry->handle == nullptr)
                if (const int result = f->cublasCreate_v2(&entry->handle); result != success)
                    return Status{Code::call_failed, "cublasCreate returned " + std::to_string(result), ""};
            handle_state = entry.get();
        }
        auto kernel = std::make_unique<CublasKernel>(*f, *handle_state);
        XPURT_TRY(kernel->prepare(call));
        return std::unique_ptr<StreamKernel>(std::move(kernel));
    }

  private:
    static const CublasApi* api(Status* reason) { return load_api<CublasApi>(cublas_library(), reason); }

    std::mutex mutex_;
    std::map<int, std::unique_ptr<CublasHandle>> handle_;
};

}  // namespace

std::unique_ptr<StreamLibrary> make_cublas() { return std::make_unique<CublasLibrary>(); }

}  // namespace xpurt::cuda

namespace xpurt {

Library& cublas_library() {
    using namespace cuda;
    static Library& library = *new Library({
        "cublas",
        "NVIDIA cuBLAS",
        "XPU_LIBCUBLAS",
        {"libcublas.so.13", "libcublas.so.12", "libcublas.so"},
        {
#define XPURT_ROW(name, type) {#name, 11000, Need::required},
            XPURT_CUBLAS_SYMBOLS(XPURT_ROW)
#undef XPURT_ROW
        },
        "pip install nvidia-cublas brings it, and so do CUDA's toolkit and PyTorch's CUDA packages.",
    });
    return library;
}

}  // namespace xpurt
