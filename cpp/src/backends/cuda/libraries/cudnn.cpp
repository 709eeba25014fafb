// cuda/libraries/cudnn.cpp: cuDNN's graph API as a library of kernels: `conv` and `attention`.
//
// Options of every call beside its own: engine (cuDNN's global index; -1: the heuristic's first that sums as
// we do), workspace_bytes, in (dtype).
#include <cstdio>
#include <map>
#include <type_traits>

#include "backends/cuda/libraries/cudnn_graph.h"

namespace xpurt::cuda {
namespace {

struct Word {
    const char* symbol;
    const char* what;
    CudnnCheck check;
    CudnnBuild build;
};
constexpr Word words[] = {
    {"conv", "convolution", check_convolution_call, build_convolution},
    {"attention", "attention", check_attention_call, build_attention},
};

// Calls of equal text compute with one plan. Names and strings are written with their length, so that no
// option can be written as the text of others.
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

class Cudnn final : public StreamLibrary {
  public:
    std::string version() const override {
        const CudnnFunctions* const f = functions(nullptr);
        if (f == nullptr) return "";
        const size_t v = f->cudnnGetVersion();
        return std::to_string(v / 10000) + "." + std::to_string(v / 100 % 100) + "." +
               std::to_string(v % 100);
    }

    Result<std::unique_ptr<StreamKernel>> prepare(const KernelCall& call, Device& device) override {
        Status why;
        const CudnnFunctions* const f = functions(&why);
        if (f == nullptr) return why;
        const Word* word = nullptr;
        for (const Word& one : words)
            if (call.symbol == one.symbol) word = &one;
        if (word == nullptr)
            return Status{Code::unsupported, call.kernel + ": cuDNN computes no " + call.symbol + " here",
                          ""};
        const auto in = option<std::string>(call, "in", "float32");
        if (cudnn_type(in) < 0) return Status{Code::invalid, call.kernel + ": no cuDNN type for " + in, ""};
        if (Status status = word->check(call, in); !status.ok()) return status;
        CudnnShared* shared = nullptr;
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            std::unique_ptr<CudnnShared>& found = shared_[device.index];
            if (!found) found = std::make_unique<CudnnShared>();
            if (found->handle == nullptr)
                if (const int result = f->cudnnCreate(&found->handle); result != dnn::success)
                    return Status{Code::call_failed,
                                  std::string("cudnnCreate: ") + f->cudnnGetErrorString(result), ""};
            shared = found.get();
        }
        auto plan = plan_of(*f, *shared, call, *word);
        if (!plan.status.ok()) return plan.status;
        return std::unique_ptr<StreamKernel>(
            std::make_unique<CudnnKernel>(*shared, call.kernel, std::move(plan.value)));
    }

  private:
    static const CudnnFunctions* functions(Status* why) {
        return functions_of<CudnnFunctions>(cudnn_library(), why);
    }

    // The plan of a call: that of one before it where the two are equal.
    static Result<std::shared_ptr<const CudnnPlan>> plan_of(const CudnnFunctions& f, CudnnShared& shared,
                                                            const KernelCall& call, const Word& word) {
        // Buffers start at multiples of 16; a part of one (a slice, an operand of a concatenation) where it
        // lies.
        std::vector<int64_t> alignment;
        for (const Place& place : call.args) {
            int64_t most = 16;
            while (place.offset % most != 0) most /= 2;
            alignment.push_back(most);
        }
        const std::string text = text_of_options(call, alignment);
        const std::lock_guard<std::mutex> lock(shared.mutex);
        if (auto known = shared.plans[text].lock()) return known;
        CudnnGraph graph(f, shared.handle, std::move(alignment));
        word.build(graph, call, f.cudnnGetVersion());
        auto plan = CudnnPlan::choose(std::move(graph), call, word.what);
        if (!plan.status.ok()) return plan;
        shared.plans[text] = plan.value;
        shared.recent.push_back(plan.value);
        if (shared.recent.size() > CudnnShared::most_recent) shared.recent.pop_front();
        return plan;
    }

    std::mutex mutex_;
    std::map<int, std::unique_ptr<CudnnShared>> shared_;
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
