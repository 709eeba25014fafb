// cpu/onednn_kernel.cpp: matrix products and convolutions by oneDNN 3.
//
// The symbol of a call is "matmul" or "convolution". Its arguments are x, weight, then bias and residual if
// the options say so, then the output. Shapes and strides are those of the call's specs. Options: bias,
// residual, weight_known (bools), act, transposed, and for a convolution stride, dilation, padding (all
// begins, then all ends) and groups.
//
// oneDNN chooses the layout of the weight. A weight that is constant is reordered into it once, in the first
// run.
#include "backends/cpu/onednn_kernel.h"

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "runtime/operands.h"

namespace xpurt {
namespace {

class AlignedBuffer {  // 64-byte aligned
  public:
    AlignedBuffer() = default;
    explicit AlignedBuffer(size_t size)
        : bytes_(size == 0 ? nullptr : std::aligned_alloc(64, (size + 63) / 64 * 64)) {}
    AlignedBuffer(AlignedBuffer&& other) noexcept : bytes_(std::exchange(other.bytes_, nullptr)) {}
    AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
        std::swap(bytes_, other.bytes_);
        return *this;
    }
    ~AlignedBuffer() { std::free(bytes_); }
    void* get() const noexcept { return bytes_; }

  private:
    void* bytes_ = nullptr;
};

Status failed(const KernelCall& call, const char* what, dnnl::Result result) {
    if (result == dnnl::unimplemented)
        return {Code::unsupported,
                call.kernel + ": oneDNN has no implementation for these shapes and types (" + what + ")",
                "Choose another kernel by policy."};
    return {Code::call_failed, call.kernel + ": " + what + " returned " + std::to_string(result), ""};
}

int data_type(const std::string& dtype) {
    if (dtype == "float32") return 3;
    if (dtype == "bfloat16") return 2;
    return dtype == "float16" ? 1 : 0;
}

struct Eltwise {
    const char* name;
    int kind;
    float alpha, beta;
};

constexpr Eltwise eltwises[] = {
    {"relu", 32, 0, 0},      {"relu6", 47, 0, 6},          {"gelu", 49, 0, 0},
    {"gelu_tanh", 43, 0, 0}, {"silu", 44, 1, 0},           {"sigmoid", 41, 0, 0},
    {"tanh", 33, 0, 0},      {"leaky_relu", 32, 0.01F, 0}, {"hardswish", 52, 1.0F / 6, 0.5F},
};

struct OperandShape {
    Dims dims, strides;
};

// Check x [..., m, k], w [..., k, n] and y [..., m, n]: each batch dim is that of y or 1.
Status check_matmul(const KernelCall& call, const Dims& x, const Dims& w, const Dims& y) {
    const size_t rank = y.size();
    bool good = rank >= 2 && rank <= 6 && x.size() == rank && w.size() == rank;
    if (good) good = x[rank - 2] == y[rank - 2] && w[rank - 1] == y[rank - 1] && x[rank - 1] == w[rank - 2];
    for (size_t i = 0; good && i + 2 < rank; ++i)
        good = (x[i] == y[i] || x[i] == 1) && (w[i] == y[i] || w[i] == 1) && (x[i] == y[i] || w[i] == y[i]);
    return good ? Status{} : inconsistent(call, "x and weight are not matrices whose product is y");
}

class OneDnnKernel final : public LibraryKernel {
  public:
    OneDnnKernel(const dnnl::OneDnnApi& f, int threads) : f_(f), threads_(threads) {}

