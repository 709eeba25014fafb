// xpurt/backend.h: a device driver as the executor needs it: a few verbs. A new device implements these and
// gets contexts, states, counters, timing and cancelling from the one Executor.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "xpurt/kernel.h"
#include "xpurt/observation.h"
#include "xpurt/profiler.h"
#include "xpurt/status.h"

namespace xpurt {

// A handle of device memory: an address on the CPU, whatever the backend likes elsewhere.
using Memory = void*;

// Made by Backend::prepare: a kernel with everything looked up and compiled. Made by record: calls in the
// form in which the device takes them. Both are constant once made and may be used by several threads.
class PreparedKernel {
  public:
    virtual ~PreparedKernel() = default;
    // What runs, in the words of the library that brought it; "" for generated code.
    virtual std::string implementation() const { return ""; }
};
class Recording {
  public:
    virtual ~Recording() = default;
};

// What a backend keeps for one context of an executor: a stream, captured work, memory for copies. One run
// at a time; destroyed before the context's memory goes, when all that was submitted with it is done.
class RunState {
  public:
    virtual ~RunState() = default;
};

// In whose order a run's work goes: the context's own, at whose end the run waits; or the caller's stream,
// where it is queued and nobody waits.
struct StreamOrder {
    bool on_caller_stream = false;
    void* stream = nullptr;
};

struct RecordedCall {
    const PreparedKernel* kernel = nullptr;
    const KernelCall* call = nullptr;  // lives as long as the recording
    size_t first_arg = 0;              // index of its first argument in Bindings::args
};

// What one submission works on. All arrays belong to the executor's context and outlive the submission.
struct Submission {
    const Memory* slots = nullptr;  // by slot
    size_t slot_count = 0;
    void* const* args =
        nullptr;  // address of every argument of every call; meaningless where memory has no addresses
    void* scratch = nullptr;  // scratch_stride bytes for each thread
    size_t scratch_stride = 0;
    const std::atomic<uint64_t>* cancelled = nullptr;  // changes when runs in flight shall stop
    uint64_t cancel_seen = 0;
    const std::atomic<bool>* stop = nullptr;  // when not null: set to end this run alone

    bool is_cancelled() const noexcept {
        return cancelled->load(std::memory_order_relaxed) != cancel_seen ||
               (stop != nullptr && stop->load(std::memory_order_relaxed));
    }
    int64_t* times = nullptr;  // when not null: nanoseconds of each call of the recording
    EventRing* ring = nullptr;
    const uint32_t* names = nullptr;     // by call, for ring
    Observation* observation = nullptr;  // when not null: what the device's driver says that it did
    int64_t first_call = 0;              // position of the recording's first call in the plan
    RunState* state = nullptr;           // what open() made for this context
};

class Backend {
  public:
    virtual ~Backend() = default;
    virtual const char* name() const noexcept = 0;
    virtual int threads() const noexcept { return 1; }  // each gets Bindings::scratch_stride bytes

    virtual Result<Memory> allocate(size_t bytes) = 0;
    virtual void release(Memory memory) noexcept = 0;
    // Within the device, in the order of the state's run.
    virtual Status copy(Memory to, size_t to_offset, Memory from, size_t from_offset, size_t bytes,
                        RunState* state) = 0;

    // Devices whose work is queued and whose memory is not the host's do more than compute on the spot:
    // `queues()` says so, and then the executor opens a state for each context, begins and ends every run
    // with it, and brings arrays of the host there and back.
    virtual bool is_asynchronous() const noexcept { return false; }
    // Whether Memory is an address, so that two of them tell whether they overlap.
    virtual bool has_addresses() const noexcept { return true; }
    // Whether a submission fills Bindings::observation.
    virtual bool supports_observation() const noexcept { return false; }
    virtual Result<std::unique_ptr<RunState>> open() { return std::unique_ptr<RunState>(); }
    // Before anything of a run: its work comes after whatever the context still has in flight.
    virtual Status begin(RunState&, const StreamOrder&) { return {}; }
    // After everything of a run that goes in the caller's order: the context knows when it may be used again.
    virtual Status end(RunState&) { return {}; }
    // From the host, which may use `from` again at once; and back, where `to` is filled by
    // synchronize(state).
    virtual Status send(Memory, size_t, const void*, size_t, RunState&) { return no_transfers(); }
    virtual Status fetch(void*, Memory, size_t, size_t, RunState&) { return no_transfers(); }

    // Everything slow happens here, once. `module` may be null where no code is loaded.
    virtual Result<std::unique_ptr<PreparedKernel>> prepare(const KernelCall& call,
                                                            const std::shared_ptr<const Module>& module) = 0;
    virtual Result<std::unique_ptr<Recording>> record(const std::vector<RecordedCall>& calls) = 0;
    virtual Status submit(const Recording& recording, const Submission& submission) = 0;

    // Returns when everything submitted with `state` is done; with null, everything submitted.
    virtual Status synchronize(RunState* state) = 0;

  private:
    static Status no_transfers() { return {Code::unsupported, "this backend computes in host memory", ""}; }
};

// Generated code and libraries' kernels on `threads` threads of the host.
std::shared_ptr<Backend> cpu_backend(int threads);

// Computes nothing and remembers every dispatch, so that a test can count them.
class NullBackend : public Backend {
  public:
    struct Dispatch {
        std::string kernel{}, symbol{};
        int64_t tasks = 0;
        size_t args = 0;
        std::vector<uint64_t> params{};
    };
    virtual std::vector<Dispatch> dispatches() const = 0;
    virtual void forget() = 0;
};
std::shared_ptr<NullBackend> null_backend();

}  // namespace xpurt
