// cuda/libraries/cudnn.cpp: convolutions by cuDNN's graph API: convolution, then residual, bias and
// activation in one plan.
//
// A call's options: x_shape, x_strides, w_shape, w_strides, y_shape, y_strides (n, c, space; filters,
// channels, space), r_strides where there is a residual, stride, dilation, begin, end (padding of each space
// dim), bias, residual, act, in (dtype), engine (cuDNN's global index; -1: the heuristic's first that sums as
// we do), workspace_bytes. Arguments: x, weight, then bias and residual where the options say so, then y.
#include <algorithm>
#include <map>
#include <mutex>
#include <vector>

#include "backends/cuda/libraries/vendor.h"

namespace xpurt::cuda {
namespace {

// Values of cudnn_graph.h, which have stood since 9.0.
namespace dnn {

using Handle = void*;
using Object = void*;
constexpr int success = 0;
constexpr int type_handle = 0, type_data = 1, type_bool = 2, type_int = 3, type_float = 4, type_double = 5,
              type_pointer = 6, type_mode = 7, type_heuristic = 8, type_note = 11, type_pointwise = 14,
              type_object = 15;
constexpr int pointwise = 0, convolution = 1, engine = 2, config = 3, heuristic = 4, plan = 5,
              op_convolution = 10, op_pointwise = 13, graph = 15, pack = 16, tensor = 17;
constexpr int pointwise_mode = 0, pointwise_math = 1, relu_upper = 4, relu_slope = 5;
constexpr int conv_type = 100, conv_mode = 101, conv_dilation = 102, conv_stride = 103, conv_end = 104,
              conv_begin = 105, conv_dims = 106;
constexpr int heuristic_mode = 200, heuristic_graph = 201, heuristic_results = 202;
constexpr int config_engine = 300, plan_handle = 400, plan_config = 401, plan_workspace = 402;
constexpr int conv_alpha = 700, conv_beta = 701, conv_desc = 702, conv_w = 703, conv_x = 704, conv_y = 705;
constexpr int point_desc = 750, point_x = 751, point_b = 752, point_y = 753;
constexpr int graph_handle = 800, graph_ops = 801, graph_engines = 802;
constexpr int tensor_alignment = 900, tensor_type = 901, tensor_shape = 902, tensor_strides = 903,
              tensor_id = 906, tensor_virtual = 907;
constexpr int pack_ids = 1000, pack_pointers = 1001, pack_workspace = 1003;
constexpr int engine_graph = 1300, engine_index = 1301, engine_notes = 1303;
constexpr int cross_correlation = 1, add = 0;
constexpr int mode_fallback = 2, mode_a = 3;
constexpr int note_tensor_core = 0, note_down_convert = 1, note_reduced_sums = 2, note_undetermined = 4,
              note_winograd = 5, note_winograd_last = 8, notes = 10;

}  // namespace dnn

#define XPURT_CUDNN_SYMBOLS(X)                                                        \
    X(cudnnGetVersion, size_t())                                                      \
    X(cudnnCreate, int(dnn::Handle*))                                                 \
    X(cudnnSetStream, int(dnn::Handle, CUstream))                                     \
    X(cudnnGetErrorString, const char*(int))                                          \
    X(cudnnBackendCreateDescriptor, int(int, dnn::Object*))                           \
    X(cudnnBackendDestroyDescriptor, int(dnn::Object))                                \
    X(cudnnBackendFinalize, int(dnn::Object))                                         \
    X(cudnnBackendSetAttribute, int(dnn::Object, int, int, int64_t, const void*))     \
    X(cudnnBackendGetAttribute, int(dnn::Object, int, int, int64_t, int64_t*, void*)) \
    X(cudnnBackendExecute, int(dnn::Handle, dnn::Object, dnn::Object))

struct Functions {
#define XPURT_MEMBER(name, type) std::add_pointer_t<type> name = nullptr;
    XPURT_CUDNN_SYMBOLS(XPURT_MEMBER)
#undef XPURT_MEMBER

