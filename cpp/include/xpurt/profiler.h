// xpurt/profiler.h: where and when: a ring of events, and ranges for NVIDIA's tools.
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

// One event, as Python sees it too (a NumPy record of the same layout; offsets are tested).
struct Event {
    int64_t time_ns;      // monotonic clock (now_ns); the start, for a complete event
    int64_t duration_ns;  // complete events only, else 0
    int64_t step;         // step of the plan; -1 = none
    int64_t payload;      // whatever the kind of event counts: bytes moved, an index, ...
    uint32_t name;        // from EventRing::intern
    uint32_t thread;      // the operating system's thread id
    EventKind kind;
    uint32_t reserved;  // 0
};
static_assert(sizeof(Event) == 48);

// Nanoseconds of the monotonic clock, the same one as Python's time.perf_counter_ns on Linux.
int64_t now_ns() noexcept;

// The operating system's id of this thread, asked for once per thread.
uint32_t thread_id() noexcept;

// Events from many threads, read by one reader at a time. record() takes no lock and never waits: when the
// ring is full the event is dropped and counted, so that the profiler cannot slow down what it watches.
// Order in the ring is the order in which slots were claimed; across threads sort by time.
class EventRing {
  public:
    // Capacity is rounded up to a power of two, at least 2; 64 bytes an event.
    explicit EventRing(size_t capacity);

    // False when the ring was full and the event was dropped.
    bool record(const Event& event) noexcept;

    // record() with this thread's id and the present time.
    bool record_now(EventKind kind, uint32_t name, int64_t step, int64_t payload) noexcept;

    // Moves up to `room` events to `out`, oldest first, and returns how many. An event that another thread is
    // just writing ends the batch, and comes with the next.
    size_t drain(Event* out, size_t room);

    // The id of a name, the same for the same text. Takes a lock: intern once, record often.
    uint32_t intern(std::string_view name);
    std::vector<std::string> names() const;  // index = id

    size_t capacity() const noexcept { return mask_ + 1; }
    size_t pending() const noexcept;  // recorded and not yet drained; a moment's value
    uint64_t dropped() const noexcept { return dropped_.load(std::memory_order_relaxed); }

  private:
    // `turn` says whose the slot is: == position: free for the writer of that position; == position + 1:
    // written, for the reader. (Bounded queue after D. Vyukov, "Bounded MPMC queue", 1024cores.net.)
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
    std::deque<std::string> names_;  // a deque: its strings never move, the map's keys point into them
    std::unordered_map<std::string_view, uint32_t> ids_;
};

// NVTX: ranges that Nsight Systems and other tools show. Until nvtx_open() has found the library, each call
// costs one load and one branch.
Status nvtx_open(const Search& search = {});
bool nvtx_active() noexcept;
// Whether each call of a plan has a range of its own, rather than each run: then devices that would run a
// plan as one graph launch kernel by kernel.
void nvtx_each_call(bool on) noexcept;
bool nvtx_calls() noexcept;
int nvtx_push(const char* name) noexcept;  // depth of the range from 0; negative: nobody listens
int nvtx_pop() noexcept;
void nvtx_mark(const char* name) noexcept;

// A range as long as this lives; nothing where `on` is false.
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
