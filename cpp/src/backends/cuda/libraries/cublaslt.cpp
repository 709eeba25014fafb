// cuda/libraries/cublaslt.cpp: matrix products by cuBLASLt, with epilogues and a choice of algorithm.
//
// The options of a call are those of Gemm (vendor_library.h), and: algorithm (a cuBLASLt id; -1: the first of
// the heuristic), choice (which of several with that id), workspace_bytes. Arguments: a, b, then bias and
// residual if the options say so, then y.
#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "backends/cuda/libraries/vendor_library.h"

namespace xpurt::cuda {
namespace {

// Values from cublasLt.h, which are part of the stable ABI.
namespace lt {

using Handle = void*;
using Object = void*;
constexpr int success = 0, not_supported = 15;
constexpr int desc_transa = 3, desc_transb = 4, desc_epilogue = 7, desc_bias_pointer = 8, desc_bias_type = 26;
constexpr int layout_batch = 5, layout_step = 6;
constexpr int pref_workspace = 1, pref_reduction = 3, pref_alignment = 5;  // of a; b, c and d follow
constexpr uint32_t reduction_in_compute_type = 2;  // partial sums keep the compute type
constexpr int config_id = 0, config_tile = 1, config_split = 2, config_stages = 6;
constexpr int epilogue_default = 1, epilogue_relu = 2, epilogue_bias = 4, epilogue_gelu = 32;

struct Algorithm {
    uint64_t data[8];
};
struct Heuristic {
    Algorithm algorithm;
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
};

}  // namespace lt

constexpr int64_t max_workspace = int64_t{1} << 40;

// Workspaces count in the memory of a session. Products in float32 that are divided along k gain up to a
// third from a large one; the products in 16 bits that were measured were not divided
// (benchmarks/cuda/workspaces.py). A named algorithm is one of the list for the large one.
int64_t default_workspace(const std::string& dtype, bool is_named) {
    const bool is_narrow = dtype == "float16" || dtype == "bfloat16";
    return int64_t{is_narrow && !is_named ? 8 : 32} << 20;
}

// name, version that introduced it, type.
#define XPURT_LT_SYMBOLS(X)                                                                                  \
    X(cublasLtGetVersion, size_t())                                                                          \
    X(cublasLtCreate, ResultCode(lt::Handle*))                                                               \
    X(cublasLtMatmulDescCreate, ResultCode(lt::Object*, int, int))                                           \
    X(cublasLtMatmulDescDestroy, ResultCode(lt::Object))                                                     \
    X(cublasLtMatmulDescSetAttribute, ResultCode(lt::Object, int, const void*, size_t))                      \
    X(cublasLtMatrixLayoutCreate, ResultCode(lt::Object*, int, uint64_t, uint64_t, int64_t))                 \
    X(cublasLtMatrixLayoutDestroy, ResultCode(lt::Object))                                                   \
    X(cublasLtMatrixLayoutSetAttribute, ResultCode(lt::Object, int, const void*, size_t))                    \
    X(cublasLtMatmulPreferenceCreate, ResultCode(lt::Object*))                                               \
    X(cublasLtMatmulPreferenceDestroy, ResultCode(lt::Object))                                               \
    X(cublasLtMatmulPreferenceSetAttribute, ResultCode(lt::Object, int, const void*, size_t))                \
    X(cublasLtMatmulAlgoGetHeuristic, ResultCode(lt::Handle, lt::Object, lt::Object, lt::Object, lt::Object, \
                                                 lt::Object, lt::Object, int, lt::Heuristic*, int*))         \
    X(cublasLtMatmulAlgoConfigGetAttribute, ResultCode(const lt::Algorithm*, int, void*, size_t, size_t*))   \
    X(cublasLtMatmul, ResultCode(lt::Handle, lt::Object, const void*, const void*, lt::Object, const void*,  \
                                 lt::Object, const void*, const void*, lt::Object, void*, lt::Object,        \
                                 const lt::Algorithm*, void*, size_t, CUstream))

struct CublasLtApi {
#define XPURT_MEMBER(name, type) std::add_pointer_t<type> name = nullptr;
    XPURT_LT_SYMBOLS(XPURT_MEMBER)
#undef XPURT_MEMBER

