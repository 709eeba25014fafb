// Kernels for the tests of the executor, with the ABI of generated code.
#include <cstdint>

extern "C" {

void add(void* const* args, const void*, int64_t begin, int64_t end, void*) {
    const auto *a = static_cast<const float*>(args[0]), *b = static_cast<const float*>(args[1]);
    auto* const y = static_cast<float*>(args[2]);
    for (int64_t i = begin; i < end; ++i) y[i] = a[i] + b[i];
}

// y = x * double + int64
void scale(void* const* args, const void* params, int64_t begin, int64_t end, void*) {
    const auto* const x = static_cast<const float*>(args[0]);
    auto* const y = static_cast<float*>(args[1]);
    const auto factor = static_cast<float>(static_cast<const double*>(params)[0]);
    const auto offset = static_cast<float>(static_cast<const int64_t*>(params)[1]);
    for (int64_t i = begin; i < end; ++i) y[i] = x[i] * factor + offset;
}

// Copies through the thread's scratch, which must be aligned and private.
void through_scratch(void* const* args, const void*, int64_t begin, int64_t end, void* own) {
    const auto* const x = static_cast<const float*>(args[0]);
    auto* const y = static_cast<float*>(args[1]);
    auto* const t = static_cast<float*>(own);
    const bool aligned = reinterpret_cast<uintptr_t>(own) % 64 == 0;
    for (int64_t i = begin; i < end; ++i) t[i - begin] = x[i];
    for (int64_t i = begin; i < end; ++i) y[i] = aligned ? t[i - begin] : -1;
}

// Copies x where it is not negative; reports a negative value before its scratch (xpurt::KernelStatus).
void refuse_negative(void* const* args, const void*, int64_t begin, int64_t end, void* own) {
    const auto* const x = static_cast<const float*>(args[0]);
    auto* const y = static_cast<float*>(args[1]);
    auto* const status = static_cast<int64_t*>(own);
    for (int64_t i = begin; i < end; ++i) {
        if (x[i] < 0) {
            status[-1] = 1;  // index_out_of_range
            status[-2] = static_cast<int64_t>(x[i]);
            status[-3] = 7;
        }
        y[i] = x[i] < 0 ? 0 : x[i];
    }
}

// Each task takes at least about a millisecond.
void slow(void* const* args, const void*, int64_t begin, int64_t end, void*) {
    auto* const y = static_cast<volatile float*>(args[0]);
    for (int64_t i = begin; i < end; ++i)
        for (int k = 0; k < 1'000'000; ++k) y[i] = static_cast<float>(k);
}

}  // extern "C"
