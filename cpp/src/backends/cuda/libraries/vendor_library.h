// cuda/libraries/vendor_library.h: code shared by cuBLAS, cuBLASLt, cuDNN and NCCL: options of a call,
// dtypes, function tables, and the factories.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "backends/cuda/stream.h"
#include "base/owned_handle.h"
#include "runtime/operands.h"
#include "xpurt/cuda.h"
#include "xpurt/library.h"

namespace xpurt::cuda {

// The factories of the libraries; called once, by the registry.
std::unique_ptr<StreamLibrary> make_cublas();
std::unique_ptr<StreamLibrary> make_cublaslt();
std::unique_ptr<StreamLibrary> make_cudnn();
std::unique_ptr<StreamLibrary> make_nccl();
std::unique_ptr<StreamLibrary> make_host_stream_library();

// The functions of a library, looked up on first use; null, with the reason, if the library cannot be loaded.
template <class Functions>
const Functions* load_api(Library& library, Status* reason) {
    static std::mutex mutex;
    static Functions* filled = nullptr;  // never freed: kernels may outlive every static object
    const std::lock_guard<std::mutex> lock(mutex);
    if (filled != nullptr) return filled;
    // If the library has been opened with a search of its own, use that result.
    Status status = library.info().status;
    if (status.code == Code::not_loaded) status = library.open({});
    if (!status.ok()) {
        if (reason != nullptr) *reason = std::move(status);
        return nullptr;
    }
    return filled = new Functions(library);
}

inline int64_t int_option(const KernelCall& call, const char* name, int64_t otherwise = 0) {
    return option<int64_t>(call, name, otherwise);
}

// Values of cudaDataType_t (library_types.h).
inline int cuda_type(const std::string& dtype) {
    if (dtype == "float32") return 0;
    if (dtype == "float64") return 1;
    if (dtype == "float16") return 2;
    return dtype == "bfloat16" ? 14 : -1;
}
inline int64_t bytes_of_type(const std::string& dtype) {
    return dtype == "float64" ? 8 : dtype == "float32" ? 4 : 2;
}

inline bool is_aligned_16(const void* address) { return reinterpret_cast<uintptr_t>(address) % 16 == 0; }

using VendorHandle = OwnedHandle<ResultCode>;

// The options of a matrix product for cuBLAS and cuBLASLt. Both are column-major, so y[m, n] = a[m, k] b[k,
// n] is computed as the product of b and a, each transposed.
struct Gemm {
    int64_t m, n, k, batch;
    int64_t a_line, b_line, y_line, r_line;  // leading dimensions, in elements
    int64_t a_step, b_step, y_step, r_step;  // strides between the matrices of a batch
    bool a_transposed, b_transposed;         // a is stored as [k, m]; b is stored as [n, k]
    bool bias, residual;
    double alpha;
    std::string in, out, act;

    static Gemm of(const KernelCall& call) {
        return {
            int_option(call, "m"),
            int_option(call, "n"),
            int_option(call, "k"),
            int_option(call, "batch", 1),
            int_option(call, "a_line"),
            int_option(call, "b_line"),
            int_option(call, "y_line"),
            int_option(call, "r_line"),
            int_option(call, "a_step"),
            int_option(call, "b_step"),
            int_option(call, "y_step"),
            int_option(call, "r_step"),
            option(call, "a_transposed", false),
            option(call, "b_transposed", false),
            option(call, "bias", false),
            option(call, "residual", false),
            option(call, "alpha", 1.0),
            option<std::string>(call, "in", "float32"),
            option<std::string>(call, "out", "float32"),
            option<std::string>(call, "act", "none"),
        };
    }
    // Check that the sizes fit the libraries' types and that the matrices are inside the call's buffers: a,
    // b, then bias and residual if present, then y.
    Status check(const KernelCall& call) const {
        constexpr int64_t max_size = 2147483647;  // sizes are passed as 32-bit integers
        XPURT_TRY(check_arguments(call, 3U + bias + residual));
        for (const int64_t size : {m, n, k, batch})
            if (size < 1 || size > max_size)
                return inconsistent(call, "a size is not between 1 and 2^31 - 1");
        for (const int64_t line : {a_line, b_line, y_line, r_line})
            if (line < 0 || line > max_size)
                return inconsistent(call, "a line is not between 0 and 2^31 - 1");
        const size_t last = call.specs.size() - 1;
        const auto matrix = [&](const char* name, size_t argument, const std::string& dtype, int64_t rows,
                                int64_t columns, int64_t line, int64_t step) {
            return Operand{name, argument, dtype, {batch, rows, columns}, {step, line, 1}};
        };
        Status status = check_operands(
            call, {matrix("a", 0, in, a_transposed ? k : m, a_transposed ? m : k, a_line, a_step),
                   matrix("b", 1, in, b_transposed ? n : k, b_transposed ? k : n, b_line, b_step),
                   matrix("y", last, out, m, n, y_line, y_step)});
        if (status.ok() && bias) status = check_operands(call, {{"bias", 2, out, {n}, {1}}});
        if (status.ok() && residual)
            status = check_operands(call, {matrix("residual", last - 1, out, m, n, r_line, r_step)});
        return status;
    }
    bool wide() const { return in == "float64"; }
    // CUBLAS_COMPUTE_64F or CUBLAS_COMPUTE_32F; the latter does not use TF32 on its own.
    int compute() const { return wide() ? 70 : 68; }
};

}  // namespace xpurt::cuda
