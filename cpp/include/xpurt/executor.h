// xpurt/executor.h: execution of a plan on any backend.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "xpurt/arena_pool.h"
#include "xpurt/backend.h"
#include "xpurt/memory.h"

namespace xpurt {

// An execution plan. Its memory is an array of slots: slot 0 is the arena, followed by the inputs, the
// outputs, the weights and the states.
struct Plan {
    std::string name{};
    std::vector<KernelCall> calls{};
    int64_t arena_bytes = 0;
    int32_t inputs = 0, outputs = 0, weights = 0;
    int32_t batch = 0;  // calls per submission; 0 = all calls in one
    std::shared_ptr<const Module> module{};
    // Size of each input, then of each output. Required where host arrays are copied to a device.
    std::vector<int64_t> io_bytes{};

    // An output that is copied rather than computed: an input or a state that the program returns.
    struct OutputCopy {
        BufferRef from{};
        int32_t output = 0;  // index among the outputs
        int64_t bytes = 0;
    };
    std::vector<OutputCopy> output_copies{};

    // Parts of the arena, each with the first and the last call that use it. During a call, the workspace of
    // its library may take what no part holds. Without parts, workspaces follow the arena.
    struct ArenaPart {
        int64_t offset = 0, bytes = 0, first = 0, last = 0;
    };
    std::vector<ArenaPart> arena_parts{};

    int32_t first_input() const noexcept { return 1; }
    int32_t first_output() const noexcept { return 1 + inputs; }
    int32_t first_weight() const noexcept { return 1 + inputs + outputs; }
    int32_t slots() const noexcept { return 1 + inputs + outputs + weights; }
};

// The addresses of a plan's weights and states. Several executors may share one. It does not own the memory.
class WeightBindings {
  public:
    // `exclusive`: true if there are states, whose runs must be serialized.
    WeightBindings(std::vector<Memory> memory, bool exclusive);
    const std::vector<Memory>& memory() const noexcept { return memory_; }
    uint64_t id() const noexcept { return id_; }
    // Serializes the runs over one set of states, including runs that a device has queued.
    struct StateLock {
        std::mutex mutex{};
        bool in_flight = false;  // the last run was queued on `stream` without waiting
        void* stream = nullptr;
    };
    StateLock* state_lock() const noexcept { return state_lock_.get(); }
    // Serialize with the runs of `other`, which write the same states.
    void share_state_lock(const WeightBindings& other) { state_lock_ = other.state_lock_; }

  private:
    std::vector<Memory> memory_;
    uint64_t id_;
    std::shared_ptr<StateLock> state_lock_;
};

struct Counters {
    int64_t runs = 0;         // runs that succeeded
    int64_t dispatches = 0;   // kernel calls of those runs
    int64_t prepared = 0;     // kernels looked up or compiled
    int64_t allocations = 0;  // blocks of device memory allocated
    int64_t copies = 0;       // outputs that were copied
    int64_t sent = 0;         // bytes copied to the device
    int64_t fetched = 0;      // bytes copied from the device
    int64_t contexts = 0;     // existing contexts, each with an arena
};

class Executor {
  public:
    // Prepare every kernel and record the plan. At most `contexts` runs are in flight at a time. Each takes
    // an arena of `arenas`, whose backend is on the same device; without a pool each has an arena of its own.
    static Result<std::unique_ptr<Executor>> create(std::shared_ptr<Backend> backend, Plan plan, int contexts,
                                                    std::shared_ptr<ArenaPool> arenas = nullptr);
    ~Executor();
    Executor(const Executor&) = delete;
    Executor& operator=(const Executor&) = delete;

    struct Run {
        const WeightBindings* weights = nullptr;
        const Memory* inputs = nullptr;  // one for each input of the plan
        const Memory* outputs = nullptr;
        int64_t* times = nullptr;  // if not null: receives the nanoseconds of each call
        EventRing* ring = nullptr;
        Observation* observation = nullptr;  // if not null: receives what the device driver recorded
        const std::atomic<bool>* stop =
            nullptr;          // if not null: set it to stop this run after the current kernel
        bool host = false;    // inputs and outputs are host arrays of a device with its own memory
        StreamOrder order{};  // on the caller's stream: the run is queued and does not wait
        // If not null: the caller's memory of arena_bytes() for this run, aligned to 256 bytes. The caller
        // may free it in the order of its stream.
        Memory arena = nullptr;
    };
    // Run the plan. Thread-safe; waits while all contexts are busy. Once a context has run with the same
    // `weights`, a run allocates nothing.
    Status run(const Run& run);

