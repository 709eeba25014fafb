// xpurt/executor.h: runs a plan on a backend. One for every device.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "xpurt/backend.h"

namespace xpurt {

// A plan in the core's words. Memory is a row of slots: 0 is the arena, then the inputs, the outputs, and
// what is fixed from run to run (weights, then states).
struct Plan {
    std::string name{};
    std::vector<KernelCall> calls{};
    int64_t arena_bytes = 0;
    int32_t inputs = 0, outputs = 0, weights = 0;
    int32_t batch = 0;  // calls per submission; 0: all in one
    std::shared_ptr<const Module> module{};
    // Bytes of each input, then of each output; needed where the host's arrays must be brought to a device.
    std::vector<int64_t> io_bytes{};

    // Outputs that are not computed in the caller's memory but copied there: an input or a state handed
    // through.
    struct OutputCopy {
        BufferRef from{};
        int32_t output = 0;  // index among the outputs
        int64_t bytes = 0;
    };
    std::vector<OutputCopy> output_copies{};

    int32_t first_input() const noexcept { return 1; }
    int32_t first_output() const noexcept { return 1 + inputs; }
    int32_t first_weight() const noexcept { return 1 + inputs + outputs; }
    int32_t slots() const noexcept { return 1 + inputs + outputs + weights; }
};

// What a plan reads from run to run: weights and states. Several executors may share one.
class WeightBindings {
  public:
    // `exclusive`: there are states among them, so runs take turns.
    WeightBindings(std::vector<Memory> memory, bool exclusive);
    const std::vector<Memory>& memory() const noexcept { return memory_; }
    uint64_t id() const noexcept { return id_; }
    // Runs over the same states go one after the other, on devices that queue their work too.
    struct StateLock {
        std::mutex mutex{};
        bool in_flight = false;  // the last run was queued in the order of `stream`, and nobody waited
        void* stream = nullptr;
    };
    StateLock* state_lock() const noexcept { return state_lock_.get(); }
    // Takes turns with the runs of `other` as well: both write the same states.
    void share_state_lock(const WeightBindings& other) { state_lock_ = other.state_lock_; }

  private:
    std::vector<Memory> memory_;
    uint64_t id_;
    std::shared_ptr<StateLock> state_lock_;
};

struct Counters {
    int64_t runs = 0;         // that ended well
    int64_t dispatches = 0;   // kernel calls of those
    int64_t prepared = 0;     // kernels looked up or compiled
    int64_t allocations = 0;  // blocks of device memory
    int64_t copies = 0;       // buffers that had to be copied
    int64_t sent = 0;         // bytes brought to the device
    int64_t fetched = 0;      // bytes brought back
    int64_t contexts = 0;     // arenas that exist
};

class Executor {
  public:
    // Prepares every kernel and records the plan. At most `contexts` runs are in flight at a time; each has
    // an arena.
    static Result<std::unique_ptr<Executor>> create(std::shared_ptr<Backend> backend, Plan plan,
                                                    int contexts);
    ~Executor();
    Executor(const Executor&) = delete;
    Executor& operator=(const Executor&) = delete;

    struct Run {
        const WeightBindings* weights = nullptr;
        const Memory* inputs = nullptr;  // as many as the plan has
        const Memory* outputs = nullptr;
        int64_t* times = nullptr;  // nanoseconds of each call, when not null
        EventRing* ring = nullptr;
        Observation* observation = nullptr;  // when not null: filled where the device's driver keeps a record
        const std::atomic<bool>* stop = nullptr;  // when not null: set it to end this run after its kernel
        bool host = false;    // inputs and outputs are the host's, the device's memory is not
        StreamOrder order{};  // not the context's own: the run is queued and nobody waits
    };
    // Allocates nothing once a context has run with the same `fixed`. Any thread; waits when all contexts are
    // busy.
    Status run(const Run& run);

    // Ends the runs in flight after the kernel that they are in.
    void cancel() noexcept { cancelled_.fetch_add(1); }
    // cancel(), wait for them, give memory back. Later runs say that the executor is closed. May be repeated.
    void close();

    const Plan& plan() const noexcept { return plan_; }
    // Of each call, what the library that computes it says it chose; "" for generated code.
    std::vector<std::string> implementations() const;
    Counters counters() const noexcept;

  private:
    struct Context;
    struct ContextSlot {
        std::atomic<unsigned> owner{0};  // 0: free; else 1 + the fork generation of who took it
        std::unique_ptr<Context> context{};
    };

    Executor(std::shared_ptr<Backend> backend, Plan plan, int contexts);
    Status prepare();
    static bool try_lock(ContextSlot& slot) noexcept;
    ContextSlot* try_acquire() noexcept;
    ContextSlot& acquire();
    void release(ContextSlot& slot) noexcept;
    Status make_context(ContextSlot& slot);
    Status check_overlap(const Run& run) const;
    Status run_in(Context& context, const Run& run);
    Status submit(Context& context, const Run& run);
    Status make_io_staging(Context& context);
    const uint32_t* names_for(EventRing& ring);

    const std::shared_ptr<Backend> backend_;
    const Plan plan_;
    std::vector<std::unique_ptr<PreparedKernel>> prepared_;
    std::vector<std::unique_ptr<Recording>> recordings_;
    std::vector<size_t> first_arg_;  // by call
    size_t arg_count_ = 0;
    size_t scratch_stride_ = 0;
    struct ArgumentPatch {
        size_t arg;
        BufferRef place;
    };
    std::vector<ArgumentPatch> patches_;  // arguments that change from run to run
    std::vector<size_t> io_offsets_;      // in a context's block of inputs and outputs on the device
    size_t io_staging_bytes_ = 0;

    std::unique_ptr<ContextSlot[]> slots_;
    const int slot_count_;
    std::mutex closing_;
    std::mutex waiting_mutex_;
    std::condition_variable freed_;
    std::atomic<int> waiting_{0};
    std::atomic<bool> closed_{false};
    std::atomic<uint64_t> cancelled_{0};
    std::atomic<int64_t> runs_{0}, allocations_{0}, copies_{0}, contexts_{0}, sent_{0}, fetched_{0};

    std::mutex ring_mutex_;
    EventRing* named_ring_ = nullptr;
    std::vector<uint32_t> names_;
};

}  // namespace xpurt