    explicit Functions(const Library& library) {
        size_t index = 0;
#define XPURT_FILL(name, type) name = reinterpret_cast<std::add_pointer_t<type>>(library.address(index++));
        XPURT_CUDNN_SYMBOLS(XPURT_FILL)
#undef XPURT_FILL
    }
};

struct Shared {
    std::mutex mutex;
    dnn::Handle handle = nullptr;
};

using Dims = std::vector<int64_t>;

int data_type(const std::string& dtype) {
    if (dtype == "float32") return 0;
    if (dtype == "float64") return 1;
    if (dtype == "float16") return 2;
    return dtype == "bfloat16" ? 9 : -1;
}

struct Activation {
    const char* name;
    int mode;
    double upper, slope;  // of a clipped or leaky relu; 0: none
};
constexpr Activation activations[] = {
    {"relu", 100, 0, 0},    {"relu6", 100, 6, 0}, {"leaky_relu", 100, 0, 0.01}, {"tanh", 101, 0, 0},
    {"sigmoid", 102, 0, 0}, {"gelu", 104, 0, 0},  {"silu", 106, 0, 0},          {"gelu_tanh", 107, 0, 0},
};

// A descriptor under construction: the first failure is kept, what follows does nothing.
class Builder {
  public:
    Builder(const Functions& f, int kind) : f_(f), object_(f.cudnnBackendDestroyDescriptor) {
        result_ = f_.cudnnBackendCreateDescriptor(kind, object_.out());
    }
    Builder& set(int attribute, int type, int64_t count, const void* values) {
        if (result_ == dnn::success)
            result_ = f_.cudnnBackendSetAttribute(object_.get(), attribute, type, count, values);
        return *this;
    }
    Builder& object(int attribute, dnn::Object value) { return set(attribute, dnn::type_object, 1, &value); }
    Builder& dims(int attribute, const Dims& values) {
        return set(attribute, dnn::type_int, static_cast<int64_t>(values.size()), values.data());
    }
    // The descriptor, or the code of what failed.
    int finish(Owned& to) {
        if (result_ == dnn::success) result_ = f_.cudnnBackendFinalize(object_.get());
        to = std::move(object_);
        return result_;
    }

  private:
    const Functions& f_;
    Owned object_;
    int result_ = dnn::success;
};

class CudnnKernel final : public StreamKernel {
  public:
    CudnnKernel(const Functions& f, Shared& shared) : f_(f), shared_(shared) {}

    Status prepare(const KernelCall& call) {
        kernel_ = call.kernel;
        in_ = option<std::string>(call, "in", "float32");
        type_ = data_type(in_);
        bias_ = option(call, "bias", false);
        residual_ = option(call, "residual", false);
        if (type_ < 0) return {Code::invalid, call.kernel + ": no cuDNN type for " + in_, ""};
        if (call.args.size() != 3U + bias_ + residual_)
            return {Code::invalid, call.kernel + ": the call names other arguments than its options", ""};
        // Buffers start at multiples of 16; a part of one (a slice, an operand of a concatenation) where it
        // lies.
        alignment_.clear();
        for (const Place& place : call.args) {
            int64_t most = 16;
            while (place.offset % most != 0) most /= 2;
            alignment_.push_back(most);
        }
        const std::lock_guard<std::mutex> lock(shared_.mutex);
        if (const int result = build(call); result != dnn::success)
            return {Code::unsupported,
                    call.kernel + ": cuDNN refuses the convolution: " + f_.cudnnGetErrorString(result),
                    "Choose another kernel by policy."};
        return choose(call);
    }

