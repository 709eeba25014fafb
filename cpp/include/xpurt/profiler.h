// xpurt/profiler.h: a ring buffer of events, and NVTX ranges for NVIDIA's tools.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "xpurt/library.h"

namespace xpurt {

enum class EventKind : uint32_t { begin = 0, end = 1, instant = 2, complete = 3 };

// One event. Python reads it as a NumPy record of the same layout; tests check the offsets.
struct Event {
    int64_t time_ns;      // monotonic clock (now_ns); for a complete event its start
    int64_t duration_ns;  // complete events only, else 0
    int64_t step;         // step of the plan; -1 = none
    int64_t payload;      // depends on the kind of event: bytes moved, an index, ...
    uint32_t name;        // from EventRing::intern
    uint32_t thread;      // the operating system's thread id
    EventKind kind;
    uint32_t reserved;  // always 0
};
static_assert(sizeof(Event) == 48);

// Nanoseconds of the monotonic clock; on Linux the clock of Python's time.perf_counter_ns.
int64_t now_ns() noexcept;

// The operating system's id of this thread, cached per thread.
uint32_t thread_id() noexcept;

// A ring buffer with many writers and one reader at a time. record() takes no lock and never waits: if the
// ring is full, the event is dropped and counted, so that the profiler does not slow down the program. Events
// are in the order in which writers claimed slots; sort by time across threads.
class EventRing {
  public:
    // `capacity` is rounded up to a power of two, at least 2. An event takes 64 bytes.
    explicit EventRing(size_t capacity);

    // Return false if the ring was full and the event was dropped.
    bool record(const Event& event) noexcept;

    // record() with the current thread and time.
    bool record_now(EventKind kind, uint32_t name, int64_t step, int64_t payload) noexcept;

    // Move up to `room` events to `out`, oldest first, and return their number. An event that is being
    // written ends the batch and is in the next one.
    size_t drain(Event* out, size_t room);

    // Return the id of a name; equal names have equal ids. Takes a lock: intern once, record often.
    uint32_t intern(std::string_view name);
    std::vector<std::string> names() const;  // index = id

    size_t capacity() const noexcept { return mask_ + 1; }
    size_t pending() const noexcept;  // recorded and not yet drained, at some moment during the call
    uint64_t dropped() const noexcept { return dropped_.load(std::memory_order_relaxed); }

  private:
    // `sequence` == position: the slot is free for the writer of that position. `sequence` == position + 1:
    // the slot is written and ready for the reader. (After D. Vyukov, "Bounded MPMC queue", 1024cores.net.)
    struct alignas(64) Slot {
        std::atomic<uint64_t> sequence;
        Event event;
    };

    const uint64_t mask_;
    const std::unique_ptr<Slot[]> slots_;
    alignas(64) std::atomic<uint64_t> head_{0};  // next position to write
    alignas(64) std::atomic<uint64_t> tail_{0};  // next position to read
    alignas(64) std::atomic<uint64_t> dropped_{0};
    std::mutex reader_;

    mutable std::mutex names_mutex_;
    std::deque<std::string>
        names_;  // a deque: its strings never move, so the keys of ids_ may point into them
    std::unordered_map<std::string_view, uint32_t> ids_;
};

// NVTX ranges, which Nsight Systems and other tools display. Until nvtx_open() has loaded the library, each
// call costs one load and one branch.
Status nvtx_open(const Search& search = {});
bool nvtx_active() noexcept;
// Give each call of a plan a range of its own, in addition to each run. Plans then run as single launches
// instead of as one graph.
void nvtx_each_call(bool on) noexcept;
bool nvtx_calls() noexcept;
int nvtx_push(const char* name) noexcept;  // depth of the range from 0; negative if no tool is attached
int nvtx_pop() noexcept;
void nvtx_mark(const char* name) noexcept;

// A range that lasts as long as this object, if `on` is true.
class NvtxRange {
  public:
    NvtxRange(bool on, const std::string& name) noexcept : on_(on) {
        if (on_) nvtx_push(name.c_str());
    }
    ~NvtxRange() {
        if (on_) nvtx_pop();
    }
    NvtxRange(const NvtxRange&) = delete;
    NvtxRange& operator=(const NvtxRange&) = delete;

  private:
    const bool on_;
};

}  // namespace xpurt
