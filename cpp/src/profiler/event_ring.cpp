// profiler/event_ring.cpp: the lock-free ring of events.
#include <chrono>

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "xpurt/profiler.h"

namespace xpurt {
namespace {

uint64_t power_of_two(size_t at_least) {
    uint64_t size = 2;
    while (size < at_least) size *= 2;
    return size;
}

}  // namespace

int64_t now_ns() noexcept {
    using namespace std::chrono;
    return duration_cast<nanoseconds>(steady_clock::now().time_since_epoch()).count();
}

uint32_t thread_id() noexcept {
#if defined(__linux__)
    thread_local const uint32_t id = static_cast<uint32_t>(syscall(SYS_gettid));
#else
    static std::atomic<uint32_t> next{1};
    thread_local const uint32_t id = next.fetch_add(1, std::memory_order_relaxed);
#endif
    return id;
}

EventRing::EventRing(size_t capacity)
    : mask_(power_of_two(capacity) - 1), slots_(std::make_unique<Slot[]>(mask_ + 1)) {
    for (uint64_t i = 0; i <= mask_; ++i) slots_[i].sequence.store(i, std::memory_order_relaxed);
}

bool EventRing::record(const Event& event) noexcept {
    uint64_t position = head_.load(std::memory_order_relaxed);
    for (;;) {
        Slot& slot = slots_[position & mask_];
        const uint64_t sequence = slot.sequence.load(std::memory_order_acquire);
        const int64_t lead = static_cast<int64_t>(sequence - position);
        if (lead < 0) {  // full: the reader has not freed this slot since the previous lap
            dropped_.fetch_add(1, std::memory_order_relaxed);
            return false;
        }
        if (lead > 0) {  // another writer claimed this position
            position = head_.load(std::memory_order_relaxed);
            continue;
        }
        if (head_.compare_exchange_weak(position, position + 1, std::memory_order_relaxed)) {
            slot.event = event;
            slot.sequence.store(position + 1, std::memory_order_release);
            return true;
        }
    }
}

bool EventRing::record_now(EventKind kind, uint32_t name, int64_t step, int64_t payload) noexcept {
    return record({now_ns(), 0, step, payload, name, thread_id(), kind, 0});
}

size_t EventRing::drain(Event* out, size_t room) {
    const std::lock_guard<std::mutex> lock(reader_);
    uint64_t position = tail_.load(std::memory_order_relaxed);
    size_t count = 0;
    for (; count < room; ++count, ++position) {
        Slot& slot = slots_[position & mask_];
        if (slot.sequence.load(std::memory_order_acquire) != position + 1) break;
        out[count] = slot.event;
        slot.sequence.store(position + mask_ + 1, std::memory_order_release);
    }
    tail_.store(position, std::memory_order_release);
    return count;
}

size_t EventRing::pending() const noexcept {
    const uint64_t tail = tail_.load(std::memory_order_acquire);
    const uint64_t head = head_.load(std::memory_order_acquire);
    return head > tail ? static_cast<size_t>(head - tail) : 0;
}

uint32_t EventRing::intern(std::string_view name) {
    const std::lock_guard<std::mutex> lock(names_mutex_);
    const auto entry = ids_.find(name);
    if (entry != ids_.end()) return entry->second;
    names_.emplace_back(name);
    const uint32_t id = static_cast<uint32_t>(names_.size() - 1);
    ids_.emplace(names_.back(), id);
    return id;
}

std::vector<std::string> EventRing::names() const {
    const std::lock_guard<std::mutex> lock(names_mutex_);
    return {names_.begin(), names_.end()};
}

}  // namespace xpurt
