// runtime/arena_pool.cpp: arenas that executors share.
#include "xpurt/arena_pool.h"

#include <algorithm>
#include <chrono>
#include <string>

#include "base/log.h"

namespace xpurt {

// The arena that the user had last, else the smallest one that fits; null if none does.
ArenaPool::Arena* ArenaPool::idle(size_t bytes, const void* user) noexcept {
    Arena* best = nullptr;
    for (Arena& arena : arenas_) {
        if (arena.taken || arena.bytes < bytes) continue;
        if (arena.user == user) return &arena;
        if (best == nullptr || arena.bytes < best->bytes) best = &arena;
    }
    return best;
}

int64_t ArenaPool::idle_bytes() const noexcept {
    int64_t bytes = 0;
    for (const Arena& arena : arenas_)
        if (!arena.taken) bytes += static_cast<int64_t>(arena.bytes);
    return bytes;
}

// Move the largest idle arena to `removed`. Returns its bytes, 0 if there is none.
int64_t ArenaPool::remove_largest_idle(std::list<Arena>& removed) noexcept {
    auto largest = arenas_.end();
    for (auto each = arenas_.begin(); each != arenas_.end(); ++each)
        if (!each->taken && (largest == arenas_.end() || each->bytes > largest->bytes)) largest = each;
    if (largest == arenas_.end()) return 0;
    removed.splice(removed.end(), arenas_, largest);
    return static_cast<int64_t>(removed.back().bytes);
}

// Free arenas that are no longer in the pool, after the work that uses them. The caller does not hold the
// mutex.
void ArenaPool::free(std::list<Arena>& removed) noexcept {
    for (const Arena& arena : removed) {
        if (arena.queued)
            if (const Status status =
                    arena.mark ? backend_->wait(*arena.mark) : backend_->synchronize(nullptr);
                !status.ok())
                log_failure(status);
        backend_->release(arena.memory);
    }
    removed.clear();
}

Result<ArenaPool::Arena*> ArenaPool::take(const Request& request, bool& allocated) {
    const auto bytes = static_cast<int64_t>(request.bytes);
    const auto text = [](int64_t count) { return std::to_string(count) + " bytes"; };
    std::list<Arena> replaced, created(1);
    int64_t freed = 0;
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
        if (Arena* const arena = request.keep ? nullptr : idle(request.bytes, request.user)) {
            arena->taken = true;
            return arena;
        }
        if (limit_ > 0 && bytes > limit_ - kept_)
            return Status{Code::no_memory,
                          "a run needs " + text(bytes) + " for intermediate values, and its limit leaves " +
                              text(std::max<int64_t>(limit_ - kept_, 0)),
                          "Raise memory_bytes, or use smaller shapes."};
        if (limit_ == 0 || held_ - idle_bytes() + bytes <= limit_) break;
        if (request.is_cancelled())
            return Status{Code::cancelled, "the run was cancelled while it waited for memory", ""};
        given_back_.wait_for(lock, std::chrono::milliseconds(20));
    }
    // Replace an arena that is too small, and more of them if the limit asks for it.
    if (!request.keep) freed += remove_largest_idle(replaced);
    while (limit_ > 0 && held_ - freed + bytes > limit_) freed += remove_largest_idle(replaced);
    const int64_t reserved = std::max(bytes, freed);  // of `held_`, until the old arenas are free
    held_ += reserved - freed;
    kept_ += request.keep ? bytes : 0;
    lock.unlock();

    free(replaced);
    auto memory = backend_->allocate(request.bytes);
    Arena& arena = created.front();
    arena.memory = memory.value;
    arena.bytes = request.bytes;
    arena.taken = true;
    arena.kept = request.keep;

    lock.lock();
    if (memory.status.ok()) {
        held_ -= reserved - bytes;
        arenas_.splice(arenas_.end(), created);
        peak_ = std::max(peak_, held_);
        allocated = true;
    } else {
        held_ -= reserved;
        kept_ -= request.keep ? bytes : 0;
    }
    lock.unlock();
    if (reserved > bytes || !allocated) given_back_.notify_all();
    if (!memory.status.ok()) return std::move(memory.status);
    return &arena;
}

Status ArenaPool::follow(const Arena& arena, RunState* state, const void* user) {
    // A context orders its own runs.
    if (!arena.queued || arena.user == user || state == nullptr) return {};
    return arena.mark ? backend_->follow(*state, *arena.mark) : backend_->synchronize(nullptr);
}

Status ArenaPool::give_back(Arena& arena, RunState* state, const void* user, bool queued) {
    Status status;
    if (queued && state != nullptr && !(status = backend_->mark(*state, arena.mark)).ok()) arena.mark.reset();
    arena.queued = queued;
    arena.user = user;
    give_back_unused(arena);
    return status;
}

void ArenaPool::give_back_unused(Arena& arena) noexcept {
    if (arena.kept) return;
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        arena.taken = false;
    }
    given_back_.notify_one();
}

void ArenaPool::release(Arena& arena) noexcept {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        kept_ -= static_cast<int64_t>(arena.bytes);
        arena.taken = arena.kept = arena.queued = false;
    }
    given_back_.notify_one();
}

void ArenaPool::set_limit(int64_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    limit_ = bytes;
}

int64_t ArenaPool::trim() noexcept {
    std::list<Arena> removed;
    int64_t bytes = 0;
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        while (const int64_t more = remove_largest_idle(removed)) bytes += more;
    }
    free(removed);
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        held_ -= bytes;
    }
    given_back_.notify_all();
    return bytes;
}

ArenaPool::Statistics ArenaPool::statistics() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return {held_, peak_, static_cast<int64_t>(arenas_.size()), limit_};
}

}  // namespace xpurt