    Status prepare(const KernelCall& call) {
        const bool convolution = call.symbol == "convolution";
        if (!convolution && call.symbol != "matmul")
            return {Code::unsupported, call.kernel + ": oneDNN computes no " + call.symbol + " here",
                    "Choose another kernel by policy."};
        bias_ = option(call, "bias", false);
        residual_ = option(call, "residual", false);
        weight_is_constant_ = option(call, "weight_known", false);
        XPURT_TRY(check_arguments(call, 3U + bias_ + residual_));
        const std::string& dtype = call.specs[0].dtype;
        type_ = data_type(dtype);
        if (type_ == 0) return inconsistent(call, "oneDNN has no type for " + dtype);
        for (const ArgumentSpec& spec : call.specs)
            if (spec.dtype != dtype)
                return inconsistent(call, "its arguments are " + dtype + " and " + spec.dtype);
        OperandShape x{call.specs[0].shape, call.specs[0].strides},
            w{call.specs[1].shape, call.specs[1].strides};
        OperandShape y{call.specs.back().shape, call.specs.back().strides};
        const int64_t groups = option<int64_t>(call, "groups", 1);
        const bool transposed = !convolution && option(call, "transposed", false);
        if (transposed && (x.dims.empty() || y.dims.empty() || w.dims.size() != 2))
            return inconsistent(call,
                                "a linear layer needs a weight of two dims, and x and y of at least one");
        // Check before dims are multiplied: this refuses products that overflow.
        XPURT_TRY(check_operands(call, {{"x", 0, dtype, x.dims, x.strides},
                                        {"weight", 1, dtype, w.dims, w.strides},
                                        {"y", call.specs.size() - 1, dtype, y.dims, y.strides}}));
        Window window;
        if (convolution) {
            const Dims padding = option(call, "padding", Dims{});
            const auto half = padding.begin() + static_cast<std::ptrdiff_t>(padding.size() / 2);
            window = {option(call, "stride", Dims{}),
                      option(call, "dilation", Dims{}),
                      {padding.begin(), half},
                      {half, padding.end()}};
            XPURT_TRY(check_convolution(call, x.dims, w.dims, y.dims, window, groups));
            split_groups(w, groups);
        } else if (transposed) {  // the weight of a linear layer is [n, k]
            std::swap(w.dims[0], w.dims[1]);
            std::swap(w.strides[0], w.strides[1]);
            flatten(x);
            flatten(y);
        }
        if (!convolution) XPURT_TRY(check_matmul(call, x.dims, w.dims, y.dims));
        const int64_t filters = convolution ? call.specs.back().shape[1] : y.dims.back();
        XPURT_TRY(check_operands(call, {{"x", 0, dtype, x.dims, x.strides},
                                        {"weight", 1, dtype, w.dims, w.strides},
                                        {"y", call.specs.size() - 1, dtype, y.dims, y.strides}}));
        if (bias_ && (call.specs[2].shape != Dims{filters} || call.specs[2].strides != Dims{1}))
            return inconsistent(call, "its bias is not [" + std::to_string(filters) + "]");
        if (const ArgumentSpec& r = call.specs[2U + bias_];
            residual_ && (r.shape != call.specs.back().shape || r.strides != call.specs.back().strides))
            return inconsistent(call, "its residual does not have the shape and strides of its result");
        XPURT_TRY(describe(call, x, w, y));
        dnnl::Handle attributes(f_.dnnl_primitive_attr_destroy);
        XPURT_TRY(attribute(call, attributes));
        dnnl::Handle primitive(f_.dnnl_primitive_desc_destroy);
        dnnl::Result result;
        if (convolution) {
            for (int64_t& d : window.dilation) --d;  // oneDNN counts the elements between two taps
            result = f_.dnnl_convolution_forward_primitive_desc_create(
                primitive.out(), f_.engine, dnnl::forward_inference, dnnl::convolution_auto, x_.get(),
                any_.get(), b_.get(), y_.get(), window.stride.data(), window.dilation.data(),
                window.begin.data(), window.end.data(), attributes.get());
        } else {
            result = f_.dnnl_matmul_primitive_desc_create(primitive.out(), f_.engine, x_.get(), any_.get(),
                                                          b_.get(), y_.get(), attributes.get());
        }
        if (result != dnnl::success) return failed(call, convolution ? "convolution" : "matmul", result);
        const char* name = nullptr;
        result = f_.dnnl_primitive_desc_query(primitive.get(), dnnl::query_impl_info_str, 0, &name);
        if (result != dnnl::success) return failed(call, "dnnl_primitive_desc_query", result);
        implementation_ = name != nullptr ? name : "";
        if (implementation_.rfind("ref", 0) == 0 || implementation_.find(":ref") != std::string::npos)
            return {
                Code::unsupported,
                call.kernel + ": oneDNN has only its reference implementation (" + implementation_ +
                    ") for these shapes and types, which is hundreds of times slower than an optimized one",
                "Choose another kernel by policy."};
        // The primitive descriptor owns these descriptors; they are needed as long as the primitive.
        const dnnl::Object weight_layout =
            f_.dnnl_primitive_desc_query_md(primitive.get(), dnnl::query_weights_md, 0);
        const dnnl::Object pad =
            f_.dnnl_primitive_desc_query_md(primitive.get(), dnnl::query_scratchpad_md, 0);
        scratchpad_bytes_ = pad != nullptr ? f_.dnnl_memory_desc_get_size(pad) : 0;
        reorders_weight_ = weight_is_constant_ && f_.dnnl_memory_desc_equal(weight_layout, w_.get()) == 0;
        weight_md_ = reorders_weight_ ? weight_layout : w_.get();
        scratchpad_md_ = pad;
        primitive_ = dnnl::Handle(f_.dnnl_primitive_destroy);
        result = f_.dnnl_primitive_create(primitive_.out(), primitive.get());
        if (result != dnnl::success) return failed(call, "dnnl_primitive_create", result);
        description_ = std::move(primitive);
        kernel_ = call.kernel;
        return {};
    }

