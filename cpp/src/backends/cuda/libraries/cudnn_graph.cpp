// cuda/libraries/cudnn_graph.cpp: descriptors, the choice of an engine, and running a plan.
#include "backends/cuda/libraries/cudnn_graph.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>

namespace xpurt::cuda {
namespace {

constexpr int64_t first_intermediate = 1000, first_scalar = 2000;  // ids of tensors; arguments have 1 and up
constexpr size_t max_error_chars = 700;  // cuDNN's error strings name every call and can be long

// cuDNN's text for a result on one line: its name, and the reason that the innermost call gave.
std::string error_text(const CudnnApi& f, int result) {
    std::array<char, 2048> text{};
    f.cudnnGetLastErrorString(text.data(), text.size());
    std::string line(text.data(), std::find(text.begin(), text.end(), '\0'));
    std::replace(line.begin(), line.end(), '\n', ' ');
    line.erase(line.find_last_not_of(' ') + 1);
    if (line.size() > max_error_chars) line = line.substr(0, max_error_chars) + " ...";
    return f.cudnnGetErrorString(result) + (line.empty() ? "" : ": " + line);
}

// Calls that build or read descriptors. The first failure is kept; later calls do nothing.
class DescriptorCalls {
  public:
    explicit DescriptorCalls(const CudnnApi& f) : f_(f) {}

    VendorHandle create(int kind) {
        VendorHandle object(f_.cudnnBackendDestroyDescriptor);
        if (ok()) result_ = f_.cudnnBackendCreateDescriptor(kind, object.out());
        return object;
    }
    DescriptorCalls& set(const VendorHandle& object, int attribute, int type, int64_t count,
                         const void* values) {
        if (ok()) result_ = f_.cudnnBackendSetAttribute(object.get(), attribute, type, count, values);
        return *this;
    }
    DescriptorCalls& finalize(const VendorHandle& object) {
        if (ok()) result_ = f_.cudnnBackendFinalize(object.get());
        return *this;
    }
    // Read up to `room` values; return how many there are, 0 after a failure.
    int64_t get(dnn::Object object, int attribute, int type, int64_t room, void* values) {
        int64_t count = 0;
        if (ok()) result_ = f_.cudnnBackendGetAttribute(object, attribute, type, room, &count, values);
        return ok() ? count : 0;
    }
    bool ok() const { return result_ == dnn::success; }
    int result() const { return result_; }

