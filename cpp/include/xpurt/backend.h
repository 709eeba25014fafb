// xpurt/backend.h: a device driver as the executor needs it: seven verbs. A new device implements these and
// gets contexts, states, counters, timing and cancelling from the one Executor.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "xpurt/kernel.h"
#include "xpurt/profiler.h"
#include "xpurt/status.h"

namespace xpurt {

// A handle of device memory: an address on the CPU, whatever the backend likes elsewhere.
using Memory = void*;

// Made by Backend::prepare: a kernel with everything looked up and compiled. Made by record: calls in the
// form in which the device takes them. Both are constant once made and may be used by several threads.
class Prepared {
  public:
    virtual ~Prepared() = default;
};
class Recording {
  public:
    virtual ~Recording() = default;
};

struct RecordedCall {
    const Prepared* kernel = nullptr;
    const KernelCall* call = nullptr;  // lives as long as the recording
    size_t first_arg = 0;              // index of its first argument in Bindings::args
};

// What one submission works on. All arrays belong to the executor's context and outlive the submission.
struct Bindings {
    const Memory* slots = nullptr;  // by slot
    size_t slot_count = 0;
    void* const* args =
        nullptr;  // address of every argument of every call; meaningless where memory has no addresses
    void* scratch = nullptr;  // scratch_stride bytes for each thread
    size_t scratch_stride = 0;
    const std::atomic<uint64_t>* cancelled = nullptr;  // changes when runs in flight shall stop
    uint64_t cancel_seen = 0;
    const std::atomic<bool>* stop = nullptr;  // when not null: set to end this run alone

    bool cancelled_by_now() const noexcept {
        return cancelled->load(std::memory_order_relaxed) != cancel_seen ||
               (stop != nullptr && stop->load(std::memory_order_relaxed));
    }
    int64_t* times = nullptr;  // when not null: nanoseconds of each call of the recording
    EventRing* ring = nullptr;
    const uint32_t* names = nullptr;  // by call, for ring
    int64_t first_call = 0;           // position of the recording's first call in the plan
};

class Backend {
  public:
    virtual ~Backend() = default;
    virtual const char* name() const noexcept = 0;
    virtual int threads() const noexcept { return 1; }  // each gets Bindings::scratch_stride bytes

    virtual Result<Memory> allocate(size_t bytes) = 0;
    virtual void release(Memory memory) noexcept = 0;
    virtual Status copy(Memory to, size_t to_offset, Memory from, size_t from_offset, size_t bytes) = 0;

    // Everything slow happens here, once. `module` may be null where no code is loaded.
    virtual Result<std::unique_ptr<Prepared>> prepare(const KernelCall& call,
                                                      const std::shared_ptr<const Module>& module) = 0;
    virtual Result<std::unique_ptr<Recording>> record(const std::vector<RecordedCall>& calls) = 0;
    virtual Status submit(const Recording& recording, const Bindings& bindings) = 0;

    // Returns when everything submitted is done.
    virtual Status synchronize() = 0;
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