    Status launch(void* const* args, void* workspace, CUstream stream) const override {
        const size_t count = 3U + bias_ + residual_;
        for (size_t i = 0; i < count; ++i)
            if (reinterpret_cast<uintptr_t>(args[i]) % static_cast<uintptr_t>(alignment_[i]) != 0)
                return {Code::unsupported,
                        kernel_ + ": cuDNN's plan needs addresses that are multiples of " +
                            std::to_string(alignment_[i]),
                        "Hand in memory that starts at such a multiple."};
        std::vector<void*> pointers(args, args + count);
        Dims ids(count);
        for (size_t i = 0; i < count; ++i) ids[i] = static_cast<int64_t>(i) + 1;
        Owned pack;
        int result =
            Builder(f_, dnn::pack)
                .set(dnn::pack_ids, dnn::type_int, static_cast<int64_t>(count), ids.data())
                .set(dnn::pack_pointers, dnn::type_pointer, static_cast<int64_t>(count), pointers.data())
                .set(dnn::pack_workspace, dnn::type_pointer, 1, &workspace)
                .finish(pack);
        const std::lock_guard<std::mutex> lock(shared_.mutex);
        if (result == dnn::success) result = f_.cudnnSetStream(shared_.handle, stream);
        if (result == dnn::success) result = f_.cudnnBackendExecute(shared_.handle, plan_.get(), pack.get());
        if (result != dnn::success)
            return {Code::call_failed, kernel_ + ": cudnnBackendExecute: " + f_.cudnnGetErrorString(result),
                    ""};
        return {};
    }

    size_t workspace_bytes() const override { return static_cast<size_t>(workspace_); }
    std::string implementation() const override { return implementation_; }

  private:
    int tensor(int64_t id, const Dims& shape, const Dims& strides, int type, bool is_virtual,
               dnn::Object& made) {
        const int64_t alignment = is_virtual ? 16 : alignment_[static_cast<size_t>(id - 1)];
        Owned owned;
        const int result = Builder(f_, dnn::tensor)
                               .set(dnn::tensor_type, dnn::type_data, 1, &type)
                               .dims(dnn::tensor_shape, shape)
                               .dims(dnn::tensor_strides, strides)
                               .set(dnn::tensor_id, dnn::type_int, 1, &id)
                               .set(dnn::tensor_alignment, dnn::type_int, 1, &alignment)
                               .set(dnn::tensor_virtual, dnn::type_bool, 1, &is_virtual)
                               .finish(owned);
        made = owned.get();
        kept_.push_back(std::move(owned));
        return result;
    }