    explicit CublasLtApi(const Library& library) {
        size_t index = 0;
#define XPURT_FILL(name, type) name = reinterpret_cast<std::add_pointer_t<type>>(library.address(index++));
        XPURT_LT_SYMBOLS(XPURT_FILL)
#undef XPURT_FILL
    }
};

Status failed(const KernelCall& call, const char* what, int result) {
    if (result == lt::not_supported)
        return {Code::unsupported,
                call.kernel + ": cuBLASLt has no algorithm for these shapes, types and this epilogue (" +
                    what + ")",
                "Choose another kernel by policy."};
    return {Code::call_failed, call.kernel + ": " + what + " returned " + std::to_string(result), ""};
}

class LtKernel final : public StreamKernel {
  public:
    LtKernel(const CublasLtApi& f, lt::Handle handle) : f_(f), handle_(handle) {}

    Status prepare(const KernelCall& call) {
        kernel_ = call.kernel;
        g_ = Gemm::of(call);
        const int in = cuda_type(g_.in), out = cuda_type(g_.out);
        if (in < 0 || out < 0)
            return {Code::invalid, call.kernel + ": no cuBLASLt type for " + g_.in + " or " + g_.out, ""};
        if (call.symbol != "matmul")
            return {Code::unsupported, call.kernel + ": cuBLASLt computes no " + call.symbol + " here", ""};
        XPURT_TRY(g_.check(call));
        const int64_t requested_id = int_option(call, "algorithm", -1), choice = int_option(call, "choice");
        const int64_t workspace =
            int_option(call, "workspace_bytes", default_workspace(g_.in, requested_id >= 0 || choice > 0));
        if (workspace < 0 || workspace > max_workspace)
            return inconsistent(call,
                                "its workspace of " + std::to_string(workspace) + " bytes is out of range");
        desc_ = VendorHandle(f_.cublasLtMatmulDescDestroy);
        int result = f_.cublasLtMatmulDescCreate(desc_.out(), g_.compute(), g_.wide() ? 1 : 0);
        const auto set = [&](int attribute, const void* value, size_t size) {
            if (result == lt::success)
                result = f_.cublasLtMatmulDescSetAttribute(desc_.get(), attribute, value, size);
        };
        const int first = g_.b_transposed ? 1 : 0, second = g_.a_transposed ? 1 : 0;
        int epilogue = g_.act == "relu" ? lt::epilogue_relu : g_.act == "gelu_tanh" ? lt::epilogue_gelu : 0;
        if (epilogue == 0 && g_.act != "none")
            return {Code::unsupported, call.kernel + ": cuBLASLt has no epilogue " + g_.act,
                    "Choose another kernel by policy."};
        if (g_.bias) epilogue |= lt::epilogue_bias;
        if (epilogue == 0) epilogue = lt::epilogue_default;
        set(lt::desc_transa, &first, sizeof first);
        set(lt::desc_transb, &second, sizeof second);
        set(lt::desc_epilogue, &epilogue, sizeof epilogue);
        if (g_.bias) set(lt::desc_bias_type, &out, sizeof out);
        if (result == lt::success)
            result = layout(b_, in, g_.b_transposed ? g_.k : g_.n, g_.b_transposed ? g_.n : g_.k, g_.b_line,
                            g_.b_step);
        if (result == lt::success)
            result = layout(a_, in, g_.a_transposed ? g_.m : g_.k, g_.a_transposed ? g_.k : g_.m, g_.a_line,
                            g_.a_step);
        if (result == lt::success) result = layout(y_, out, g_.n, g_.m, g_.y_line, g_.y_step);
        if (result == lt::success)
            result = g_.residual ? layout(r_, out, g_.n, g_.m, g_.r_line, g_.r_step)
                                 : layout(r_, out, g_.n, g_.m, g_.y_line, g_.y_step);
        if (result != lt::success) return failed(call, "a descriptor", result);
        const auto bytes = static_cast<uint64_t>(workspace);
        XPURT_TRY(select_algorithm(call, requested_id, choice, bytes, 16, aligned_algo_));
        // Buffers that are not 16-byte aligned are rare; there may be no algorithm for them.
        has_unaligned_algo_ =
            select_algorithm(call, -1, 0, bytes, static_cast<uint32_t>(bytes_of_type(g_.in)), unaligned_algo_)
                .ok();
        describe();
        return {};
    }

