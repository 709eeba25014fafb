// cpu/cpu_backend.cpp: kernels as function calls, their tasks spread over the thread pool.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>

#include "runtime/wrong_kernel.h"
#include "xpurt/backend.h"
#include "xpurt/memory.h"
#include "xpurt/thread_pool.h"

namespace xpurt {
namespace {

struct CpuKernel final : Prepared {
    KernelFunction function = nullptr;
    std::unique_ptr<LibraryKernel> library;
    std::shared_ptr<const Module> module;  // keeps the code mapped

    std::string implementation() const override { return library ? library->implementation() : ""; }
};

struct CpuRecording final : Recording {
    struct Call {
        KernelFunction function;
        const LibraryKernel* library;
        const void* params;
        int64_t tasks;
        int parts;
        bool chunked;
        size_t first_arg;
        const KernelCall* named;
    };
    std::vector<Call> calls;
    bool parallel = false;
};

// A part's share of the tasks: it begins with its own, and whoever is done helps the others. A core that is
// taken away in the middle of a kernel then costs a chunk, not half of the kernel.
struct alignas(64) Share {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
};

constexpr int64_t chunks_per_share = 4;

// One call in flight, as the threads see it. `shares`: one per part; null for calls too small to be chunked.
struct Work {
    const CpuRecording::Call& call;
    void* const* args;
    const Bindings& bindings;
    int parts;
    Share* shares = nullptr;

    int64_t first(int part) const noexcept { return call.tasks * part / parts; }
};

void compute(void* context, int part) {
    const Work& work = *static_cast<const Work*>(context);
    char* const scratch =
        static_cast<char*>(work.bindings.scratch) + static_cast<size_t>(part) * work.bindings.scratch_stride;
    const auto tasks = [&](int64_t begin, int64_t end) {
        work.call.function(work.args, work.call.params, begin, end, scratch);
    };
    if (work.shares == nullptr) return tasks(work.first(part), work.first(part + 1));
    const int64_t chunk = std::max<int64_t>(work.call.tasks / (work.parts * chunks_per_share), 1);
    for (int i = 0; i < work.parts; ++i) {
        Share& share = work.shares[(part + i) % work.parts];
        for (int64_t begin; (begin = share.next.fetch_add(chunk, std::memory_order_relaxed)) < share.end;)
            tasks(begin, std::min(begin + chunk, share.end));
    }
}

class CpuBackend final : public Backend {
  public:
    explicit CpuBackend(int threads)
        : pool_(ThreadPool::shared(threads)), shares_(new Share[static_cast<size_t>(pool_->threads())]) {}
    const char* name() const noexcept override { return "cpu"; }
    int threads() const noexcept override { return pool_->threads(); }

    Result<Memory> allocate(size_t bytes) override {
        if (void* const block = MemoryPool::host().allocate(bytes)) return block;
        return Status{Code::no_memory, "no " + std::to_string(bytes) + " bytes of memory", ""};
    }
    void release(Memory memory) noexcept override { MemoryPool::host().release(memory); }
    Status copy(Memory to, size_t to_offset, Memory from, size_t from_offset, size_t bytes,
                RunState*) override {
        if (bytes > 0)
            std::memmove(static_cast<char*>(to) + to_offset, static_cast<char*>(from) + from_offset, bytes);
        return {};
    }

    Result<std::unique_ptr<Prepared>> prepare(const KernelCall& call,
                                              const std::shared_ptr<const Module>& module) override {
        auto kernel = std::make_unique<CpuKernel>();
        if (!call.library.empty()) {
            KernelLibrary* const library = find_kernel_library(call.library);
            if (library == nullptr)
                return Status{Code::not_found, "kernel " + call.kernel + " needs the library " + call.library,
                              "Install it, or compile with a policy that forbids the kernel."};
            auto made = library->prepare(call, threads());
            if (!made.status.ok()) return made.status;
            kernel->library = std::move(made.value);
            return finished(std::move(kernel), call);
        }
        kernel->module = module;
        void* const address = module ? module->symbol(call.symbol.c_str()) : nullptr;
        if (address == nullptr)
            return Status{Code::symbol_missing, "the program's object code has no " + call.symbol,
                          "Compile the model again."};
        kernel->function = reinterpret_cast<KernelFunction>(address);
        return finished(std::move(kernel), call);
    }

