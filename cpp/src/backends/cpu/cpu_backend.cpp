// cpu/cpu_backend.cpp: kernels as function calls, with their tasks spread over the thread pool.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>

#include "runtime/fault_injection.h"
#include "xpurt/backend.h"
#include "xpurt/memory.h"
#include "xpurt/thread_pool.h"

namespace xpurt {
namespace {

struct CpuKernel final : PreparedKernel {
    KernelFunction function = nullptr;
    std::unique_ptr<LibraryKernel> library;
    std::shared_ptr<const Module> module;  // keeps the code mapped

    std::string implementation() const override { return library ? library->implementation() : ""; }
};

struct CpuRecording final : Recording {
    struct CpuCall {
        KernelFunction function;
        const LibraryKernel* library;
        const void* params;
        int64_t tasks;
        int parts;
        bool chunked;
        size_t first_arg;
        const KernelCall* call;
    };
    std::vector<CpuCall> calls;
    bool parallel = false;

    std::vector<CalledCode> called_code() const override {
        std::vector<CalledCode> code;
        for (const CpuCall& item : calls) {
            if (item.library == nullptr)
                code.push_back(code_at(reinterpret_cast<const void*>(item.function)));
            else
                code.push_back({item.library->implementation(), ""});
        }
        return code;
    }
};

// The tasks of one part. Each part starts with its own range and then takes chunks of the others, so that a
// core that is preempted in the middle of a kernel delays the run by a chunk only.
struct alignas(64) TaskRange {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
};

constexpr int64_t chunks_per_part = 4;

// One call in flight, shared by its threads. `ranges` has one entry per part; it is null for calls that are
// too small for chunks.
struct ParallelCall {
    const CpuRecording::CpuCall& call;
    void* const* args;
    const Submission& submission;
    int parts;
    TaskRange* ranges = nullptr;

    int64_t first(int part) const noexcept { return call.tasks * part / parts; }
};

void compute(void* context, int part) {
    const ParallelCall& work = *static_cast<const ParallelCall*>(context);
    char* const scratch = static_cast<char*>(work.submission.scratch) +
                          static_cast<size_t>(part) * work.submission.scratch_stride;
    const auto tasks = [&](int64_t begin, int64_t end) {
        work.call.function(work.args, work.call.params, begin, end, scratch);
    };
    if (work.ranges == nullptr) return tasks(work.first(part), work.first(part + 1));
    const int64_t chunk = std::max<int64_t>(work.call.tasks / (work.parts * chunks_per_part), 1);
    for (int i = 0; i < work.parts; ++i) {
        TaskRange& range = work.ranges[(part + i) % work.parts];
        for (int64_t begin; (begin = range.next.fetch_add(chunk, std::memory_order_relaxed)) < range.end;)
            tasks(begin, std::min(begin + chunk, range.end));
    }
}

class CpuBackend final : public Backend {
  public:
    explicit CpuBackend(int threads)
        : pool_(ThreadPool::shared(threads)), ranges_(new TaskRange[static_cast<size_t>(pool_->threads())]) {}
    const char* name() const noexcept override { return "cpu"; }
    int threads() const noexcept override { return pool_->threads(); }

    Result<Memory> allocate(size_t bytes) override {
        if (void* const block = MemoryPool::host().allocate(bytes)) return block;
        return Status{Code::no_memory, "cannot allocate " + std::to_string(bytes) + " bytes of memory", ""};
    }
    void release(Memory memory) noexcept override { MemoryPool::host().release(memory); }
    Status copy(Memory to, size_t to_offset, Memory from, size_t from_offset, size_t bytes,
                RunState*) override {
        if (bytes > 0)
            std::memmove(static_cast<char*>(to) + to_offset, static_cast<char*>(from) + from_offset, bytes);
        return {};
    }

    Result<std::unique_ptr<PreparedKernel>> prepare(const KernelCall& call,
                                                    const std::shared_ptr<const Module>& module) override {
        auto kernel = std::make_unique<CpuKernel>();
        if (!call.library.empty()) {
            KernelLibrary* const library = find_kernel_library(call.library);
            if (library == nullptr)
                return Status{Code::not_found, "kernel " + call.kernel + " needs the library " + call.library,
                              "Install it, or compile with a policy that forbids the kernel."};
            XPURT_ASSIGN_OR_RETURN(auto library_kernel, library->prepare(call, threads()));
            kernel->library = std::move(library_kernel);
            return with_fault(std::move(kernel), call);
        }
        kernel->module = module;
        void* const address = module ? module->symbol(symbol_for(call).c_str()) : nullptr;
        if (address == nullptr)
            return Status{Code::symbol_missing, "the program's object code has no " + call.symbol,
                          "Compile the model again."};
        kernel->function = reinterpret_cast<KernelFunction>(address);
        return with_fault(std::move(kernel), call);
    }