    Status launch(void* const* args, void* workspace, CUstream stream) const override {
        const void *a = args[0], *b = args[1];
        size_t at = 2;
        const void* bias = g_.bias ? args[at++] : nullptr;
        const void* residual = g_.residual ? args[at++] : args[at];
        void* y = args[at];
        const bool fast = is_aligned_16(a) && is_aligned_16(b) && is_aligned_16(y) &&
                          is_aligned_16(residual) && is_aligned_16(bias);
        if (!fast && !has_unaligned_algo_)
            return {Code::unsupported,
                    kernel_ + ": cuBLASLt has no algorithm for addresses that are not multiples of 16",
                    "Pass memory that is aligned to 16 bytes."};
        const lt::Heuristic& chosen = fast ? aligned_algo_ : unaligned_algo_;
        const float alpha = static_cast<float>(g_.alpha), beta = g_.residual ? 1.0F : 0.0F;
        const double wide_alpha = g_.alpha, wide_beta = beta;
        const void* factors[2] = {&alpha, &beta};
        if (g_.wide()) factors[0] = &wide_alpha, factors[1] = &wide_beta;
        std::unique_lock<std::mutex> lock(mutex_, std::defer_lock);
        int result = lt::success;
        if (g_.bias) {  // the descriptor holds the address
            lock.lock();
            result =
                f_.cublasLtMatmulDescSetAttribute(desc_.get(), lt::desc_bias_pointer, &bias, sizeof bias);
        }
        if (result == lt::success)
            result = f_.cublasLtMatmul(handle_, desc_.get(), factors[0], b, b_.get(), a, a_.get(), factors[1],
                                       residual, r_.get(), y, y_.get(), &chosen.algorithm, workspace,
                                       chosen.workspace, stream);
        if (result != lt::success)
            return {Code::call_failed, kernel_ + ": cublasLtMatmul returned " + std::to_string(result), ""};
        return {};
    }

    size_t workspace_bytes() const override {
        return std::max(aligned_algo_.workspace, has_unaligned_algo_ ? unaligned_algo_.workspace : 0);
    }
    std::string implementation() const override { return implementation_; }

  private:
    int layout(VendorHandle& to, int type, int64_t rows, int64_t columns, int64_t line, int64_t step) {
        to = VendorHandle(f_.cublasLtMatrixLayoutDestroy);
        int result = f_.cublasLtMatrixLayoutCreate(to.out(), type, static_cast<uint64_t>(rows),
                                                   static_cast<uint64_t>(columns), line);
        const auto batch = static_cast<int32_t>(g_.batch);
        if (result == lt::success && batch > 1)
            result = f_.cublasLtMatrixLayoutSetAttribute(to.get(), lt::layout_batch, &batch, sizeof batch);
        if (result == lt::success && batch > 1)
            result = f_.cublasLtMatrixLayoutSetAttribute(to.get(), lt::layout_step, &step, sizeof step);
        return result;
    }

    // Choose the heuristic's result number `choice`, among those with the requested id if there is one.
    Status select_algorithm(const KernelCall& call, int64_t requested_id, int64_t choice, uint64_t workspace,
                            uint32_t alignment, lt::Heuristic& chosen) {
        VendorHandle preference(f_.cublasLtMatmulPreferenceDestroy);
        int result = f_.cublasLtMatmulPreferenceCreate(preference.out());
        const auto set = [&](int attribute, const void* value, size_t size) {
            if (result == lt::success)
                result = f_.cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, value, size);
        };
        set(lt::pref_workspace, &workspace, sizeof workspace);
        set(lt::pref_reduction, &lt::reduction_in_compute_type, sizeof lt::reduction_in_compute_type);
        for (int i = 0; i < 4; ++i) set(lt::pref_alignment + i, &alignment, sizeof alignment);
        std::vector<lt::Heuristic> candidates(requested_id < 0 && choice < 8 ? 8 : 64);
        int count = 0;
        if (result == lt::success)
            result = f_.cublasLtMatmulAlgoGetHeuristic(
                handle_, desc_.get(), b_.get(), a_.get(), r_.get(), y_.get(), preference.get(),
                static_cast<int>(candidates.size()), candidates.data(), &count);
        if (result != lt::success || count == 0)
            return failed(call, "cublasLtMatmulAlgoGetHeuristic",
                          result == lt::success ? lt::not_supported : result);
        candidates.resize(static_cast<size_t>(count));
        std::map<int64_t, int64_t> ids;  // number of candidates with each id
        int64_t seen = 0;
        for (const lt::Heuristic& h : candidates) {
            const int64_t id = config(h, lt::config_id), at = requested_id < 0 ? seen : ids[id];
            ++seen;
            ++ids[id];
            if (at == choice && (requested_id < 0 || id == requested_id)) {
                chosen = h;
                return {};
            }
        }
        std::string offered;
        for (const auto& [id, times] : ids)
            offered +=
                (offered.empty() ? " " : ", ") + std::to_string(id) + " (" + std::to_string(times) + ")";
        return {Code::unsupported,
                call.kernel + ": cuBLASLt offers no algorithm " +
                    (requested_id < 0 ? "" : std::to_string(requested_id) + " ") + "at choice " +
                    std::to_string(choice) + " for this product. Available:" + offered,
                "Name an available one, or none."};
    }

