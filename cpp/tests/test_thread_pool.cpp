// The thread pool: parts, exclusive use, sleep and fork.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "doctest/doctest.h"
#include "xpurt/thread_pool.h"

using xpurt::ThreadPool;

namespace {

struct Tally {
    std::vector<int> seen;
    static void count(void* self, int part) { ++static_cast<Tally*>(self)->seen[static_cast<size_t>(part)]; }
};

bool run_once(ThreadPool& pool, int parts) {
    Tally tally{std::vector<int>(static_cast<size_t>(parts), 0)};
    REQUIRE(pool.try_acquire());
    pool.run(parts, Tally::count, &tally);
    pool.release();
    return tally.seen == std::vector<int>(static_cast<size_t>(parts), 1);
}

double cpu_seconds() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    const auto seconds = [](const timeval& t) { return static_cast<double>(t.tv_sec) + t.tv_usec * 1e-6; };
    return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace

TEST_CASE("every part runs once for any number of threads and parts") {
    for (const int threads : {1, 2, 3, 8}) {
        ThreadPool pool(threads);
        CHECK(pool.threads() == threads);
        for (int round = 0; round < 200; ++round)
            for (int parts = 1; parts <= threads; ++parts) REQUIRE(run_once(pool, parts));
    }
}

TEST_CASE("the caller and the next run see what each part wrote") {
    ThreadPool pool(4);
    std::vector<int64_t> cells(4, 0);
    REQUIRE(pool.try_acquire());
    constexpr int rounds = 5000;
    for (int round = 0; round < rounds; ++round) {
        // Each part reads its neighbor's cell of the previous round: plain memory, ordered by the pool only.
        std::vector<int64_t> next(4, 0);
        struct Both {
            std::vector<int64_t>*from, *to;
        } both{&cells, &next};
        pool.run(
            4,
            [](void* context, int part) {
                const auto& b = *static_cast<Both*>(context);
                (*b.to)[static_cast<size_t>(part)] = (*b.from)[static_cast<size_t>(part + 1) % 4] + 1;
            },
            &both);
        cells = next;
    }
    pool.release();
    for (const int64_t cell : cells) CHECK(cell == rounds);
}

TEST_CASE("a pool in use cannot be acquired until its release") {
    ThreadPool pool(2);
    REQUIRE(pool.try_acquire());
    bool second = true;
    std::thread([&] { second = pool.try_acquire(); }).join();
    CHECK_FALSE(second);
    pool.release();
    CHECK(run_once(pool, 2));
}

TEST_CASE("concurrent callers of a pool each acquire it or are refused") {
    const auto pool = ThreadPool::shared(3);
    CHECK(ThreadPool::shared(3).get() == pool.get());
    CHECK(ThreadPool::shared(2).get() != pool.get());
    std::atomic<int> had{0}, wrong{0};
    std::vector<std::thread> callers;
    for (int c = 0; c < 4; ++c)
        callers.emplace_back([&] {
            for (int i = 0; i < 500; ++i) {
                if (!pool->try_acquire()) continue;
                Tally tally{{0, 0, 0}};
                pool->run(3, Tally::count, &tally);
                pool->release();
                ++had;
                if (tally.seen != std::vector<int>{1, 1, 1}) ++wrong;
            }
        });
    for (std::thread& caller : callers) caller.join();
    CHECK(had > 0);
    CHECK(wrong == 0);
}

TEST_CASE("an idle pool uses no processor time, and wakes up") {
    ThreadPool pool(4);
    CHECK(run_once(pool, 4));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const double before = cpu_seconds();
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    CHECK(cpu_seconds() - before < 0.03);
    CHECK(run_once(pool, 4));
}

#if !defined(__SANITIZE_THREAD__)
TEST_CASE("a forked child gets its own workers even if the parent held the pool") {
    ThreadPool pool(3);
    CHECK(run_once(pool, 3));
    REQUIRE(pool.try_acquire());
    const pid_t child = fork();
    if (child == 0) {
        alarm(20);
        bool right = false;
        if (pool.try_acquire()) {
            Tally tally{{0, 0, 0}};
            pool.run(3, Tally::count, &tally);
            pool.release();
            right = tally.seen == std::vector<int>{1, 1, 1};
        }
        _exit(right ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
    pool.release();
    CHECK(run_once(pool, 3));
}
#endif