    Status execute(void* const* args, void*) const override {
        f_.omp_set_num_threads(threads_);
        std::unique_ptr<Frame> frame = acquire_frame();
        if (!frame) return {Code::call_failed, kernel_ + ": oneDNN could not create its memory objects", ""};
        void* weight = args[1];
        if (reorders_weight_) {
            const std::lock_guard<std::mutex> lock(mutex_);
            if (reordered_from_ !=
                args[1]) {  // weights of a program do not move, but another binding has other addresses
                if (!reorder(*frame, args[1]))
                    return {Code::call_failed, kernel_ + ": its weight could not be reordered", ""};
                reordered_from_ = args[1];
            }
            weight = reordered_.get();
        }
        size_t at = 2;
        dnnl::Result result = dnnl::success;
        const auto set = [&](const dnnl::Handle& memory, void* data) {
            if (result == dnnl::success) result = f_.dnnl_memory_set_data_handle(memory.get(), data);
        };
        set(frame->x, args[0]);
        set(frame->weight, weight);
        if (bias_) set(frame->bias, args[at++]);
        if (residual_) set(frame->residual, args[at++]);
        set(frame->y, args[at]);
        if (result == dnnl::success)
            result =
                f_.dnnl_primitive_execute(primitive_.get(), frame->stream.get(),
                                          static_cast<int>(frame->arguments.size()), frame->arguments.data());
        // Wait even after a failure: the frame will be used again.
        const dnnl::Result waited = f_.dnnl_stream_wait(frame->stream.get());
        if (result == dnnl::success) result = waited;
        release_frame(std::move(frame));
        if (result != dnnl::success)
            return {Code::call_failed, kernel_ + ": oneDNN returned " + std::to_string(result), ""};
        return {};
    }

    std::string implementation() const override { return implementation_; }

  private:
    // What one run at a time needs: memory objects, a stream and a scratchpad. Reused by later runs.
    struct Frame {
        dnnl::Handle stream, x, weight, bias, residual, y, scratchpad;
        AlignedBuffer pad;
        std::vector<dnnl::Argument> arguments;
    };

