// null/null_backend.cpp: a backend that computes nothing and records dispatches.
#include <cstring>
#include <mutex>

#include "xpurt/backend.h"
#include "xpurt/memory.h"

namespace xpurt {
namespace {

struct NullRecording final : Recording {
    std::vector<NullBackend::Dispatch> dispatches;
};

class Null final : public NullBackend {
  public:
    const char* name() const noexcept override { return "null"; }

    Result<Memory> allocate(size_t bytes) override {
        if (void* const block = MemoryPool::host().allocate(bytes)) return block;
        return Status{Code::no_memory, "cannot allocate " + std::to_string(bytes) + " bytes of memory", ""};
    }
    void release(Memory memory) noexcept override { MemoryPool::host().release(memory); }
    Status copy(Memory, size_t, Memory, size_t, size_t, RunState*) override { return {}; }

    Result<std::unique_ptr<PreparedKernel>> prepare(const KernelCall&,
                                                    const std::shared_ptr<const Module>&) override {
        return std::make_unique<PreparedKernel>();
    }
    Result<std::unique_ptr<Recording>> record(const std::vector<RecordedCall>& calls) override {
        auto recording = std::make_unique<NullRecording>();
        for (const RecordedCall& item : calls)
            recording->dispatches.push_back({item.call->kernel, item.call->symbol, item.call->tasks,
                                             item.call->args.size(), item.call->params});
        return std::unique_ptr<Recording>(std::move(recording));
    }
    Status submit(const Recording& recording, const Submission& submission) override {
        const auto& list = static_cast<const NullRecording&>(recording).dispatches;
        if (submission.times != nullptr) std::memset(submission.times, 0, list.size() * sizeof(int64_t));
        const std::lock_guard<std::mutex> lock(mutex_);
        seen_.insert(seen_.end(), list.begin(), list.end());
        return {};
    }
    Status synchronize(RunState*) override { return {}; }

    std::vector<Dispatch> dispatches() const override {
        const std::lock_guard<std::mutex> lock(mutex_);
        return seen_;
    }
    void forget() override {
        const std::lock_guard<std::mutex> lock(mutex_);
        seen_.clear();
    }

  private:
    mutable std::mutex mutex_;
    std::vector<Dispatch> seen_;
};

}  // namespace

std::shared_ptr<NullBackend> null_backend() { return std::make_shared<Null>(); }

}  // namespace xpurt
