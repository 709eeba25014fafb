// xpurt/arena_pool.h: memory of runs that several executors share, such as those of one session for different
// shapes.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>

#include "xpurt/backend.h"

namespace xpurt {

// Arenas, each of which serves one run at a time. A run takes one that is idle, whichever executor used it
// before, so that the pool has as many arenas as there were runs at a time. An arena that is too small is
// replaced. Thread-safe.
class ArenaPool {
  public:
    explicit ArenaPool(std::shared_ptr<Backend> backend) : backend_(std::move(backend)) {}
    ~ArenaPool() { trim(); }
    ArenaPool(const ArenaPool&) = delete;
    ArenaPool& operator=(const ArenaPool&) = delete;

    struct Arena {
        Memory memory = nullptr;
        size_t bytes = 0;
        bool taken = false;
        bool kept = false;           // by a context, until it ends
        const void* user = nullptr;  // the context that orders its next run after this one; may be null
        bool queued = false;         // that run was queued without waiting, up to `mark`
        std::unique_ptr<StreamMark> mark{};
    };
    struct Request {
        size_t bytes = 0;
        const void* user = nullptr;  // the context of the run
        bool keep = false;           // until the user ends, such as for a graph that is launched later
        // If not null: a run that waits for memory ends when `cancelled` is no longer `seen`, or `stop` is
        // set.
        const std::atomic<uint64_t>* cancelled = nullptr;
        uint64_t seen = 0;
        const std::atomic<bool>* stop = nullptr;

        bool is_cancelled() const noexcept {
            return (cancelled != nullptr && cancelled->load(std::memory_order_relaxed) != seen) ||
                   (stop != nullptr && stop->load(std::memory_order_relaxed));
        }
    };
    // Take an arena. A run waits while others have the memory that the limit leaves. The memory may still be
    // in use by queued work: see follow(). A kept arena is a new one.
    Result<Arena*> take(const Request& request, bool& allocated);
    // Let the work of a run, which has begun, follow the work that used the arena before.
    Status follow(const Arena& arena, RunState* state, const void* user);
    // Give the arena back after a run. `queued`: the run was not waited for.
    Status give_back(Arena& arena, RunState* state, const void* user, bool queued);
    // The same for a run that failed before its work followed the arena's. Later runs follow the same work.
    void give_back_unused(Arena& arena) noexcept;
    // The context of a kept arena has ended, and so has its work.
    void release(Arena& arena) noexcept;

    // Limit the bytes of all arenas, from the next allocation on; 0 = no limit.
    void set_limit(int64_t bytes);
    // Free the idle arenas. Returns the number of bytes.
    int64_t trim() noexcept;

    struct Statistics {
        int64_t held_bytes = 0, peak_bytes = 0, arenas = 0, limit_bytes = 0;
    };
    Statistics statistics() const;

  private:
    Arena* idle(size_t bytes, const void* user) noexcept;
    int64_t idle_bytes() const noexcept;
    int64_t remove_largest_idle(std::list<Arena>& removed) noexcept;
    void free(std::list<Arena>& removed) noexcept;

    const std::shared_ptr<Backend> backend_;
    // Nothing waits for the device or allocates while it holds this. Those bytes are in `held_` before they
    // are allocated and until they are free.
    mutable std::mutex mutex_;
    std::condition_variable given_back_;
    std::list<Arena> arenas_;
    int64_t limit_ = 0, held_ = 0, kept_ = 0, peak_ = 0;
};

}  // namespace xpurt