  private:
    const CudnnApi& f_;
    int result_ = dnn::success;
};

int64_t workspace_limit(const KernelCall& call) {
    return int_option(call, "workspace_bytes", int64_t{256} << 20);
}

struct EngineInfo {
    int64_t index = -1;
    std::vector<int> notes;  // numerical notes
    bool readable = false;
};

EngineInfo engine_of(const CudnnApi& f, dnn::Object config) {
    DescriptorCalls calls(f);
    const VendorHandle engine = calls.create(dnn::engine);
    dnn::Object raw = engine.get();
    EngineInfo info;
    calls.get(config, dnn::config_engine, dnn::type_object, 1, &raw);
    calls.get(raw, dnn::engine_index, dnn::type_int, 1, &info.index);
    info.notes.resize(dnn::notes);
    const int64_t count = calls.get(raw, dnn::engine_notes, dnn::type_note, dnn::notes, info.notes.data());
    info.notes.resize(static_cast<size_t>(std::clamp<int64_t>(count, 0, dnn::notes)));
    info.readable = calls.ok();
    return info;
}

// Return why an engine does not meet the policy, which requires full-width products and sums and bitwise
// reproducible results; empty if it does.
std::string imprecision(const EngineInfo& engine, bool is_float32) {
    if (!engine.readable) return "does not report its numerical notes";
    for (const int note : engine.notes) {
        if (note == dnn::note_down_convert) return "converts its operands to a narrower type";
        if (note == dnn::note_reduced_sums) return "accumulates in a narrower type";
        if (note == dnn::note_undetermined) return "is not deterministic";
        if (note >= dnn::note_winograd && note <= dnn::note_winograd_last) return "uses Winograd";
        if (note == dnn::note_tensor_core && is_float32) return "uses TF32";
    }
    return "";
}

// The configurations that a heuristic offers for a graph, best first. `last` receives the library's error if
// there are none.
std::vector<VendorHandle> heuristic_configs(const CudnnApi& f, dnn::Object graph, int mode,
                                            std::string& last) {
    DescriptorCalls calls(f);
    const VendorHandle search = calls.create(dnn::heuristic);
    calls.set(search, dnn::heuristic_graph, dnn::type_object, 1, &graph)
        .set(search, dnn::heuristic_mode, dnn::type_heuristic, 1, &mode)
        .finalize(search);
    const int64_t offered = calls.get(search.get(), dnn::heuristic_results, dnn::type_object, 0, nullptr);
    std::vector<VendorHandle> configs;
    std::vector<dnn::Object> raw;
    for (int64_t i = 0; i < offered; ++i) {
        configs.push_back(calls.create(dnn::config));
        raw.push_back(configs.back().get());
    }
    const int64_t written =
        offered == 0 ? 0
                     : calls.get(search.get(), dnn::heuristic_results, dnn::type_object, offered, raw.data());
    if (!calls.ok() || (offered > 0 && written == 0)) last = error_text(f, calls.result());
    while (static_cast<int64_t>(configs.size()) > written) configs.pop_back();
    return configs;
}

// An engine for a graph with its default configuration; null handles if it does not support the graph.
struct DefaultConfig {
    VendorHandle engine, config;
};
DefaultConfig default_config(const CudnnApi& f, dnn::Object graph, int64_t index) {
    DescriptorCalls calls(f);
    DefaultConfig result{calls.create(dnn::engine), VendorHandle()};
    calls.set(result.engine, dnn::engine_graph, dnn::type_object, 1, &graph)
        .set(result.engine, dnn::engine_index, dnn::type_int, 1, &index)
        .finalize(result.engine);
    const dnn::Object engine = result.engine.get();
    result.config = calls.create(dnn::config);
    calls.set(result.config, dnn::config_engine, dnn::type_object, 1, &engine).finalize(result.config);
    return calls.ok() ? std::move(result) : DefaultConfig{};
}

}  // namespace

int cudnn_type(const std::string& dtype) {
    if (dtype == "float32") return dnn::data_float;
    if (dtype == "float64") return dnn::data_double;
    if (dtype == "float16") return dnn::data_half;
    return dtype == "bfloat16" ? dnn::data_bfloat : -1;
}

CudnnGraph::Builder::Builder(CudnnGraph& graph, int kind)
    : graph_(graph), kind_(kind), object_(graph.f_.cudnnBackendDestroyDescriptor) {
    if (!graph_.failed())
        check(graph_.f_.cudnnBackendCreateDescriptor(kind, object_.out()), "cudnnBackendCreateDescriptor");
}

CudnnGraph::Builder& CudnnGraph::Builder::set(int attribute, int type, int64_t count, const void* values) {
    if (!graph_.failed())
        check(graph_.f_.cudnnBackendSetAttribute(object_.get(), attribute, type, count, values),
              "cudnnBackendSetAttribute", attribute);
    return *this;
}

CudnnGraph::Builder& CudnnGraph::Builder::set_if_supported(int attribute, int type, int64_t count,
                                                           const void* values) {
    if (!graph_.failed())
        static_cast<void>(  // a version without the attribute refuses it, which is expected
            graph_.f_.cudnnBackendSetAttribute(object_.get(), attribute, type, count, values));
    return *this;
}

dnn::Object CudnnGraph::Builder::finalize() {
    if (!graph_.failed()) check(graph_.f_.cudnnBackendFinalize(object_.get()), "cudnnBackendFinalize");
    if (graph_.failed()) return nullptr;
    graph_.descriptors_.push_back(std::move(object_));
    return graph_.descriptors_.back().get();
}

void CudnnGraph::Builder::check(int result, const char* call, int attribute) {
    if (result == dnn::success) return;
    std::string where = std::string(call) + " of descriptor " + std::to_string(kind_);
    if (attribute >= 0) where += ", attribute " + std::to_string(attribute);
    graph_.fail(where + ": " + error_text(graph_.f_, result));
}

dnn::Object CudnnGraph::tensor(int64_t id, const Dims& shape, const Dims& strides, int type, bool is_virtual,
                               bool by_value) {
    const int64_t alignment = is_virtual || by_value ? 16 : alignment_[static_cast<size_t>(id - 1)];
    Builder builder = make(dnn::tensor);
    builder.set(dnn::tensor_type, dnn::type_data, 1, &type)
        .dims(dnn::tensor_shape, shape)
        .dims(dnn::tensor_strides, strides)
        .set(dnn::tensor_id, dnn::type_int, 1, &id)
        .set(dnn::tensor_alignment, dnn::type_int, 1, &alignment);
    if (is_virtual) builder.set(dnn::tensor_virtual, dnn::type_bool, 1, &is_virtual);
    if (by_value) builder.set(dnn::tensor_by_value, dnn::type_bool, 1, &by_value);
    return builder.finalize();
}

bool CudnnGraph::aligned() const {
    return std::all_of(alignment_.begin(), alignment_.end(), [](int64_t bytes) { return bytes == 16; });
}

dnn::Object CudnnGraph::argument(const Dims& shape, const Dims& strides, int type) {
    if (arguments_ == static_cast<int64_t>(alignment_.size()))
        fail("the call has fewer arguments than its options require");
    if (failed()) return nullptr;
    return tensor(++arguments_, shape, strides, type, false, false);
}

dnn::Object CudnnGraph::intermediate(const Dims& shape, const Dims& strides, int type) {
    return tensor(first_intermediate + intermediates_++, shape, strides, type, true, false);
}

dnn::Object CudnnGraph::scalar(const void* value, int type, size_t rank) {
    const int64_t id = first_scalar + static_cast<int64_t>(scalars_.size());
    uint32_t bits = 0;
    std::memcpy(&bits, value, sizeof bits);
    scalars_.push_back(bits);
    return tensor(id, Dims(rank, 1), Dims(rank, 1), type, false, true);
}

dnn::Object CudnnGraph::pointwise_op(int mode, int math, dnn::Object x, dnn::Object y, dnn::Object b,
                                     dnn::Object t, int64_t axis) {
    Builder how = make(dnn::pointwise);
    how.set(dnn::pointwise_mode, dnn::type_pointwise, 1, &mode)
        .set(dnn::pointwise_math, dnn::type_data, 1, &math);
    if (axis >= 0) how.set(dnn::pointwise_axis, dnn::type_int, 1, &axis);
    const dnn::Object description = how.finalize();
    Builder builder = make(dnn::op_pointwise);
    builder.object(dnn::point_desc, description).object(dnn::point_x, x);
    if (b != nullptr) builder.object(dnn::point_b, b);
    if (t != nullptr) builder.object(dnn::point_t, t);
    builder.object(dnn::point_y, y);
    operation(builder);
    return y;
}

Result<std::shared_ptr<const CudnnPlan>> CudnnPlan::choose(CudnnGraph graph, const KernelCall& call,
                                                           const char* what) {
    if (graph.arguments_ < static_cast<int64_t>(graph.alignment_.size()))
        graph.fail("the call has more arguments than its options require");
    const auto count = static_cast<int64_t>(graph.operations_.size());
    const dnn::Object whole = graph.make(dnn::graph)
                                  .set(dnn::graph_handle, dnn::type_handle, 1, &graph.handle_)
                                  .set(dnn::graph_ops, dnn::type_object, count, graph.operations_.data())
                                  .finalize();
    if (graph.failed())
        return Status{Code::unsupported, call.kernel + ": cuDNN refuses the " + what + ": " + graph.failure(),
                      "Choose another kernel by policy."};
    const CudnnApi& f = graph.f_;
    const std::shared_ptr<CudnnPlan> plan(new CudnnPlan(std::move(graph)));
    const int64_t requested_engine = int_option(call, "engine", -1);
    const int64_t choice = int_option(call, "choice", -1);
    int64_t eligible = 0;  // configurations that `choice` counts
    const int64_t limit = workspace_limit(call);
    const auto in = option<std::string>(call, "in", "float32");
    std::map<int64_t, std::string> rejections;  // rejected engines and the reason
    std::string last;
    int configurations = 0;
    const auto try_config = [&](VendorHandle& config, const EngineInfo& engine, const std::string& from) {
        ++configurations;
        std::string& reason = rejections[engine.index];
        if (requested_engine >= 0 && engine.index != requested_engine) return false;
        if (const std::string why = imprecision(engine, in == "float32");
            requested_engine < 0 && !why.empty()) {
            reason = why;
            return false;
        }
        if (choice >= 0 && eligible++ != choice) return false;
        if (!(reason = plan->try_build(config.get(), limit)).empty()) return false;
        plan->config_ = std::move(config);
        plan->implementation_ = "cudnnBackendExecute engine " + std::to_string(engine.index) + ", " + from +
                                ", workspace " + std::to_string(plan->workspace_);
        return true;
    };
    for (const int mode : {dnn::mode_a, dnn::mode_fallback}) {
        std::vector<VendorHandle> configs = heuristic_configs(f, whole, mode, last);
        for (size_t i = 0; i < configs.size(); ++i)
            if (try_config(configs[i], engine_of(f, configs[i].get()),
                           "configuration " + std::to_string(i) +
                               (mode == dnn::mode_fallback ? " of the fallbacks" : "")))
                return std::shared_ptr<const CudnnPlan>(plan);
    }
    if (choice >= 0) {
        std::string why;
        for (const auto& [index, reason] : rejections)
            if (!reason.empty()) why += " engine " + std::to_string(index) + " " + reason + ";";
        return Status{Code::unsupported,
                      call.kernel + ": cuDNN has no plan at choice " + std::to_string(choice) + " of " +
                          std::to_string(eligible) + " for this " + what + (why.empty() ? "" : ":" + why),
                      "Name another choice, or none."};
    }
    // For small and for grouped convolutions the heuristics offer few engines, which may all be imprecise. So
    // try every engine that was not offered.
    int64_t engines = 0;
    DescriptorCalls count_engines(f);
    count_engines.get(whole, dnn::graph_engines, dnn::type_int, 1, &engines);
    if (!count_engines.ok()) last = error_text(f, count_engines.result());
    for (int64_t index = 0; index < engines; ++index) {
        if (requested_engine >= 0 ? index != requested_engine : rejections.count(index) != 0) continue;
        DefaultConfig result = default_config(f, whole, index);
        if (result.config.get() == nullptr) continue;
        plan->graph_.descriptors_.push_back(std::move(result.engine));
        if (try_config(result.config, engine_of(f, result.config.get()), "as it is"))
            return std::shared_ptr<const CudnnPlan>(plan);
    }
    std::string all;
    for (const auto& [index, reason] : rejections)
        all +=
            (all.empty() ? " " : ", ") + std::to_string(index) + (requested_engine >= 0 ? "" : " " + reason);
    if (requested_engine >= 0)
        return Status{Code::unsupported,
                      call.kernel + ": cuDNN offers no engine " + std::to_string(requested_engine) +
                          " for this " + what + ". Available:" + (all.empty() ? " none" : all),
                      "Name an available one, or none."};
    return Status{Code::unsupported,
                  call.kernel + ": of cuDNN's " + std::to_string(configurations) + " configurations on " +
                      std::to_string(engines) + " engines none computes this " + what + " in " + in +
                      " with full sums in " + std::to_string(limit) + " bytes of workspace" +
                      (all.empty() ? "" : ":" + all) + (last.empty() ? "" : " (" + last + ")"),
                  "Choose another kernel by policy."};
}

// Return why a configuration gives no plan within the workspace limit; empty on success.
std::string CudnnPlan::try_build(dnn::Object config, int64_t limit) {
    const CudnnApi& f = graph_.f_;
    DescriptorCalls calls(f);
    VendorHandle plan = calls.create(dnn::plan);
    calls.set(plan, dnn::plan_handle, dnn::type_handle, 1, &graph_.handle_)
        .set(plan, dnn::plan_config, dnn::type_object, 1, &config)
        .finalize(plan);
    int64_t bytes = 0;
    calls.get(plan.get(), dnn::plan_workspace, dnn::type_int, 1, &bytes);
    if (!calls.ok()) return "has no plan";
    if (bytes > limit) return "needs " + std::to_string(bytes) + " bytes of workspace";
    plan_ = std::move(plan);
    workspace_ = bytes;
    return "";
}

std::string CudnnPlan::text() const {
    DescriptorCalls calls(graph_.f_);
    const int64_t size = calls.get(plan_.get(), dnn::plan_json, dnn::type_char, 0, nullptr);
    if (!calls.ok() || size <= 0) return "";
    std::string json(static_cast<size_t>(size), '\0');
    calls.get(plan_.get(), dnn::plan_json, dnn::type_char, size, json.data());
    return calls.ok() ? implementation_ + "\n" + json : "";
}

std::shared_ptr<const CudnnPlan> CudnnPlan::restore(CudnnGraph graph, const KernelCall& call,
                                                    const std::string& text) {
    const size_t line = text.find('\n');
    if (graph.failed() || line == std::string::npos) return nullptr;
    const std::shared_ptr<CudnnPlan> plan(new CudnnPlan(std::move(graph)));
    plan->implementation_ = text.substr(0, line);
    DescriptorCalls calls(plan->graph_.f_);
    plan->plan_ = calls.create(dnn::plan);
    calls.set(plan->plan_, dnn::plan_handle, dnn::type_handle, 1, &plan->graph_.handle_)
        .set(plan->plan_, dnn::plan_json, dnn::type_char, static_cast<int64_t>(text.size() - line - 1),
             text.data() + line + 1)
        .finalize(plan->plan_);
    calls.get(plan->plan_.get(), dnn::plan_workspace, dnn::type_int, 1, &plan->workspace_);
    return calls.ok() && plan->workspace_ >= 0 && plan->workspace_ <= workspace_limit(call) ? plan : nullptr;
}

Status CudnnPlan::run(CudnnShared& shared, const std::string& kernel, void* const* args, void* workspace,
                      CUstream stream) const {
    const CudnnApi& f = graph_.f_;
    std::vector<void*> pointers(args, args + arguments());
    Dims ids(arguments());
    for (size_t i = 0; i < ids.size(); ++i) {
        const int64_t alignment = graph_.alignment_[i];
        if (reinterpret_cast<uintptr_t>(args[i]) % static_cast<uintptr_t>(alignment) != 0)
            return {
                Code::unsupported,
                kernel + ": cuDNN's plan needs addresses that are multiples of " + std::to_string(alignment),
                "Pass memory with this alignment."};
        ids[i] = static_cast<int64_t>(i) + 1;
    }
    for (size_t i = 0; i < graph_.scalars_.size(); ++i) {
        pointers.push_back(const_cast<uint32_t*>(&graph_.scalars_[i]));  // read only
        ids.push_back(first_scalar + static_cast<int64_t>(i));
    }
    const auto count = static_cast<int64_t>(ids.size());
    DescriptorCalls calls(f);
    const VendorHandle pack = calls.create(dnn::pack);
    calls.set(pack, dnn::pack_ids, dnn::type_int, count, ids.data())
        .set(pack, dnn::pack_pointers, dnn::type_pointer, count, pointers.data())
        .set(pack, dnn::pack_workspace, dnn::type_pointer, 1, &workspace)
        .finalize(pack);
    const std::lock_guard<std::mutex> lock(shared.mutex);
    int result = calls.result();
    if (result == dnn::success) result = f.cudnnSetStream(shared.handle, stream);
    if (result == dnn::success) result = f.cudnnBackendExecute(shared.handle, plan_.get(), pack.get());
    if (result != dnn::success)
        return {Code::call_failed, kernel + ": cudnnBackendExecute: " + error_text(f, result), ""};
    return {};
}

}  // namespace xpurt::cuda