    // The graph: what comes out of one step is the next one's x; the last one's is y.
    int build(const KernelCall& call) {
        const Dims none;
        const Dims y_shape = option(call, "y_shape", none), y_strides = option(call, "y_strides", none);
        const std::string act = option<std::string>(call, "act", "none");
        const int sums = type_ == 1 ? 1 : 0;
        int64_t id = 1, inner = 100;
        dnn::Object x = nullptr, w = nullptr, b = nullptr, r = nullptr, y = nullptr, at = nullptr;
        int result =
            tensor(id++, option(call, "x_shape", none), option(call, "x_strides", none), type_, false, x);
        const auto then = [&](int next) {
            if (result == dnn::success) result = next;
        };
        then(tensor(id++, option(call, "w_shape", none), option(call, "w_strides", none), type_, false, w));
        if (bias_) {
            Dims shape(y_shape.size(), 1), strides(y_shape.size(), y_shape[1]);
            shape[1] = y_shape[1];
            strides[1] = 1;
            then(tensor(id++, shape, strides, type_, false, b));
        }
        if (residual_) then(tensor(id++, y_shape, option(call, "r_strides", none), type_, false, r));
        then(tensor(id++, y_shape, y_strides, type_, false, y));
        int steps = 1 + bias_ + residual_ + (act != "none");
        const auto out = [&]() -> dnn::Object {
            if (--steps == 0) return y;
            dnn::Object made = nullptr;
            then(tensor(inner++, y_shape, y_strides, sums, true, made));
            return made;
        };

        const Dims stride = option(call, "stride", none);
        const auto space = static_cast<int64_t>(stride.size());
        Owned description, step;
        then(Builder(f_, dnn::convolution)
                 .set(dnn::conv_type, dnn::type_data, 1, &sums)
                 .set(dnn::conv_mode, dnn::type_mode, 1, &dnn::cross_correlation)
                 .set(dnn::conv_dims, dnn::type_int, 1, &space)
                 .dims(dnn::conv_stride, stride)
                 .dims(dnn::conv_dilation, option(call, "dilation", none))
                 .dims(dnn::conv_begin, option(call, "begin", none))
                 .dims(dnn::conv_end, option(call, "end", none))
                 .finish(description));
        at = out();
        const float one = 1, zero = 0;
        const double wide_one = 1, wide_zero = 0;
        const int factor = type_ == 1 ? dnn::type_double : dnn::type_float;
        then(Builder(f_, dnn::op_convolution)
                 .object(dnn::conv_desc, description.get())
                 .object(dnn::conv_x, x)
                 .object(dnn::conv_w, w)
                 .object(dnn::conv_y, at)
                 .set(dnn::conv_alpha, factor, 1, type_ == 1 ? static_cast<const void*>(&wide_one) : &one)
                 .set(dnn::conv_beta, factor, 1, type_ == 1 ? static_cast<const void*>(&wide_zero) : &zero)
                 .finish(step));
        std::vector<dnn::Object> operations{step.get()};
        kept_.push_back(std::move(description));
        kept_.push_back(std::move(step));

        const auto point = [&](int mode, dnn::Object other, double upper, double slope) {
            Owned what, made;
            Builder builder(f_, dnn::pointwise);
            builder.set(dnn::pointwise_mode, dnn::type_pointwise, 1, &mode)
                .set(dnn::pointwise_math, dnn::type_data, 1, &sums);
            if (upper != 0) builder.set(dnn::relu_upper, dnn::type_double, 1, &upper);
            if (slope != 0) builder.set(dnn::relu_slope, dnn::type_double, 1, &slope);
            then(builder.finish(what));
            const dnn::Object to = out();
            Builder operation(f_, dnn::op_pointwise);
            operation.object(dnn::point_desc, what.get()).object(dnn::point_x, at);
            if (other != nullptr) operation.object(dnn::point_b, other);
            operation.object(dnn::point_y, to);
            then(operation.finish(made));
            operations.push_back(made.get());
            kept_.push_back(std::move(what));
            kept_.push_back(std::move(made));
            at = to;
        };
        if (residual_) point(dnn::add, r, 0, 0);
        if (bias_) point(dnn::add, b, 0, 0);
        if (act != "none") {
            const auto* const found = std::find_if(std::begin(activations), std::end(activations),
                                                   [&](const Activation& a) { return act == a.name; });
            if (found == std::end(activations)) return 3000;  // CUDNN_STATUS_NOT_SUPPORTED
            point(found->mode, nullptr, found->upper, found->slope);
        }
        then(Builder(f_, dnn::graph)
                 .set(dnn::graph_handle, dnn::type_handle, 1, &shared_.handle)
                 .set(dnn::graph_ops, dnn::type_object, static_cast<int64_t>(operations.size()),
                      operations.data())
                 .finish(graph_));
        return result;
    }

    // Why an engine does not compute as the policy has it: products and sums as wide as asked, the same bits
    // every time. Empty where it does.
    std::string inexact(const std::vector<int>& notes) const {
        for (const int note : notes) {
            if (note == dnn::note_down_convert) return "narrows operands";
            if (note == dnn::note_reduced_sums) return "narrows sums";
            if (note == dnn::note_undetermined) return "has other bits every time";
            if (note >= dnn::note_winograd && note <= dnn::note_winograd_last) return "goes by Winograd";
            if (note == dnn::note_tensor_core && type_ == 0) return "goes by TF32";
        }
        return "";
    }

