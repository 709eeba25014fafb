// cuda/libraries/cudnn_graph.cpp: descriptors, the choice of an engine, and running a plan.
#include "backends/cuda/libraries/cudnn_graph.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>

namespace xpurt::cuda {
namespace {

constexpr int64_t first_inner = 1000, first_number = 2000;  // ids of tensors; arguments have 1 and up
constexpr size_t most_text = 700;                           // of the library's reasons, which name every call

// What the library says of a result, on one line: its word, and the reason of the innermost of its calls.
std::string said(const CudnnFunctions& f, int result) {
    std::array<char, 2048> text{};
    f.cudnnGetLastErrorString(text.data(), text.size());
    std::string line(text.data(), std::find(text.begin(), text.end(), '\0'));
    std::replace(line.begin(), line.end(), '\n', ' ');
    line.erase(line.find_last_not_of(' ') + 1);
    if (line.size() > most_text) line = line.substr(0, most_text) + " ...";
    return f.cudnnGetErrorString(result) + (line.empty() ? "" : ": " + line);
}

struct Engine {
    int64_t index = -1;
    std::vector<int> notes;
};

Engine engine_of(const CudnnFunctions& f, dnn::Object config) {
    Owned owned(f.cudnnBackendDestroyDescriptor);
    f.cudnnBackendCreateDescriptor(dnn::engine, owned.out());
    dnn::Object raw = owned.get();
    int64_t count = 0;
    Engine found;
    f.cudnnBackendGetAttribute(config, dnn::config_engine, dnn::type_object, 1, &count, &raw);
    f.cudnnBackendGetAttribute(raw, dnn::engine_index, dnn::type_int, 1, &count, &found.index);
    found.notes.resize(dnn::notes);
    count = 0;
    f.cudnnBackendGetAttribute(raw, dnn::engine_notes, dnn::type_note, dnn::notes, &count,
                               found.notes.data());
    found.notes.resize(static_cast<size_t>(std::clamp<int64_t>(count, 0, dnn::notes)));
    return found;
}

// Why an engine does not compute as the policy has it: products and sums as wide as asked, the same bits
// every time. Empty where it does.
std::string inexact(const Engine& engine, bool is_float32) {
    for (const int note : engine.notes) {
        if (note == dnn::note_down_convert) return "narrows operands";
        if (note == dnn::note_reduced_sums) return "narrows sums";
        if (note == dnn::note_undetermined) return "has other bits every time";
        if (note >= dnn::note_winograd && note <= dnn::note_winograd_last) return "goes by Winograd";
        if (note == dnn::note_tensor_core && is_float32) return "goes by TF32";
    }
    return "";
}

// What a heuristic names for a graph, best first. `last`: the library's words where it names nothing.
std::vector<Owned> named(const CudnnFunctions& f, dnn::Object graph, int mode, std::string& last) {
    Owned search(f.cudnnBackendDestroyDescriptor);
    f.cudnnBackendCreateDescriptor(dnn::heuristic, search.out());
    f.cudnnBackendSetAttribute(search.get(), dnn::heuristic_graph, dnn::type_object, 1, &graph);
    f.cudnnBackendSetAttribute(search.get(), dnn::heuristic_mode, dnn::type_heuristic, 1, &mode);
    if (const int result = f.cudnnBackendFinalize(search.get()); result != dnn::success) {
        last = said(f, result);
        return {};
    }
    int64_t offered = 0, written = 0;
    f.cudnnBackendGetAttribute(search.get(), dnn::heuristic_results, dnn::type_object, 0, &offered, nullptr);
    std::vector<Owned> configs;
    std::vector<dnn::Object> raw;
    for (int64_t i = 0; i < offered; ++i) {
        configs.emplace_back(f.cudnnBackendDestroyDescriptor);
        f.cudnnBackendCreateDescriptor(dnn::config, configs.back().out());
        raw.push_back(configs.back().get());
    }
    if (offered > 0)
        if (const int result = f.cudnnBackendGetAttribute(search.get(), dnn::heuristic_results,
                                                          dnn::type_object, offered, &written, raw.data());
            result != dnn::success || written == 0)
            last = said(f, result);
    while (static_cast<int64_t>(configs.size()) > written) configs.pop_back();
    return configs;
}

// An engine for a graph with its own choice of everything; no configuration where it does not compute it.
struct Plain {
    Owned engine, config;
};
Plain plain(const CudnnFunctions& f, dnn::Object graph, int64_t index) {
    Plain made{Owned(f.cudnnBackendDestroyDescriptor), Owned(f.cudnnBackendDestroyDescriptor)};
    f.cudnnBackendCreateDescriptor(dnn::engine, made.engine.out());
    f.cudnnBackendSetAttribute(made.engine.get(), dnn::engine_graph, dnn::type_object, 1, &graph);
    f.cudnnBackendSetAttribute(made.engine.get(), dnn::engine_index, dnn::type_int, 1, &index);
    if (f.cudnnBackendFinalize(made.engine.get()) != dnn::success) return {Owned(), Owned()};
    const dnn::Object engine = made.engine.get();
    f.cudnnBackendCreateDescriptor(dnn::config, made.config.out());
    f.cudnnBackendSetAttribute(made.config.get(), dnn::config_engine, dnn::type_object, 1, &engine);
    if (f.cudnnBackendFinalize(made.config.get()) != dnn::success) return {Owned(), Owned()};
    return made;
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

CudnnGraph::Builder& CudnnGraph::Builder::wish(int attribute, int type, int64_t count, const void* values) {
    if (!graph_.failed()) graph_.f_.cudnnBackendSetAttribute(object_.get(), attribute, type, count, values);
    return *this;
}

dnn::Object CudnnGraph::Builder::keep() {
    if (!graph_.failed()) check(graph_.f_.cudnnBackendFinalize(object_.get()), "cudnnBackendFinalize");
    if (graph_.failed()) return nullptr;
    graph_.kept_.push_back(std::move(object_));
    return graph_.kept_.back().get();
}

void CudnnGraph::Builder::check(int result, const char* call, int attribute) {
    if (result == dnn::success) return;
    std::string where = std::string(call) + " of descriptor " + std::to_string(kind_);
    if (attribute >= 0) where += ", attribute " + std::to_string(attribute);
    graph_.fail(where + ": " + said(graph_.f_, result));
}

dnn::Object CudnnGraph::tensor(int64_t id, const Dims& shape, const Dims& strides, int type, bool is_virtual,
                               bool by_value) {
    const int64_t alignment = is_virtual || by_value ? 16 : alignment_[static_cast<size_t>(id - 1)];
    Builder made = make(dnn::tensor);
    made.set(dnn::tensor_type, dnn::type_data, 1, &type)
        .dims(dnn::tensor_shape, shape)
        .dims(dnn::tensor_strides, strides)
        .set(dnn::tensor_id, dnn::type_int, 1, &id)
        .set(dnn::tensor_alignment, dnn::type_int, 1, &alignment);
    if (is_virtual) made.set(dnn::tensor_virtual, dnn::type_bool, 1, &is_virtual);
    if (by_value) made.set(dnn::tensor_by_value, dnn::type_bool, 1, &by_value);
    return made.keep();
}

bool CudnnGraph::aligned() const {
    return std::all_of(alignment_.begin(), alignment_.end(), [](int64_t bytes) { return bytes == 16; });
}

dnn::Object CudnnGraph::argument(const Dims& shape, const Dims& strides, int type) {
    if (arguments_ == static_cast<int64_t>(alignment_.size()))
        fail("the call names fewer arguments than its options");
    if (failed()) return nullptr;
    return tensor(++arguments_, shape, strides, type, false, false);
}

dnn::Object CudnnGraph::inner(const Dims& shape, const Dims& strides, int type) {
    return tensor(first_inner + inner_++, shape, strides, type, true, false);
}

dnn::Object CudnnGraph::number(const void* value, int type, size_t rank) {
    const int64_t id = first_number + static_cast<int64_t>(numbers_.size());
    uint32_t bits = 0;
    std::memcpy(&bits, value, sizeof bits);
    numbers_.push_back(bits);
    return tensor(id, Dims(rank, 1), Dims(rank, 1), type, false, true);
}

dnn::Object CudnnGraph::point(int mode, int math, dnn::Object x, dnn::Object y, dnn::Object b, dnn::Object t,
                              int64_t axis) {
    Builder how = make(dnn::pointwise);
    how.set(dnn::pointwise_mode, dnn::type_pointwise, 1, &mode)
        .set(dnn::pointwise_math, dnn::type_data, 1, &math);
    if (axis >= 0) how.set(dnn::pointwise_axis, dnn::type_int, 1, &axis);
    const dnn::Object description = how.keep();
    Builder made = make(dnn::op_pointwise);
    made.object(dnn::point_desc, description).object(dnn::point_x, x);
    if (b != nullptr) made.object(dnn::point_b, b);
    if (t != nullptr) made.object(dnn::point_t, t);
    made.object(dnn::point_y, y);
    operation(made);
    return y;
}

Result<std::shared_ptr<const CudnnPlan>> CudnnPlan::choose(CudnnGraph graph, const KernelCall& call,
                                                           const char* what) {
    if (graph.arguments_ < static_cast<int64_t>(graph.alignment_.size()))
        graph.fail("the call names more arguments than its options");
    const auto count = static_cast<int64_t>(graph.operations_.size());
    const dnn::Object whole = graph.make(dnn::graph)
                                  .set(dnn::graph_handle, dnn::type_handle, 1, &graph.handle_)
                                  .set(dnn::graph_ops, dnn::type_object, count, graph.operations_.data())
                                  .keep();
    if (graph.failed())
        return Status{Code::unsupported, call.kernel + ": cuDNN refuses the " + what + ": " + graph.failure(),
                      "Choose another kernel by policy."};
    const CudnnFunctions& f = graph.f_;
    const std::shared_ptr<CudnnPlan> plan(new CudnnPlan(std::move(graph)));
    const int64_t pinned = number(call, "engine", -1);
    const int64_t limit = number(call, "workspace_bytes", int64_t{256} << 20);
    const auto in = option<std::string>(call, "in", "float32");
    std::map<int64_t, std::string> met;  // engines, and why not
    std::string last;
    int configurations = 0;
    const auto takes = [&](Owned& config, const Engine& engine, const std::string& from) {
        ++configurations;
        std::string& why = met[engine.index];
        if (pinned >= 0 && engine.index != pinned) return false;
        if (pinned < 0 && !(why = inexact(engine, in == "float32")).empty()) return false;
        if (!(why = plan->take(config.get(), limit)).empty()) return false;
        plan->config_ = std::move(config);
        plan->implementation_ = "cudnnBackendExecute engine " + std::to_string(engine.index) + ", " + from +
                                ", workspace " + std::to_string(plan->workspace_);
        return true;
    };
    for (const int mode : {dnn::mode_a, dnn::mode_fallback}) {
        std::vector<Owned> configs = named(f, whole, mode, last);
        for (size_t i = 0; i < configs.size(); ++i)
            if (takes(configs[i], engine_of(f, configs[i].get()),
                      "configuration " + std::to_string(i) +
                          (mode == dnn::mode_fallback ? " of the fallbacks" : "")))
                return std::shared_ptr<const CudnnPlan>(plan);
    }
    // Of small and of grouped convolutions the heuristics name few; those that compute in full need not be
    // among them. So every engine is asked that was not met.
    int64_t engines = 0, one = 0;
    f.cudnnBackendGetAttribute(whole, dnn::graph_engines, dnn::type_int, 1, &one, &engines);
    for (int64_t index = 0; index < engines; ++index) {
        if (pinned >= 0 ? index != pinned : met.count(index) != 0) continue;
        Plain found = plain(f, whole, index);
        if (found.config.get() == nullptr) continue;
        plan->graph_.kept_.push_back(std::move(found.engine));
        if (takes(found.config, engine_of(f, found.config.get()), "as it is"))
            return std::shared_ptr<const CudnnPlan>(plan);
    }
    std::string all;
    for (const auto& [index, why] : met)
        all += (all.empty() ? " " : ", ") + std::to_string(index) + (pinned >= 0 ? "" : " " + why);
    if (pinned >= 0)
        return Status{Code::unsupported,
                      call.kernel + ": cuDNN offers no engine " + std::to_string(pinned) + " for this " +
                          what + ", but" + (all.empty() ? " none" : all),
                      "Name one of those, or none."};
    return Status{Code::unsupported,
                  call.kernel + ": of cuDNN's " + std::to_string(configurations) + " configurations on " +
                      std::to_string(engines) + " engines none computes this " + what + " in " + in +
                      " with full sums in " + std::to_string(limit) + " bytes of workspace" +
                      (all.empty() ? "" : ":" + all) + (last.empty() ? "" : " (" + last + ")"),
                  "Choose another kernel by policy."};
}

// Why a configuration becomes no plan with a workspace within the limit; empty where it does.
std::string CudnnPlan::take(dnn::Object config, int64_t limit) {
    const CudnnFunctions& f = graph_.f_;
    Owned plan(f.cudnnBackendDestroyDescriptor);
    f.cudnnBackendCreateDescriptor(dnn::plan, plan.out());
    f.cudnnBackendSetAttribute(plan.get(), dnn::plan_handle, dnn::type_handle, 1, &graph_.handle_);
    f.cudnnBackendSetAttribute(plan.get(), dnn::plan_config, dnn::type_object, 1, &config);
    if (f.cudnnBackendFinalize(plan.get()) != dnn::success) return "has no plan";
    int64_t count = 1, bytes = 0;
    f.cudnnBackendGetAttribute(plan.get(), dnn::plan_workspace, dnn::type_int, 1, &count, &bytes);
    if (bytes > limit) return "takes " + std::to_string(bytes) + " bytes";
    plan_ = std::move(plan);
    workspace_ = bytes;
    return "";
}

Status CudnnPlan::run(CudnnShared& shared, const std::string& kernel, void* const* args, void* workspace,
                      CUstream stream) const {
    const CudnnFunctions& f = graph_.f_;
    std::vector<void*> pointers(args, args + arguments());
    Dims ids(arguments());
    for (size_t i = 0; i < ids.size(); ++i) {
        const int64_t alignment = graph_.alignment_[i];
        if (reinterpret_cast<uintptr_t>(args[i]) % static_cast<uintptr_t>(alignment) != 0)
            return {
                Code::unsupported,
                kernel + ": cuDNN's plan needs addresses that are multiples of " + std::to_string(alignment),
                "Hand in memory that starts at such a multiple."};
        ids[i] = static_cast<int64_t>(i) + 1;
    }
    for (size_t i = 0; i < graph_.numbers_.size(); ++i) {
        pointers.push_back(const_cast<uint32_t*>(&graph_.numbers_[i]));  // read only
        ids.push_back(first_number + static_cast<int64_t>(i));
    }
    const auto count = static_cast<int64_t>(ids.size());
    Owned pack(f.cudnnBackendDestroyDescriptor);
    int result = f.cudnnBackendCreateDescriptor(dnn::pack, pack.out());
    const auto set = [&](int attribute, int type, int64_t n, const void* values) {
        if (result == dnn::success)
            result = f.cudnnBackendSetAttribute(pack.get(), attribute, type, n, values);
    };
    set(dnn::pack_ids, dnn::type_int, count, ids.data());
    set(dnn::pack_pointers, dnn::type_pointer, count, pointers.data());
    set(dnn::pack_workspace, dnn::type_pointer, 1, &workspace);
    if (result == dnn::success) result = f.cudnnBackendFinalize(pack.get());
    const std::lock_guard<std::mutex> lock(shared.mutex);
    if (result == dnn::success) result = f.cudnnSetStream(shared.handle, stream);
    if (result == dnn::success) result = f.cudnnBackendExecute(shared.handle, plan_.get(), pack.get());
    if (result != dnn::success)
        return {Code::call_failed, kernel + ": cudnnBackendExecute: " + said(f, result), ""};
    return {};
}

}  // namespace xpurt::cuda