    Result<std::unique_ptr<Recording>> record(const std::vector<RecordedCall>& calls) override {
        auto recording = std::make_unique<CpuRecording>();
        for (const RecordedCall& item : calls) {
            const auto& kernel = static_cast<const CpuKernel&>(*item.kernel);
            const KernelCall& call = *item.call;
            const int64_t worthwhile = std::max<int64_t>(call.tasks / call.grain, 1);
            const int parts = kernel.library ? 1 : static_cast<int>(std::min<int64_t>(worthwhile, threads()));
            // Chunks cost a few atomic operations, which pay off if every part has several grains of work.
            const bool chunked = parts > 1 && worthwhile >= chunks_per_part * parts;
            recording->calls.push_back({kernel.function, kernel.library.get(), call.params.data(), call.tasks,
                                        parts, chunked, item.first_arg, &call});
            recording->parallel |= parts > 1;
        }
        return std::unique_ptr<Recording>(std::move(recording));
    }

    Status submit(const Recording& recording, const Submission& submission) override {
        const auto& list = static_cast<const CpuRecording&>(recording);
        // If another run has the workers, compute on this thread instead of waiting for all of that run's
        // kernels.
        const PoolLock team(*pool_, list.parallel);
        int64_t position = 0;
        const bool ranges = nvtx_calls();
        for (const CpuRecording::CpuCall& call : list.calls) {
            if (submission.is_cancelled()) return {Code::cancelled, "the run was cancelled", ""};
            const NvtxRange range(ranges, ranges ? text_of(*call.call) : std::string());
            if (submission.times == nullptr && submission.ring == nullptr) {
                XPURT_TRY(dispatch(call, submission, team.acquired));
                continue;
            }
            const int64_t start = now_ns();
            Status status = dispatch(call, submission, team.acquired);
            const int64_t duration = now_ns() - start;
            if (!status.ok()) return status;
            if (submission.times != nullptr) submission.times[position] = duration;
            if (submission.ring != nullptr) {
                const int64_t step = submission.first_call + position;
                submission.ring->record({start, duration, step, call.tasks, submission.names[step],
                                         thread_id(), EventKind::complete, 0});
            }
            ++position;
        }
        return {};
    }

    Status synchronize(RunState*) override { return {}; }

  private:
    static std::unique_ptr<PreparedKernel> with_fault(std::unique_ptr<CpuKernel> kernel,
                                                      const KernelCall& call) {
        if (const Fault fault = fault_for(call); fault != Fault::none)
            kernel->library = inject_fault(fault, call, kernel->function, std::move(kernel->library));
        return kernel;
    }

    struct PoolLock {
        ThreadPool& pool;
        const bool acquired;
        PoolLock(ThreadPool& which, bool wants) : pool(which), acquired(wants && pool.try_acquire()) {}
        ~PoolLock() {
            if (acquired) pool.release();
        }
    };

    Status dispatch(const CpuRecording::CpuCall& call, const Submission& submission, bool team) {
        if (call.tasks == 0) return {};
        void* const* const args = submission.args + call.first_arg;
        if (call.library != nullptr) return call.library->execute(args, submission.scratch);
        ParallelCall work{call, args, submission, team ? call.parts : 1};
        if (work.parts > 1) {
            if (call.chunked) split_tasks(work);
            pool_->run(work.parts, compute, &work);
        } else
            call.function(args, call.params, 0, call.tasks, submission.scratch);
        return call.call->scratch_bytes > 0 ? take_kernel_status(*call.call, submission, work.parts)
                                            : Status{};
    }

    // Called by the run that has acquired the pool, so ranges_ is not shared.
    void split_tasks(ParallelCall& work) const noexcept {
        work.ranges = ranges_.get();
        for (int part = 0; part < work.parts; ++part) {
            work.ranges[part].next.store(work.first(part), std::memory_order_relaxed);
            work.ranges[part].end = work.first(part + 1);
        }
    }

    // Return the error that a kernel left in the status of a thread, and clear it for the next run.
    static Status take_kernel_status(const KernelCall& call, const Submission& submission, int parts) {
        for (int part = 0; part < parts; ++part) {
            auto* const status =
                reinterpret_cast<KernelStatus*>(static_cast<char*>(submission.scratch) +
                                                static_cast<size_t>(part) * submission.scratch_stride) -
                1;
            if (status->kind == KernelStatus::fine) continue;
            const KernelStatus status_copy = *status;
            for (int other = part; other < parts; ++other)
                *(reinterpret_cast<KernelStatus*>(static_cast<char*>(submission.scratch) +
                                                  static_cast<size_t>(other) * submission.scratch_stride) -
                  1) = {};
            return status_of(status_copy, text_of(call));
        }
        return {};
    }

    const std::shared_ptr<ThreadPool> pool_;
    const std::unique_ptr<TaskRange[]> ranges_;
};

}  // namespace

std::shared_ptr<Backend> cpu_backend(int threads) { return std::make_shared<CpuBackend>(threads); }

}  // namespace xpurt