    // The heuristic's configurations in its order, then its fallbacks, then every engine as it is: of small
    // and of grouped convolutions the heuristics name few, and those that compute in full need not be among
    // them.
    Status choose(const KernelCall& call) {
        const int64_t pinned = number(call, "engine", -1);
        const int64_t limit = number(call, "workspace_bytes", int64_t{256} << 20);
        std::map<int64_t, std::string> met;  // engines, and why not
        int configurations = 0;
        const auto takes = [&](Owned& config, int64_t index, const std::string& from) {
            Owned plan;
            if (Builder(f_, dnn::plan)
                    .set(dnn::plan_handle, dnn::type_handle, 1, &shared_.handle)
                    .object(dnn::plan_config, config.get())
                    .finish(plan) != dnn::success) {
                met[index] = "has no plan";
                return false;
            }
            int64_t workspace = 0, one = 0;
            f_.cudnnBackendGetAttribute(plan.get(), dnn::plan_workspace, dnn::type_int, 1, &one, &workspace);
            if (workspace > limit) {
                met[index] = "takes " + std::to_string(workspace) + " bytes";
                return false;
            }
            plan_ = std::move(plan);
            kept_.push_back(std::move(config));
            workspace_ = workspace;
            implementation_ = "cudnnBackendExecute engine " + std::to_string(index) + ", " + from +
                              ", workspace " + std::to_string(workspace);
            return true;
        };
        for (const int mode : {dnn::mode_a, dnn::mode_fallback}) {
            std::vector<Owned> found = configurations_of(mode);
            for (size_t i = 0; i < found.size(); ++i) {
                ++configurations;
                const auto [index, notes] = engine_of(found[i].get());
                std::string& why = met[index];
                if (pinned >= 0 && index != pinned) continue;
                if (pinned < 0 && !(why = inexact(notes)).empty()) continue;
                if (takes(found[i], index,
                          "configuration " + std::to_string(i) +
                              (mode == dnn::mode_fallback ? " of the fallbacks" : "")))
                    return {};
            }
        }
        int64_t engines = 0, one = 0;
        f_.cudnnBackendGetAttribute(graph_.get(), dnn::graph_engines, dnn::type_int, 1, &one, &engines);
        for (int64_t index = 0; index < engines; ++index) {
            if (pinned >= 0 ? index != pinned : met.count(index) != 0 && !met[index].empty()) continue;
            Owned config = plain(index);
            if (config.get() == nullptr) continue;  // this engine has no such convolution
            ++configurations;
            if (pinned < 0 && !(met[index] = inexact(engine_of(config.get()).second)).empty()) continue;
            if (takes(config, index, "as it is")) return {};
        }
        std::string said;
        for (const auto& [index, why] : met)
            said += (said.empty() ? " " : ", ") + std::to_string(index) + (pinned >= 0 ? "" : " " + why);
        if (pinned >= 0)
            return {Code::unsupported,
                    call.kernel + ": cuDNN offers no engine " + std::to_string(pinned) +
                        " for this convolution, but" + (said.empty() ? " none" : said),
                    "Name one of those, or none."};
        return {Code::unsupported,
                call.kernel + ": of cuDNN's " + std::to_string(configurations) + " configurations on " +
                    std::to_string(engines) + " engines none computes this convolution in " + in_ +
                    " with full sums in " + std::to_string(limit) +
                    " bytes of workspace:" + (said.empty() ? " there is none" : said),
                "Choose another kernel by policy."};
    }

    // What a heuristic names, best first.
    std::vector<Owned> configurations_of(int mode) const {
        Owned search;
        if (Builder(f_, dnn::heuristic)
                .object(dnn::heuristic_graph, graph_.get())
                .set(dnn::heuristic_mode, dnn::type_heuristic, 1, &mode)
                .finish(search) != dnn::success)
            return {};
        int64_t count = 0;
        f_.cudnnBackendGetAttribute(search.get(), dnn::heuristic_results, dnn::type_object, 0, &count,
                                    nullptr);
        std::vector<Owned> configs;
        std::vector<dnn::Object> raw;
        for (int64_t i = 0; i < count; ++i) {
            Owned config(f_.cudnnBackendDestroyDescriptor);
            f_.cudnnBackendCreateDescriptor(dnn::config, config.out());
            raw.push_back(config.get());
            configs.push_back(std::move(config));
        }
        int64_t written = 0;
        if (count > 0)
            f_.cudnnBackendGetAttribute(search.get(), dnn::heuristic_results, dnn::type_object, count,
                                        &written, raw.data());
        while (static_cast<int64_t>(configs.size()) > std::max<int64_t>(written, 0)) configs.pop_back();
        return configs;
    }

