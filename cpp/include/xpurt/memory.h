// xpurt/memory.h: host memory for arenas, weights and buffers: aligned, counted, and used again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace xpurt {

constexpr size_t alignment = 64;  // of every block: a cache line, and the widest vector

// n rounded up to whole cache lines.
constexpr size_t whole_lines(size_t bytes) noexcept {
    return (bytes + alignment - 1) / alignment * alignment;
}

struct MemoryStatistics {
    int64_t live_bytes = 0;    // in use now
    int64_t peak_bytes = 0;    // most that was ever in use
    int64_t cached_bytes = 0;  // free, kept for the next caller
    int64_t allocations = 0;   // blocks asked of the system since the pool was made
    int64_t reuses = 0;        // blocks that came from the cache instead
};

// Where a pool's blocks come from and go to. `take` gives null when there is no memory.
struct MemorySource {
    void* (*take)(void* context, size_t bytes);
    void (*give_back)(void* context, void* block);
    void* context = nullptr;
};
extern const MemorySource host_source;  // the C library's

// Blocks that are given back are kept, up to `keep_bytes`, for callers of about the same size. Any thread.
class MemoryPool {
  public:
    explicit MemoryPool(size_t keep_bytes = size_t{64} << 20, MemorySource source = host_source)
        : keep_bytes_(keep_bytes), source_(source) {}
    ~MemoryPool();
    MemoryPool(const MemoryPool&) = delete;
    MemoryPool& operator=(const MemoryPool&) = delete;

    // A block of at least `bytes` bytes, 64-byte aligned, content arbitrary; null when there is no memory.
    void* allocate(size_t bytes) noexcept;
    void release(void* block) noexcept;

    // Gives every cached block back to the system; returns how many bytes.
    int64_t trim() noexcept;
    MemoryStatistics statistics() const;

    // The process's pool for the host. Never destroyed: blocks may outlive every static object.
    static MemoryPool& host();

  private:
    const size_t keep_bytes_;
    const MemorySource source_;
    mutable std::mutex mutex_;
    std::map<void*, size_t> live_;
    std::multimap<size_t, void*> free_;
    MemoryStatistics statistics_;
};

}  // namespace xpurt
