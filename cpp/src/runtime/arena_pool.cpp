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
    for (const auto& arena : arenas_) {
        if (arena->taken || arena->bytes < bytes) continue;
        if (arena->user == user) return arena.get();
        if (best == nullptr || arena->bytes < best->bytes) best = arena.get();
    }
    return best;
}

ArenaPool::Arena* ArenaPool::largest_idle() noexcept {
    Arena* largest = nullptr;
    for (const auto& arena : arenas_)
        if (!arena->taken && (largest == nullptr || arena->bytes > largest->bytes)) largest = arena.get();
    return largest;
}

void ArenaPool::drop(Arena& arena) noexcept {
    if (arena.queued)
        if (const Status status = arena.mark ? backend_->wait(*arena.mark) : backend_->synchronize(nullptr);
            !status.ok())
            log_failure(status);
    backend_->release(arena.memory);
    held_ -= static_cast<int64_t>(arena.bytes);
    arenas_.erase(std::find_if(arenas_.begin(), arenas_.end(),
                               [&](const std::unique_ptr<Arena>& each) { return each.get() == &arena; }));
}

Result<ArenaPool::Arena*> ArenaPool::take(const Request& request, bool& allocated) {
    const auto bytes = static_cast<int64_t>(request.bytes);
    const auto text = [](int64_t count) { return std::to_string(count) + " bytes"; };
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
        // Replace an arena that is too small, and more of them if the limit asks for it.
        if (Arena* const small = request.keep ? nullptr : largest_idle()) drop(*small);
        while (limit_ > 0 && held_ + bytes > limit_) {
            Arena* const other = largest_idle();
            if (other == nullptr) break;
            drop(*other);
        }
        if (limit_ == 0 || held_ + bytes <= limit_) break;
        if (request.is_cancelled())
            return Status{Code::cancelled, "the run was cancelled while it waited for memory", ""};
        given_back_.wait_for(lock, std::chrono::milliseconds(20));
    }
    XPURT_ASSIGN_OR_RETURN(auto memory, backend_->allocate(request.bytes));
    auto arena = std::make_unique<Arena>();
    arena->memory = memory;
    arena->bytes = request.bytes;
    arena->taken = true;
    arena->kept = request.keep;
    held_ += bytes;
    kept_ += request.keep ? bytes : 0;
    peak_ = std::max(peak_, held_);
    allocated = true;
    arenas_.push_back(std::move(arena));
    return arenas_.back().get();
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
    const std::lock_guard<std::mutex> lock(mutex_);
    const int64_t before = held_;
    while (Arena* const arena = largest_idle()) drop(*arena);
    return before - held_;
}

ArenaPool::Statistics ArenaPool::statistics() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return {held_, peak_, static_cast<int64_t>(arenas_.size()), limit_};
}

}  // namespace xpurt