    // An engine with its own choice of everything; nothing where it does not compute this graph.
    Owned plain(int64_t index) {
        Owned engine, config;
        if (Builder(f_, dnn::engine)
                .object(dnn::engine_graph, graph_.get())
                .set(dnn::engine_index, dnn::type_int, 1, &index)
                .finish(engine) != dnn::success)
            return Owned();
        if (Builder(f_, dnn::config).object(dnn::config_engine, engine.get()).finish(config) != dnn::success)
            return Owned();
        kept_.push_back(std::move(engine));
        return config;
    }

    std::pair<int64_t, std::vector<int>> engine_of(dnn::Object config) const {
        Owned engine(f_.cudnnBackendDestroyDescriptor);
        f_.cudnnBackendCreateDescriptor(dnn::engine, engine.out());
        dnn::Object raw = engine.get();
        int64_t count = 0, index = -1;
        f_.cudnnBackendGetAttribute(config, dnn::config_engine, dnn::type_object, 1, &count, &raw);
        f_.cudnnBackendGetAttribute(raw, dnn::engine_index, dnn::type_int, 1, &count, &index);
        std::vector<int> notes(dnn::notes);
        count = 0;
        f_.cudnnBackendGetAttribute(raw, dnn::engine_notes, dnn::type_note, dnn::notes, &count, notes.data());
        notes.resize(static_cast<size_t>(std::clamp<int64_t>(count, 0, dnn::notes)));
        return {index, notes};
    }

    const Functions& f_;
    Shared& shared_;
    std::vector<int64_t> alignment_;  // of each argument, in bytes
    bool bias_ = false, residual_ = false;
    int type_ = 0;
    int64_t workspace_ = 0;
    std::string kernel_, in_, implementation_;
    std::vector<Owned> kept_;  // descriptors that others refer to
    Owned graph_, plan_;
};

class Cudnn final : public StreamLibrary {
  public:
    std::string version() const override {
        const Functions* const f = functions(nullptr);
        if (f == nullptr) return "";
        const size_t v = f->cudnnGetVersion();
        return std::to_string(v / 10000) + "." + std::to_string(v / 100 % 100) + "." +
               std::to_string(v % 100);
    }

    Result<std::unique_ptr<StreamKernel>> prepare(const KernelCall& call, Device& device) override {
        Status why;
        const Functions* const f = functions(&why);
        if (f == nullptr) return why;
        Shared* shared = nullptr;
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            std::unique_ptr<Shared>& found = shared_[device.index];
            if (!found) found = std::make_unique<Shared>();
            if (found->handle == nullptr)
                if (const int result = f->cudnnCreate(&found->handle); result != dnn::success)
                    return Status{Code::call_failed,
                                  std::string("cudnnCreate: ") + f->cudnnGetErrorString(result), ""};
            shared = found.get();
        }
        auto kernel = std::make_unique<CudnnKernel>(*f, *shared);
        if (Status made = kernel->prepare(call); !made.ok()) return made;
        return std::unique_ptr<StreamKernel>(std::move(kernel));
    }

  private:
    static const Functions* functions(Status* why) { return functions_of<Functions>(cudnn_library(), why); }

    std::mutex mutex_;
    std::map<int, std::unique_ptr<Shared>> shared_;
};

}  // namespace

std::unique_ptr<StreamLibrary> make_cudnn() { return std::make_unique<Cudnn>(); }

}  // namespace xpurt::cuda

namespace xpurt {

Library& cudnn_library() {
    using namespace cuda;
    static Library& library = *new Library({
        "cudnn",
        "NVIDIA cuDNN",
        "XPU_LIBCUDNN",
        {"libcudnn.so.9", "libcudnn.so"},
        {
#define XPURT_ROW(name, type) {#name, 9000, Need::required},
            XPURT_CUDNN_SYMBOLS(XPURT_ROW)
#undef XPURT_ROW
        },
        "pip install nvidia-cudnn-cu13 brings it, and so do PyTorch's CUDA packages.",
    });
    return library;
}

}  // namespace xpurt