    // Bytes that a run needs for intermediate values and for the workspaces of libraries.
    size_t arena_bytes() const noexcept { return arena_bytes_; }
    // The same, and copies of host arrays on a device with its own memory: what a run takes from a pool.
    size_t run_bytes(bool host) const noexcept {
        return host ? staging_offset() + io_staging_bytes_ : arena_bytes();
    }

    // Stop the runs in flight after their current kernel.
    void cancel() noexcept { cancelled_.fetch_add(1); }
    // Cancel and wait for the runs in flight, then release all memory. Later runs fail with Code::cancelled.
    // Idempotent.
    void close();

    const Plan& plan() const noexcept { return plan_; }
    // For each call, the implementation that its library reports; "" for generated code.
    std::vector<std::string> implementations() const;
    // For each call, the code that a run executes; empty for devices whose drivers report it. It is read from
    // the recordings that runs submit.
    std::vector<CalledCode> called_code() const;
    Counters counters() const noexcept;

  private:
    struct Context;
    struct ContextSlot {
        std::atomic<unsigned> owner{0};  // 0 = free; else 1 + the fork generation of the owner
        std::unique_ptr<Context> context{};
    };

    Executor(std::shared_ptr<Backend> backend, Plan plan, int contexts, std::shared_ptr<ArenaPool> arenas);
    Status prepare();
    Status prepare_calls();
    size_t place_workspace(size_t call);
    static bool try_lock(ContextSlot& slot) noexcept;
    ContextSlot* try_acquire() noexcept;
    ContextSlot& acquire();
    void release(ContextSlot& slot) noexcept;
    Result<std::unique_ptr<Context>> make_context();
    Status run_captured(uint64_t capture, const Run& run);
    Status closed() const;
    Status check_overlap(const Run& run) const;
    Status run_over(Context& context, const Run& run, bool keep);
    Status run_in(Context& context, const Run& run, ArenaPool::Arena* pooled, bool* followed = nullptr);
    Status submit(Context& context, const Run& run, bool pooled);
    Status make_io_staging(Context& context);
    Status make_arena(Context& context, const Run& run);
    size_t staging_offset() const noexcept { return whole_blocks(arena_bytes_); }
    const uint32_t* names_for(EventRing& ring);

    const std::shared_ptr<Backend> backend_;
    const std::shared_ptr<ArenaPool> arenas_;  // null: each context has an arena of its own
    const Plan plan_;
    std::vector<std::unique_ptr<PreparedKernel>> prepared_;
    std::vector<std::unique_ptr<Recording>> recordings_;
    std::vector<size_t> first_arg_;  // indexed by call
    size_t arg_count_ = 0;
    size_t scratch_stride_ = 0;
    struct ArgumentPatch {
        size_t arg;
        BufferRef ref;
    };
    std::vector<ArgumentPatch> patches_;        // arguments that change from run to run: inputs and outputs
    std::vector<ArgumentPatch> arena_patches_;  // arguments in the arena, which the caller may provide
    size_t arena_bytes_ = 0;                    // with the workspaces of libraries
    std::vector<size_t> io_offsets_;            // offset of each input and output in Context::io_staging
    size_t io_staging_bytes_ = 0;

    std::unique_ptr<ContextSlot[]> slots_;
    const int slot_count_;
    std::mutex closing_;
    std::mutex waiting_mutex_;
    std::condition_variable freed_;
    std::atomic<int> waiting_{0};
    // The context of each graph capture of a caller's stream. The graph may be launched at any later time, so
    // its memory is used by nothing else.
    std::mutex captured_mutex_;
    std::map<uint64_t, std::unique_ptr<Context>> captured_;
    std::atomic<bool> closed_{false};
    std::atomic<uint64_t> cancelled_{0};
    std::atomic<int64_t> runs_{0}, allocations_{0}, copies_{0}, contexts_{0}, sent_{0}, fetched_{0};

    std::mutex ring_mutex_;
    EventRing* named_ring_ = nullptr;
    std::vector<uint32_t> names_;
};

}  // namespace xpurt
