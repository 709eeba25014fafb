// xpurt/thread_pool.h: the fixed team of threads under every CPU kernel.
#pragma once

#include <atomic>
#include <memory>

namespace xpurt {

// `threads` threads, the caller's own included. Workers start with the first run and sleep when nothing came
// for a while; no thread is busy when idle. A run is handed out and awaited through one cache line each way.
//
// After fork() the child has no workers; the pool starts new ones there by itself.
class ThreadPool {
  public:
    using Part = void (*)(void* context, int part);

    explicit ThreadPool(int threads);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int threads() const noexcept { return threads_; }

    // Exclusive use of the workers for a series of runs; false while another thread has it. Never waits.
    bool try_acquire();
    void release() noexcept;

    // part(context, 0 .. parts-1), each on a thread of its own, 0 on the caller's. Returns when all have
    // returned. Between try_acquire and release only; parts <= threads().
    void run(int parts, Part part, void* context);

    // The pool of that many threads that every executor of the process shares.
    static std::shared_ptr<ThreadPool> shared(int threads);

  private:
    struct Team;
    const int threads_;
    std::unique_ptr<Team> team_;
    std::atomic<unsigned> owner_{0};  // 0: free; else 1 + the fork generation of who took it
};

// How many forks lie between this process and the one that loaded the core. What a thread of the parent held
// is free again in the child.
unsigned fork_generation() noexcept;

}  // namespace xpurt
