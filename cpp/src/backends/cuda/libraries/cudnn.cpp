// cuda/libraries/cudnn.cpp: cuDNN's graph API as a kernel library: `conv` and `attention`.
//
// Options of every call in addition to its own: engine (cuDNN's global index; -1: any with the required
// precision), choice (index among the configurations that the heuristics offer of those; -1: the first that
// has a plan), workspace_bytes, in (dtype).
#include <cstdio>
#include <map>
#include <type_traits>

#include "backends/cuda/libraries/cudnn_graph.h"

namespace xpurt::cuda {
namespace {

struct CudnnOperation {
    const char* symbol;
    const char* what;
    CudnnCheck check;
    CudnnBuild build;
};
constexpr CudnnOperation operations[] = {
    {"conv", "convolution", check_convolution_call, build_convolution},
    {"attention", "attention", check_attention_call, build_attention},
};

// The key of a plan: calls with equal keys share a plan. Names and strings are prefixed with their length, so
// that two different calls never have equal keys.
std::string text_of_options(const KernelCall& call, const std::vector<int64_t>& alignment) {
    std::string text = call.symbol;
    const auto add = [&](const auto& value) {
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, std::string>) {
            text += " " + std::to_string(value.size()) + ":" + value;
        } else if constexpr (std::is_same_v<T, double>) {
            char bits[40];
            std::snprintf(bits, sizeof bits, " %a", value);
            text += bits;
        } else {
            text += " " + std::to_string(value);
        }
    };
    const auto add_all = [&](const auto& value) {
        if constexpr (std::is_same_v<std::decay_t<decltype(value)>, Dims> ||
                      std::is_same_v<std::decay_t<decltype(value)>, std::vector<double>>) {
            for (const auto& one : value) add(one);
        } else {
            add(value);
        }
    };
    for (const auto& [name, value] : call.options) {
        text += ";" + std::to_string(name.size()) + ":" + name;
        std::visit(add_all, value);
    }
    text += ";aligned";
    for (const int64_t bytes : alignment) add(bytes);
    return text;
}

class CudnnKernel final : public StreamKernel {
  public:
    CudnnKernel(CudnnShared& shared, std::string kernel, std::shared_ptr<const CudnnPlan> plan)
        : shared_(shared), kernel_(std::move(kernel)), plan_(std::move(plan)) {}

    Status launch(void* const* args, void* workspace, CUstream stream) const override {
        return plan_->run(shared_, kernel_, args, workspace, stream);
    }
    size_t workspace_bytes() const override { return static_cast<size_t>(plan_->workspace()); }
    std::string implementation() const override { return plan_->implementation(); }

  private:
    CudnnShared& shared_;
    std::string kernel_;
    std::shared_ptr<const CudnnPlan> plan_;
};

class CudnnLibrary final : public StreamLibrary {
  public:
    std::string version() const override {
        const CudnnApi* const f = api(nullptr);
        if (f == nullptr) return "";
        const size_t v = f->cudnnGetVersion();
        return std::to_string(v / 10000) + "." + std::to_string(v / 100 % 100) + "." +
               std::to_string(v % 100);
    }

    Result<std::unique_ptr<StreamKernel>> prepare(const KernelCall& call, Device& device) override {
        Status reason;
        const CudnnApi* const f = api(&reason);
        if (f == nullptr) return reason;
        const CudnnOperation* operation = nullptr;
        for (const CudnnOperation& one : operations)
            if (call.symbol == one.symbol) operation = &one;
        if (operation == nullptr)
            return Status{Code::unsupported, call.kernel + ": cuDNN computes no " + call.symbol + " here",
                          ""};
        const auto in = option<std::string>(call, "in", "float32");
        if (cudnn_type(in) < 0) return Status{Code::invalid, call.kernel + ": no cuDNN type for " + in, ""};
        XPURT_TRY(operation->check(call, in));
        CudnnShared* shared = nullptr;
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            std::unique_ptr<CudnnShared>& entry = shared_[device.index];
            if (!entry) entry = std::make_unique<CudnnShared>();
            if (entry->handle == nullptr) {
                XPURT_ASSIGN_OR_RETURN(entry->handle, new_handle(*f));
            }
            shared = entry.get();
        }
        XPURT_ASSIGN_OR_RETURN(const std::string origin, origin_of_plans(*f, device));
        XPURT_ASSIGN_OR_RETURN(auto plan, plan_of(*f, *shared, call, *operation, origin));
        return std::unique_ptr<StreamKernel>(
            std::make_unique<CudnnKernel>(*shared, call.kernel, std::move(plan)));
    }

  private:
    static const CudnnApi* api(Status* reason) { return load_api<CudnnApi>(cudnn_library(), reason); }

    // What a stored plan depends on besides its call: this library's choice of engines, cuDNN, driver,
    // device.
    static Result<std::string> origin_of_plans(const CudnnApi& f, const Device& device) {
        int driver = 0;
        XPURT_TRY(device.check(device.driver.cuDriverGetVersion(&driver), "cuDriverGetVersion"));
        return "plans " + std::to_string(CudnnPlan::format) + ", cudnn " +
               std::to_string(f.cudnnGetVersion()) + ", driver " + std::to_string(driver) + ", " +
               device.name + ", " + std::to_string(device.capability) + ", " +
               std::to_string(device.multiprocessors) + ": ";
    }

