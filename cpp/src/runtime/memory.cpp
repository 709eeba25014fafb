// runtime/memory.cpp: the pool of host memory.
#include "xpurt/memory.h"

#include <algorithm>
#include <cstdlib>

namespace xpurt {

const MemorySource host_source{[](void*, size_t bytes) { return std::aligned_alloc(alignment, bytes); },
                               [](void*, void* block) { std::free(block); }};

MemoryPool::~MemoryPool() { trim(); }

void* MemoryPool::allocate(size_t bytes) noexcept {
    if (bytes > SIZE_MAX / 2) return nullptr;
    const size_t wanted = whole_lines(std::max<size_t>(bytes, 1));
    const std::lock_guard<std::mutex> lock(mutex_);
    size_t size = wanted;
    void* block = nullptr;
    // A cached block that wastes at most an eighth.
    if (const auto found = free_.lower_bound(wanted);
        found != free_.end() && found->first - wanted <= wanted / 8) {
        size = found->first;
        block = found->second;
        free_.erase(found);
        statistics_.cached_bytes -= static_cast<int64_t>(size);
        ++statistics_.reuses;
    } else {
        block = source_.take(source_.context, size);
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
    const auto found = live_.find(block);
    if (found == live_.end()) return;  // not ours
    const size_t size = found->second;
    live_.erase(found);
    statistics_.live_bytes -= static_cast<int64_t>(size);
    if (static_cast<size_t>(statistics_.cached_bytes) + size > keep_bytes_) {
        source_.give_back(source_.context, block);
        return;
    }
    free_.emplace(size, block);
    statistics_.cached_bytes += static_cast<int64_t>(size);
}

int64_t MemoryPool::trim() noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
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