    int64_t config(const lt::Heuristic& h, int attribute) const {
        int32_t value = -1;
        size_t written = 0;
        const int result =
            f_.cublasLtMatmulAlgoConfigGetAttribute(&h.algorithm, attribute, &value, sizeof value, &written);
        return result == lt::success ? value : -1;
    }

    void describe() {
        implementation_ = "cublasLtMatmul algorithm " + std::to_string(config(aligned_algo_, lt::config_id)) +
                          ", tile " + std::to_string(config(aligned_algo_, lt::config_tile)) + ", stages " +
                          std::to_string(config(aligned_algo_, lt::config_stages)) + ", split-k " +
                          std::to_string(config(aligned_algo_, lt::config_split)) + ", workspace " +
                          std::to_string(aligned_algo_.workspace);
    }

    const CublasLtApi& f_;
    const lt::Handle handle_;
    Gemm g_{};
    VendorHandle desc_, a_, b_, r_, y_;
    lt::Heuristic aligned_algo_{}, unaligned_algo_{};
    bool has_unaligned_algo_ = false;
    std::string kernel_, implementation_;
    mutable std::mutex mutex_;  // guards the bias address in desc_
};

class CublasLtLibrary final : public StreamLibrary {
  public:
    std::string version() const override {
        const CublasLtApi* const f = api(nullptr);
        if (f == nullptr) return "";
        const size_t v = f->cublasLtGetVersion();  // 130100; some releases use 13001
        return std::to_string(v / 10000) + "." + std::to_string(v / 100 % 100) + "." +
               std::to_string(v % 100);
    }

    Result<std::unique_ptr<StreamKernel>> prepare(const KernelCall& call, Device& device) override {
        Status reason;
        const CublasLtApi* const f = api(&reason);
        if (f == nullptr) return reason;
        XPURT_ASSIGN_OR_RETURN(auto handle, handle_of(*f, device.index));
        auto kernel = std::make_unique<LtKernel>(*f, handle);
        XPURT_TRY(kernel->prepare(call));
        return std::unique_ptr<StreamKernel>(std::move(kernel));
    }

  private:
    // One handle per device for the life of the process. cuBLASLt handles are thread-safe.
    Result<lt::Handle> handle_of(const CublasLtApi& f, int device) {
        const std::lock_guard<std::mutex> lock(mutex_);
        lt::Handle& handle = handles_[device];
        if (handle == nullptr)
            if (const int result = f.cublasLtCreate(&handle); result != lt::success)
                return Status{Code::call_failed, "cublasLtCreate returned " + std::to_string(result), ""};
        return handle;
    }

    static const CublasLtApi* api(Status* reason) {
        return load_api<CublasLtApi>(cublaslt_library(), reason);
    }

    std::mutex mutex_;
    std::map<int, lt::Handle> handles_;
};

}  // namespace

std::unique_ptr<StreamLibrary> make_cublaslt() { return std::make_unique<CublasLtLibrary>(); }

}  // namespace xpurt::cuda

namespace xpurt {

Library& cublaslt_library() {
    using namespace cuda;
    static Library& library = *new Library({
        "cublasLt",
        "NVIDIA cuBLASLt",
        "XPU_LIBCUBLASLT",
        {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"},
        {
#define XPURT_ROW(name, type) {#name, 11000, Need::required},
            XPURT_LT_SYMBOLS(XPURT_ROW)
#undef XPURT_ROW
        },
        "pip install nvidia-cublas brings it, and so do CUDA's toolkit and PyTorch's CUDA packages.",
    });
    return library;
}

}  // namespace xpurt
