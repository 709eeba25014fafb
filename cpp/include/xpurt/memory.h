// xpurt/memory.h: a caching allocator for host memory: arenas, weights and buffers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace xpurt {

constexpr size_t alignment = 64;  // of every block: a cache line, which is also the widest vector

// `bytes` rounded up to whole cache lines.
constexpr size_t whole_lines(size_t bytes) noexcept {
    return (bytes + alignment - 1) / alignment * alignment;
}

// `bytes` rounded up to whole blocks of 256, the alignment of a device's allocations.
constexpr size_t whole_blocks(size_t bytes) noexcept { return (bytes + 255) / 256 * 256; }

struct MemoryStatistics {
    int64_t live_bytes = 0;    // in use now
    int64_t peak_bytes = 0;    // highest value of live_bytes
    int64_t cached_bytes = 0;  // free blocks kept for reuse
    int64_t allocations = 0;   // blocks allocated from the system since the pool was created
    int64_t reuses = 0;        // blocks taken from the cache instead
};

// The allocator below a pool. `take` returns null when memory is exhausted.
struct MemorySource {
    void* (*take)(void* context, size_t bytes);
    void (*give_back)(void* context, void* block);
    void* context = nullptr;
};
extern const MemorySource host_source;  // aligned_alloc and free

// A cache of freed blocks, up to `keep_bytes`, which are reused for requests of about the same size.
// Thread-safe.
class MemoryPool {
  public:
    explicit MemoryPool(size_t keep_bytes = size_t{64} << 20, MemorySource source = host_source)
        : keep_bytes_(keep_bytes), source_(source) {}
    ~MemoryPool();
    MemoryPool(const MemoryPool&) = delete;
    MemoryPool& operator=(const MemoryPool&) = delete;

    // Allocate a 64-byte aligned block of at least `bytes` bytes, uninitialized. When memory is
    // exhausted, return the cached blocks to the system and try once more; then null.
    void* allocate(size_t bytes) noexcept;
    void release(void* block) noexcept;
    // True if the memory is inside of a block in use.
    bool owns(const void* memory, size_t bytes) const noexcept;

    // Return every cached block to the system. Returns the number of bytes.
    int64_t trim() noexcept;
    MemoryStatistics statistics() const;

    // The process's pool for host memory. Never destroyed: blocks may outlive every static object.
    static MemoryPool& host();

  private:
    int64_t free_cached() noexcept;  // `trim` while the mutex is held

    const size_t keep_bytes_;
    const MemorySource source_;
    mutable std::mutex mutex_;
    std::map<void*, size_t> live_;
    std::multimap<size_t, void*> free_;
    MemoryStatistics statistics_;
};

}  // namespace xpurt