    static void flatten(OperandShape& s) {  // all dims before the last one become rows
        const int64_t k = s.dims.empty() ? 1 : s.dims.back();
        int64_t rows = 1;
        for (size_t i = 0; i + 1 < s.dims.size(); ++i) rows *= s.dims[i];
        s = {{rows, k}, {k, 1}};
    }

    static void split_groups(OperandShape& w, int64_t groups) {
        if (groups == 1) return;
        w.dims[0] /= groups;
        w.dims.insert(w.dims.begin(), groups);
        w.strides.insert(w.strides.begin(), w.strides[0] * w.dims[1]);
    }

    dnnl::Result descriptor(dnnl::Handle& to, const OperandShape& s) {
        to = dnnl::Handle(f_.dnnl_memory_desc_destroy);
        return f_.dnnl_memory_desc_create_with_strides(to.out(), static_cast<int>(s.dims.size()),
                                                       s.dims.data(), type_, s.strides.data());
    }

    Status describe(const KernelCall& call, const OperandShape& x, const OperandShape& w,
                    const OperandShape& y) {
        dnnl::Result result = descriptor(x_, x);
        if (result == dnnl::success) result = descriptor(w_, w);
        if (result == dnnl::success) result = descriptor(y_, y);
        if (result == dnnl::success && residual_) result = descriptor(r_, y);
        if (result == dnnl::success && bias_) {
            OperandShape b{Dims(y.dims.size(), 1), Dims(y.dims.size(), 1)};
            const int64_t n = call.specs[2].shape[0];
            if (call.symbol == "convolution")
                b = {{n}, {1}};
            else {
                b.dims.back() = n;
                std::fill(b.strides.begin(), b.strides.end() - 1, n);
            }
            result = descriptor(b_, b);
        }
        any_ = dnnl::Handle(f_.dnnl_memory_desc_destroy);
        if (result == dnnl::success)
            result = weight_is_constant_
                         ? f_.dnnl_memory_desc_create_with_tag(any_.out(), static_cast<int>(w.dims.size()),
                                                               w.dims.data(), type_, dnnl::tag_any)
                         : descriptor(any_, w);
        return result == dnnl::success ? Status{} : failed(call, "dnnl_memory_desc_create", result);
    }

    Status attribute(const KernelCall& call, dnnl::Handle& attributes) {
        dnnl::Result result = f_.dnnl_primitive_attr_create(attributes.out());
        if (result == dnnl::success)
            result = f_.dnnl_primitive_attr_set_scratchpad_mode(attributes.get(), dnnl::scratchpad_user);
        dnnl::Handle operations(f_.dnnl_post_ops_destroy);
        if (result == dnnl::success) result = f_.dnnl_post_ops_create(operations.out());
        if (result == dnnl::success && residual_)
            result = f_.dnnl_post_ops_append_binary(operations.get(), dnnl::binary_add, r_.get());
        const std::string act = option<std::string>(call, "act", "none");
        if (result == dnnl::success && act != "none") {
            const auto* const match = std::find_if(std::begin(eltwises), std::end(eltwises),
                                                   [&](const Eltwise& e) { return act == e.name; });
            if (match == std::end(eltwises))
                return {Code::unsupported, call.kernel + ": no activation " + act, ""};
            result =
                f_.dnnl_post_ops_append_eltwise(operations.get(), match->kind, match->alpha, match->beta);
        }
        if (result == dnnl::success)
            result = f_.dnnl_primitive_attr_set_post_ops(attributes.get(), operations.get());
        return result == dnnl::success ? Status{} : failed(call, "its attributes", result);
    }

    bool memory(dnnl::Handle& to, dnnl::Object descriptor, void* data) const {
        to = dnnl::Handle(f_.dnnl_memory_destroy);
        return f_.dnnl_memory_create(to.out(), descriptor, f_.engine, data) == dnnl::success;
    }

