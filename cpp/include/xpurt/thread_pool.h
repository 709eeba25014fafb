// xpurt/thread_pool.h: the thread pool of the CPU backend.
#pragma once

#include <atomic>
#include <memory>

namespace xpurt {

// A pool of `threads` threads, including the caller's. Workers start with the first run and sleep when they
// have been idle for a while. Fork and join each take one cache line.
//
// After fork() the child has no workers; the pool starts new ones there.
class ThreadPool {
  public:
    using Part = void (*)(void* context, int part);

    explicit ThreadPool(int threads);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int threads() const noexcept { return threads_; }

    // Acquire exclusive use of the workers for a series of runs. Return false while another thread has it;
    // never waits.
    bool try_acquire();
    void release() noexcept;

    // Call part(context, 0 .. parts-1), each on its own thread, part 0 on the caller's; return when all have
    // returned. Only between try_acquire and release; parts <= threads().
    void run(int parts, Part part, void* context);

    // The process-wide pool of that many threads.
    static std::shared_ptr<ThreadPool> shared(int threads);

  private:
    struct Team;
    const int threads_;
    std::unique_ptr<Team> team_;
    std::atomic<unsigned> owner_{0};  // 0 = free; else 1 + the fork generation of the owner
};

// The number of forks between the process that loaded the core and this one. Locks that a thread of the
// parent held are free in the child.
unsigned fork_generation() noexcept;

}  // namespace xpurt
