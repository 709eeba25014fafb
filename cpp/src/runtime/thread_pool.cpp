// runtime/thread_pool.cpp: fork and join through two atomic words; workers spin briefly, then sleep.
#include "xpurt/thread_pool.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "base/log.h"
#include "xpurt/device.h"
#include "xpurt/profiler.h"

namespace xpurt {
namespace {

// Waking a sleeping thread takes about 50 us, so a worker spins that long for the next kernel.
constexpr int64_t spin_ns = 60'000;
constexpr int64_t polite_ns = 4'000;
constexpr int pauses_per_look = 32;  // between two reads of the clock

void pause() noexcept {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

// Spin until ready() or until `budget` nanoseconds are over; return true if ready. After the first
// microseconds, yield between attempts: on a busy machine the awaited thread may be queued behind this one.
template <class Ready>
bool spin(int64_t budget, Ready ready) {
    if (ready()) return true;
    if (budget == 0) return false;
    const int64_t start = now_ns();
    for (int64_t now = start; now < start + budget; now = now_ns()) {
        for (int i = 0; i < pauses_per_look; ++i) {
            if (ready()) return true;
            pause();
        }
        if (now > start + polite_ns) sched_yield();
    }
    return ready();
}

std::atomic<unsigned> forks{0};

// Blocks all signals while threads are created, so that signals go to the program's own threads.
class SignalsBlocked {
  public:
    SignalsBlocked() {
        sigset_t all;
        blocked_ = sigfillset(&all) == 0 && check(pthread_sigmask(SIG_SETMASK, &all, &before_));
    }
    ~SignalsBlocked() {
        if (blocked_) check(pthread_sigmask(SIG_SETMASK, &before_, nullptr));
    }
    SignalsBlocked(const SignalsBlocked&) = delete;
    SignalsBlocked& operator=(const SignalsBlocked&) = delete;

  private:
    static bool check(int error) noexcept {
        if (error != 0)
            log_failure({Code::call_failed, std::string("pthread_sigmask: ") + std::strerror(error), ""});
        return error == 0;
    }
    sigset_t before_;
    bool blocked_ = false;
};

constexpr int parts_bits = 16;

}  // namespace

unsigned fork_generation() noexcept {
    static const bool registered = [] {
        const int error = pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1); });
        if (error != 0)
            log_failure({Code::call_failed, std::string("pthread_atfork: ") + std::strerror(error), ""});
        return error == 0;
    }();
    static_cast<void>(registered);
    return forks.load(std::memory_order_relaxed);
}

struct ThreadPool::Team {
    // The current work: `word` holds a count of runs and, in its low bits, the number of parts. A worker
    // without a part does not read `part` and `context`, which the caller may already be changing for the
    // next run.
    struct alignas(64) {
        std::atomic<uint64_t> word{0};
        Part part = nullptr;
        void* context = nullptr;
    } order;
    struct alignas(64) {
        std::atomic<int> remaining{0};
        std::atomic<bool> caller_sleeps{false};
    } join;
    struct alignas(64) {
        std::atomic<int> sleeping{0};
        std::atomic<bool> stop{false};
    } rest;
    std::mutex mutex;
    std::condition_variable wake, done;
    std::vector<std::thread> workers;
    unsigned generation = fork_generation();
    int64_t budget = 0;

    explicit Team(int threads) {
        // With more threads than cores, a spinning thread would take the core of a working one.
        budget = threads <= cpu_facts().usable_cores ? spin_ns : 0;
        const SignalsBlocked blocked;
        try {
            for (int i = 1; i < threads; ++i) workers.emplace_back([this, i] { work(i); });
        } catch (const std::system_error&) {
            // The system grants no more threads: the existing ones do the work (see run).
        }
    }

    ~Team() {
        {
            const std::lock_guard<std::mutex> lock(mutex);
            rest.stop.store(true);
        }
        wake.notify_all();
        for (std::thread& worker : workers) worker.join();
    }

    void work(int index) {
        uint64_t seen = 0;
        const auto has_work = [&] {
            return order.word.load(std::memory_order_acquire) != seen || rest.stop.load();
        };
        for (;;) {
            if (!spin(budget, has_work)) {
                std::unique_lock<std::mutex> lock(mutex);
                rest.sleeping.fetch_add(1);  // before `word` is read: run() writes `word` before it reads
                                             // `sleeping`, so no wake-up is lost
                wake.wait(lock, [&] { return order.word.load() != seen || rest.stop.load(); });
                rest.sleeping.fetch_sub(1);
            }
            if (rest.stop.load()) return;
            seen = order.word.load(std::memory_order_acquire);
            if (index >= static_cast<int>(seen & ((1u << parts_bits) - 1))) continue;
            order.part(order.context, index);
            if (join.remaining.fetch_sub(1) == 1 && join.caller_sleeps.load()) {
                const std::lock_guard<std::mutex> lock(mutex);
                done.notify_one();
            }
        }
    }

    void run(int parts, Part part, void* context) {
        const int helpers = std::min<int>(parts - 1, static_cast<int>(workers.size()));
        order.part = part;
        order.context = context;
        join.remaining.store(helpers, std::memory_order_relaxed);
        const uint64_t count = (order.word.load(std::memory_order_relaxed) >> parts_bits) + 1;
        order.word.store(count << parts_bits | static_cast<uint64_t>(helpers + 1));
        if (rest.sleeping.load() > 0) {
            {
                const std::lock_guard<std::mutex> lock(mutex);
            }
            wake.notify_all();
        }
        part(context, 0);
        for (int i = helpers + 1; i < parts; ++i) part(context, i);
        if (spin(budget, [&] { return join.remaining.load(std::memory_order_acquire) == 0; })) return;
        std::unique_lock<std::mutex> lock(mutex);
        join.caller_sleeps.store(true);
        done.wait(lock, [&] { return join.remaining.load() == 0; });
        join.caller_sleeps.store(false);
    }
};

ThreadPool::ThreadPool(int threads) : threads_(std::clamp(threads, 1, (1 << parts_bits) - 1)) {
    fork_generation();
}

ThreadPool::~ThreadPool() {
    // In a forked child the workers do not exist and cannot be joined, so the team is leaked.
    if (team_ && team_->generation != fork_generation()) (void)team_.release();
}

bool ThreadPool::try_acquire() {
    const unsigned owner_id = fork_generation() + 1;
    unsigned owner = owner_.load(std::memory_order_relaxed);
    if (owner == owner_id || !owner_.compare_exchange_strong(owner, owner_id, std::memory_order_acquire))
        return false;
    if (team_ && team_->generation + 1 != owner_id) (void)team_.release();
    if (!team_ && threads_ > 1) team_ = std::make_unique<Team>(threads_);
    return true;
}

void ThreadPool::release() noexcept { owner_.store(0, std::memory_order_release); }

void ThreadPool::run(int parts, Part part, void* context) {
    if (parts > 1)
        team_->run(parts, part, context);
    else
        part(context, 0);
}

std::shared_ptr<ThreadPool> ThreadPool::shared(int threads) {
    static auto* const mutex = new std::mutex;
    static auto* const pools = new std::map<int, std::weak_ptr<ThreadPool>>;
    const std::lock_guard<std::mutex> lock(*mutex);
    std::weak_ptr<ThreadPool>& entry = (*pools)[threads];
    std::shared_ptr<ThreadPool> pool = entry.lock();
    if (!pool) entry = pool = std::make_shared<ThreadPool>(threads);
    return pool;
}

}  // namespace xpurt