    Result<std::unique_ptr<Recording>> record(const std::vector<RecordedCall>& calls) override {
        auto recording = std::make_unique<CpuRecording>();
        for (const RecordedCall& item : calls) {
            const auto& kernel = static_cast<const CpuKernel&>(*item.kernel);
            const KernelCall& call = *item.call;
            const int64_t worthwhile = std::max<int64_t>(call.tasks / call.grain, 1);
            const int parts = kernel.library ? 1 : static_cast<int>(std::min<int64_t>(worthwhile, threads()));
            // What is worth several threads' while several times over is worth the chunks' few atomics.
            const bool chunked = parts > 1 && worthwhile >= chunks_per_share * parts;
            recording->calls.push_back({kernel.function, kernel.library.get(), call.params.data(), call.tasks,
                                        parts, chunked, item.first_arg, &call});
            recording->parallel |= parts > 1;
        }
        return std::unique_ptr<Recording>(std::move(recording));
    }

    Status submit(const Recording& recording, const Bindings& bindings) override {
        const auto& list = static_cast<const CpuRecording&>(recording);
        // Another run has the workers: this one goes on alone, rather than wait for all of the other's
        // kernels.
        const Team team(*pool_, list.parallel);
        int64_t position = 0;
        const bool ranges = nvtx_calls();
        for (const CpuRecording::Call& call : list.calls) {
            if (bindings.cancelled_by_now()) return {Code::cancelled, "the run was cancelled", ""};
            const NvtxRange range(ranges, ranges ? text_of(*call.named) : std::string());
            if (bindings.times == nullptr && bindings.ring == nullptr) {
                if (Status status = dispatch(call, bindings, team.mine); !status.ok()) return status;
                continue;
            }
            const int64_t start = now_ns();
            Status status = dispatch(call, bindings, team.mine);
            const int64_t duration = now_ns() - start;
            if (!status.ok()) return status;
            if (bindings.times != nullptr) bindings.times[position] = duration;
            if (bindings.ring != nullptr) {
                const int64_t step = bindings.first_call + position;
                bindings.ring->record({start, duration, step, call.tasks, bindings.names[step], thread_id(),
                                       EventKind::complete, 0});
            }
            ++position;
        }
        return {};
    }

    Status synchronize(RunState*) override { return {}; }

  private:
    static std::unique_ptr<Prepared> finished(std::unique_ptr<CpuKernel> kernel, const KernelCall& call) {
        if (const Fault fault = fault_of(call); fault != Fault::none)
            kernel->library = made_wrong(fault, call, kernel->function, std::move(kernel->library));
        return kernel;
    }

    struct Team {
        ThreadPool& pool;
        const bool mine;
        Team(ThreadPool& which, bool wanted) : pool(which), mine(wanted && pool.try_acquire()) {}
        ~Team() {
            if (mine) pool.release();
        }
    };

    Status dispatch(const CpuRecording::Call& call, const Bindings& bindings, bool team) {
        if (call.tasks == 0) return {};
        void* const* const args = bindings.args + call.first_arg;
        if (call.library != nullptr) return call.library->execute(args, bindings.scratch);
        Work work{call, args, bindings, team ? call.parts : 1};
        if (work.parts > 1) {
            if (call.chunked) deal(work);
            pool_->run(work.parts, compute, &work);
        } else
            call.function(args, call.params, 0, call.tasks, bindings.scratch);
        return call.named->scratch_bytes > 0 ? complaint(*call.named, bindings, work.parts) : Status{};
    }

    // Only the run that has the pool comes here, so the shares are its own.
    void deal(Work& work) const noexcept {
        work.shares = shares_.get();
        for (int part = 0; part < work.parts; ++part) {
            work.shares[part].next.store(work.first(part), std::memory_order_relaxed);
            work.shares[part].end = work.first(part + 1);
        }
    }

    // What a kernel left in the status of a thread; the status is cleared for the next run.
    static Status complaint(const KernelCall& call, const Bindings& bindings, int parts) {
        for (int part = 0; part < parts; ++part) {
            auto* const status =
                reinterpret_cast<KernelStatus*>(static_cast<char*>(bindings.scratch) +
                                                static_cast<size_t>(part) * bindings.scratch_stride) -
                1;
            if (status->kind == KernelStatus::fine) continue;
            const KernelStatus found = *status;
            for (int other = part; other < parts; ++other)
                *(reinterpret_cast<KernelStatus*>(static_cast<char*>(bindings.scratch) +
                                                  static_cast<size_t>(other) * bindings.scratch_stride) -
                  1) = {};
            return status_of(found, text_of(call));
        }
        return {};
    }

    const std::shared_ptr<ThreadPool> pool_;
    const std::unique_ptr<Share[]> shares_;
};

}  // namespace

std::shared_ptr<Backend> cpu_backend(int threads) { return std::make_shared<CpuBackend>(threads); }

}  // namespace xpurt