    std::unique_ptr<Frame> acquire_frame() const {
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            if (!frames_.empty()) {
                std::unique_ptr<Frame> match = std::move(frames_.back());
                frames_.pop_back();
                return match;
            }
        }
        auto frame = std::make_unique<Frame>();
        frame->pad = AlignedBuffer(scratchpad_bytes_);
        frame->stream = dnnl::Handle(f_.dnnl_stream_destroy);
        bool good =
            f_.dnnl_stream_create(frame->stream.out(), f_.engine, dnnl::default_flags) == dnnl::success;
        const auto add = [&](dnnl::Handle& to, dnnl::Object descriptor, int which, void* data) {
            good = good && memory(to, descriptor, data);
            frame->arguments.push_back({which, to.get()});
        };
        add(frame->x, x_.get(), dnnl::arg_src, nullptr);
        add(frame->weight, weight_md_, dnnl::arg_weights, nullptr);
        if (bias_) add(frame->bias, b_.get(), dnnl::arg_bias, nullptr);
        if (residual_) add(frame->residual, r_.get(), dnnl::post_op_base | dnnl::arg_src_1, nullptr);
        add(frame->y, y_.get(), dnnl::arg_dst, nullptr);
        if (scratchpad_bytes_ > 0)
            add(frame->scratchpad, scratchpad_md_, dnnl::arg_scratchpad, frame->pad.get());
        return good ? std::move(frame) : nullptr;
    }

    void release_frame(std::unique_ptr<Frame> frame) const {
        const std::lock_guard<std::mutex> lock(mutex_);
        frames_.push_back(std::move(frame));
    }

    // Reorder the weight into the layout of the primitive. The mutex is held.
    bool reorder(const Frame& frame, void* from) const {
        reordered_ = AlignedBuffer(f_.dnnl_memory_desc_get_size(weight_md_));
        dnnl::Handle description(f_.dnnl_primitive_desc_destroy), primitive(f_.dnnl_primitive_destroy),
            source, target;
        if (reordered_.get() == nullptr || !memory(source, w_.get(), from) ||
            !memory(target, weight_md_, reordered_.get()) ||
            f_.dnnl_reorder_primitive_desc_create(description.out(), w_.get(), f_.engine, weight_md_,
                                                  f_.engine, nullptr) != dnnl::success ||
            f_.dnnl_primitive_create(primitive.out(), description.get()) != dnnl::success)
            return false;
        const dnnl::Argument arguments[] = {{dnnl::arg_from, source.get()}, {dnnl::arg_to, target.get()}};
        const bool executed =
            f_.dnnl_primitive_execute(primitive.get(), frame.stream.get(), 2, arguments) == dnnl::success;
        return f_.dnnl_stream_wait(frame.stream.get()) == dnnl::success && executed;
    }

    const dnnl::OneDnnApi& f_;
    const int threads_;
    int type_ = 0;
    bool bias_ = false, residual_ = false, weight_is_constant_ = false, reorders_weight_ = false;
    std::string kernel_, implementation_;
    dnnl::Handle x_, w_, any_, b_, r_, y_, description_, primitive_;
    dnnl::Object weight_md_ = nullptr, scratchpad_md_ = nullptr;
    size_t scratchpad_bytes_ = 0;
    mutable std::mutex mutex_;  // guards the members below
    mutable std::vector<std::unique_ptr<Frame>> frames_;
    mutable AlignedBuffer reordered_;
    mutable const void* reordered_from_ = nullptr;
};

}  // namespace

Result<std::unique_ptr<LibraryKernel>> make_onednn_kernel(const dnnl::OneDnnApi& api, const KernelCall& call,
                                                          int threads) {
    auto kernel = std::make_unique<OneDnnKernel>(api, threads);
    XPURT_TRY(kernel->prepare(call));
    return std::unique_ptr<LibraryKernel>(std::move(kernel));
}

}  // namespace xpurt
