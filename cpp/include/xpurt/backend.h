// xpurt/backend.h: the interface between the executor and a device driver. A backend for a new device
// implements it and gets contexts, states, counters, timing and cancellation from the Executor.
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

// A handle of device memory: an address on the CPU, any value on other devices.
using Memory = void*;

// A kernel that Backend::prepare has looked up or compiled. It is immutable and may be used by several
// threads.
class PreparedKernel {
  public:
    virtual ~PreparedKernel() = default;
    // The implementation that the kernel's library reports; "" for generated code.
    virtual std::string implementation() const { return ""; }
    // Device memory that a call needs besides its arguments: the workspace of its library.
    virtual size_t workspace_bytes() const { return 0; }
};
// The code that a call of a recording runs, read from memory: it may differ from what the plan names.
struct CalledCode {
    // The dynamic loader's name of the function, or what a library's kernel reports.
    std::string symbol{};
    std::string code{};  // the function's machine code; "" if the system does not tell its size
};
// A list of calls that Backend::record has put into the form that the device takes. It is immutable and may
// be used by several threads.
class Recording {
  public:
    virtual ~Recording() = default;
    // One entry for each call; empty on a device whose driver reports the kernels that it ran. Not called
    // during runs.
    virtual std::vector<CalledCode> called_code() const { return {}; }
};

// The state that a backend keeps for one context of an executor: a stream, captured graphs, staging memory.
// It serves one run at a time. It is destroyed when all submitted work is done and before the context's
// memory is released.
class RunState {
  public:
    virtual ~RunState() = default;
};

// The stream that orders the work of a run. By default it is the context's own stream, and the run waits for
// its end. On the caller's stream, the run is queued and does not wait.
struct StreamOrder {
    bool on_caller_stream = false;
    void* stream = nullptr;
};

// A point in the work of a run's stream.
class StreamMark {
  public:
    virtual ~StreamMark() = default;
};

struct RecordedCall {
    const PreparedKernel* kernel = nullptr;
    const KernelCall* call = nullptr;  // outlives the recording
    size_t first_arg = 0;              // index of its first argument in Submission::args
    size_t workspace_offset = 0;       // of its workspace in the arena, a multiple of 256
};

// The arguments of one submission. All arrays belong to the executor's context and outlive the submission.
struct Submission {
    const Memory* slots = nullptr;  // indexed by slot
    size_t slot_count = 0;
    void* const* args =
        nullptr;  // address of every argument of every call; unused where Memory is not an address
    void* scratch = nullptr;  // scratch_stride bytes per thread
    size_t scratch_stride = 0;
    const std::atomic<uint64_t>* cancelled = nullptr;  // changes when the runs in flight must stop
    uint64_t cancel_seen = 0;                          // its value when this run began
    const std::atomic<bool>* stop = nullptr;           // if not null: set by the caller to stop this run only

    bool is_cancelled() const noexcept {
        return cancelled->load(std::memory_order_relaxed) != cancel_seen ||
               (stop != nullptr && stop->load(std::memory_order_relaxed));
    }
    int64_t* times = nullptr;  // if not null: receives the nanoseconds of each call of the recording
    EventRing* ring = nullptr;
    const uint32_t* names = nullptr;     // indexed by call, for `ring`
    Observation* observation = nullptr;  // if not null: receives what the device driver recorded
    int64_t first_call = 0;              // position in the plan of the recording's first call
    RunState* state = nullptr;           // created by open() for this context
};

class Backend {
  public:
    virtual ~Backend() = default;
    virtual const char* name() const noexcept = 0;
    virtual int threads() const noexcept { return 1; }  // each gets Submission::scratch_stride bytes

    virtual Result<Memory> allocate(size_t bytes) = 0;
    virtual void release(Memory memory) noexcept = 0;
    // Copy within the device, ordered with the work of `state`.
    virtual Status copy(Memory to, size_t to_offset, Memory from, size_t from_offset, size_t bytes,
                        RunState* state) = 0;

    // True for a device that queues its work and whose memory the host cannot address. The executor then
    // opens a state for each context, brackets every run with begin() and end(), and copies host arrays to
    // and from the device.
    virtual bool is_asynchronous() const noexcept { return false; }
    // True if Memory is an address, so that overlapping buffers can be detected.
    virtual bool has_addresses() const noexcept { return true; }
    // True if a submission fills Submission::observation.
    virtual bool supports_observation() const noexcept { return false; }
    virtual Result<std::unique_ptr<RunState>> open() { return std::unique_ptr<RunState>(); }
    // The id of the graph capture that the caller's stream is in; 0 if there is none.
    virtual uint64_t capture_of(const StreamOrder&) { return 0; }
    // Start a run: its work is ordered after everything that the context still has in flight.
    virtual Status begin(RunState&, const StreamOrder&) { return {}; }
    // Finish a run on the caller's stream: record when the context may be used again.
    virtual Status end(RunState&) { return {}; }
    // Set a mark, which is made if it is null, after the work that the run has queued so far.
    virtual Status mark(RunState&, std::unique_ptr<StreamMark>&) { return {}; }
    // Let later work of the run wait for a mark of another run.
    virtual Status follow(RunState&, const StreamMark&) { return {}; }
    // Wait for a mark.
    virtual Status wait(const StreamMark&) { return {}; }
    // Copy from the host. Page-locked memory of the device's pool must not change until synchronize(state)
    // returns; other memory may be reused on return.
    virtual Status send(Memory, size_t, const void*, size_t, RunState&) { return no_transfers(); }
    // Copy to the host. The host memory is filled when synchronize(state) returns.
    virtual Status fetch(void*, Memory, size_t, size_t, RunState&) { return no_transfers(); }

    // Do all slow work of a call once: look up, compile, choose an algorithm. `module` may be null where no
    // code is loaded. Up to preparing_threads() threads prepare calls of libraries at the same time.
    virtual Result<std::unique_ptr<PreparedKernel>> prepare(const KernelCall& call,
                                                            const std::shared_ptr<const Module>& module) = 0;
    virtual int preparing_threads() const { return 1; }
    virtual Result<std::unique_ptr<Recording>> record(const std::vector<RecordedCall>& calls) = 0;
    virtual Status submit(const Recording& recording, const Submission& submission) = 0;

    // Return when everything submitted with `state` is done; with null, everything submitted to the device.
    virtual Status synchronize(RunState* state) = 0;

  private:
    static Status no_transfers() { return {Code::unsupported, "this backend computes in host memory", ""}; }
};

// The backend that runs generated code and library kernels on `threads` threads of the host.
std::shared_ptr<Backend> cpu_backend(int threads);

// A backend that computes nothing and records every dispatch, for tests that count dispatches.
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
