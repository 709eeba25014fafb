// runtime/memory.cpp: the caching allocator of host memory.
#include "xpurt/memory.h"

#include <algorithm>
#include <cstdlib>

namespace xpurt {

const MemorySource host_source{[](void*, size_t bytes) { return std::aligned_alloc(alignment, bytes); },
                               [](void*, void* block) { std::free(block); }};

MemoryPool::~MemoryPool() { trim(); }

void* MemoryPool::allocate(size_t bytes) noexcept {
    if (bytes > SIZE_MAX / 2) return nullptr;                       // rounding up would overflow
    const size_t needed = whole_lines(std::max<size_t>(bytes, 1));  // each block has an address of its own
    const std::lock_guard<std::mutex> lock(mutex_);
    size_t size = needed;
    void* block = nullptr;
    // Reuse a cached block that wastes at most an eighth of the request.
    if (const auto entry = free_.lower_bound(needed);
        entry != free_.end() && entry->first - needed <= needed / 8) {
        size = entry->first;
        block = entry->second;
        free_.erase(entry);
        statistics_.cached_bytes -= static_cast<int64_t>(size);
        ++statistics_.reuses;
    } else {
        block = source_.take(source_.context, size);
        if (block == nullptr && free_cached() > 0) block = source_.take(source_.context, size);
        if (block == nullptr) return nullptr;
        ++statistics_.allocations;
    }
    live_.emplace(block, size);
    statistics_.live_bytes += static_cast<int64_t>(size);
    statistics_.peak_bytes = std::max(statistics_.peak_bytes, statistics_.live_bytes);
    return block;
}

void MemoryPool::release(void* block) noexcept {
    if (block == nullptr) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto entry = live_.find(block);
    if (entry == live_.end()) return;  // not allocated by this pool, or released before
    const size_t size = entry->second;
    live_.erase(entry);
    statistics_.live_bytes -= static_cast<int64_t>(size);
    if (static_cast<size_t>(statistics_.cached_bytes) + size > keep_bytes_) {
        source_.give_back(source_.context, block);
        return;
    }
    free_.emplace(size, block);
    statistics_.cached_bytes += static_cast<int64_t>(size);
}

bool MemoryPool::owns(const void* memory, size_t bytes) const noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto entry = live_.upper_bound(const_cast<void*>(memory));
    if (entry == live_.begin()) return false;
    --entry;  // the last block that does not begin after `memory`
    const auto offset =
        static_cast<size_t>(static_cast<const char*>(memory) - static_cast<char*>(entry->first));
    return offset <= entry->second && bytes <= entry->second - offset;
}

int64_t MemoryPool::trim() noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    return free_cached();
}

int64_t MemoryPool::free_cached() noexcept {
    const int64_t bytes = statistics_.cached_bytes;
    for (const auto& [size, block] : free_) source_.give_back(source_.context, block);
    free_.clear();
    statistics_.cached_bytes = 0;
    return bytes;
}

MemoryStatistics MemoryPool::statistics() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return statistics_;
}

MemoryPool& MemoryPool::host() {
    static auto* const pool = new MemoryPool;
    return *pool;
}

}  // namespace xpurt