    // A thread's turn to build the plan of a key, with a handle. Others that want the same plan wait for its
    // end.
    struct BuildingTurn {
        CudnnShared& shared;
        const std::string& text;
        dnn::Handle handle;
        ~BuildingTurn() {
            if (handle == nullptr) return;
            const std::lock_guard<std::mutex> lock(shared.mutex);
            shared.idle.push_back(handle);
            shared.building.erase(text);
            shared.built.notify_all();
        }
    };

    // The plan of a call; equal calls share one, whose stores each keep it.
    static Result<std::shared_ptr<const CudnnPlan>> plan_of(const CudnnApi& f, CudnnShared& shared,
                                                            const KernelCall& call,
                                                            const CudnnOperation& operation,
                                                            const std::string& origin) {
        // Buffers are aligned to 16 bytes; an argument with an offset (a slice, an operand of a
        // concatenation) may be aligned to less.
        std::vector<int64_t> alignment;
        for (const BufferRef& ref : call.args) {
            int64_t alignment_of_arg = 16;
            while (ref.offset % alignment_of_arg != 0) alignment_of_arg /= 2;
            alignment.push_back(alignment_of_arg);
        }
        const std::string text = text_of_options(call, alignment);
        BuildingTurn turn{shared, text, nullptr};
        {
            std::unique_lock<std::mutex> lock(shared.mutex);
            shared.built.wait(lock, [&] { return shared.building.count(text) == 0; });
            CudnnShared::Entry& entry = shared.plans[text];
            if (auto cached = entry.plan.lock()) {
                const PlanStore* const store = call.plan_store.get();
                const bool is_kept = store == nullptr || !entry.stores.insert(store->name).second;
                // The lock is held: a thread that runs the plan holds it, too.
                const std::string kept = is_kept ? "" : cached->text();
                lock.unlock();
                if (!kept.empty() && entry_of(*store, origin + text).empty())
                    store->put(origin + text, head_of(origin + text) + kept);
                return cached;
            }
            if (shared.idle.empty()) {
                XPURT_ASSIGN_OR_RETURN(turn.handle, new_handle(f));
            } else {
                turn.handle = shared.idle.back();
                shared.idle.pop_back();
            }
            shared.building.insert(text);
        }
        auto plan = new_plan(f, turn.handle, call, operation, alignment, origin + text);
        if (!plan.status.ok()) return plan;
        const std::lock_guard<std::mutex> lock(shared.mutex);
        CudnnShared::Entry& entry = shared.plans[text];
        entry.plan = plan.value;
        entry.stores.clear();
        if (call.plan_store) entry.stores.insert(call.plan_store->name);
        shared.recent.push_back(plan.value);
        if (shared.recent.size() > CudnnShared::max_recent) shared.recent.pop_front();
        return plan;
    }

    // The first line of an entry names its key, so that no other plan is taken for it.
    static std::string head_of(const std::string& key) { return key + "\n"; }
    // The plan of a key in a store; "" without one.
    static std::string entry_of(const PlanStore& store, const std::string& key) {
        const std::string entry = store.get(key), head = head_of(key);
        return entry.compare(0, head.size(), head) == 0 ? entry.substr(head.size()) : "";
    }

    // Restore a plan from the call's store, or build one and store it.
    static Result<std::shared_ptr<const CudnnPlan>> new_plan(const CudnnApi& f, dnn::Handle handle,
                                                             const KernelCall& call,
                                                             const CudnnOperation& operation,
                                                             const std::vector<int64_t>& alignment,
                                                             const std::string& key) {
        const auto built = [&] {
            CudnnGraph graph(f, handle, alignment);
            operation.build(graph, call, f.cudnnGetVersion());
            return graph;
        };
        const PlanStore* const store = call.plan_store.get();
        if (store != nullptr)
            if (const std::string kept = entry_of(*store, key); !kept.empty())
                if (auto restored = CudnnPlan::restore(built(), call, kept)) return restored;
        auto plan = CudnnPlan::choose(built(), call, operation.what);
        if (plan.status.ok() && store != nullptr)
            if (const std::string text = plan.value->text(); !text.empty())
                store->put(key, head_of(key) + text);
        return plan;
    }

    static Result<dnn::Handle> new_handle(const CudnnApi& f) {
        dnn::Handle handle = nullptr;
        if (const int result = f.cudnnCreate(&handle); result != dnn::success)
            return Status{Code::call_failed, std::string("cudnnCreate: ") + f.cudnnGetErrorString(result),
                          ""};
        return handle;
    }

    std::mutex mutex_;
    std::map<int, std::unique_ptr<CudnnShared>> shared_;
};

}  // namespace

std::unique_ptr<StreamLibrary> make_cudnn() { return std::make_unique<CudnnLibrary>(); }

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
