// Arenas that executors share. With the simulated driver: the order of runs that use one arena, one after the
// other. With a backend whose calls block until the test releases them: what other threads can do meanwhile.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "doctest/doctest.h"
#include "simulated_cuda.h"
#include "xpurt/arena_pool.h"

using namespace xpurt;
using namespace simulated;

namespace {

constexpr int64_t arena_bytes = 1 << 16;  // the same for each plan, so that all runs use the same arena

std::unique_ptr<Executor> pooled(const std::shared_ptr<CudaBackend>& on, Plan plan,
                                 const std::shared_ptr<ArenaPool>& arenas) {
    plan.arena_bytes = arena_bytes;
    auto result = Executor::create(on, std::move(plan), 1, arenas);
    REQUIRE_MESSAGE(result.status.ok(), result.status.message);
    return std::move(result.value);
}

struct Blocks {
    std::shared_ptr<CudaBlock> x, y;
    explicit Blocks(CudaBackend& on) : x(on.block(4 * n, {}).value), y(on.block(4 * n, {}).value) {}
};

Status run_stopped(Executor& executor, const WeightBindings& weights, const Blocks& blocks,
                   const StreamOrder& order) {
    const Memory x = reinterpret_cast<Memory>(blocks.x->address()),
                 y = reinterpret_cast<Memory>(blocks.y->address());
    const std::atomic<bool> stop{true};
    Executor::Run run;
    run.weights = &weights, run.inputs = &x, run.outputs = &y, run.order = order, run.stop = &stop;
    return executor.run(run);
}

// A gate at which a thread waits until the test opens it, for at most five seconds.
class Gate {
  public:
    // Wait while the gate is closed. Called by the thread.
    void pass() {
        std::unique_lock<std::mutex> lock(mutex_);
        if (!closed_) return;
        reached_ = true;
        changed_.notify_all();
        if (!changed_.wait_for(lock, std::chrono::seconds(5), [&] { return !closed_; })) expired_ = true;
    }
    void close() {
        const std::lock_guard<std::mutex> lock(mutex_);
        closed_ = true;
        reached_ = expired_ = false;
    }
    // Wait until the thread is at the gate.
    void await() {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [&] { return reached_; });
    }
    // Let the thread pass. Return true if it still waited, false if its five seconds were over.
    bool open() {
        const std::lock_guard<std::mutex> lock(mutex_);
        closed_ = false;
        changed_.notify_all();
        return !expired_;
    }

  private:
    std::mutex mutex_;
    std::condition_variable changed_;
    bool closed_ = false, reached_ = false, expired_ = false;
};

// A backend on host memory with gates before the calls that may block. It counts the bytes that are
// allocated.
class GatedBackend final : public Backend {
  public:
    Gate waiting, allocating;
    std::atomic<size_t> refused{0};  // an allocation of exactly this size fails
    std::atomic<int64_t> live{0}, peak{0};

    const char* name() const noexcept override { return "gated"; }
    Result<Memory> allocate(size_t bytes) override {
        allocating.pass();
        if (bytes == refused) return Status{Code::no_memory, "refused", ""};
        const std::lock_guard<std::mutex> lock(mutex_);
        Memory const memory = std::malloc(bytes);
        sizes_[memory] = bytes;
        live += static_cast<int64_t>(bytes);
        peak = std::max(peak.load(), live.load());
        return memory;
    }
    void release(Memory memory) noexcept override {
        const std::lock_guard<std::mutex> lock(mutex_);
        live -= static_cast<int64_t>(sizes_[memory]);
        sizes_.erase(memory);
        std::free(memory);
    }
    Status mark(RunState&, std::unique_ptr<StreamMark>& mark) override {
        if (mark == nullptr) mark = std::make_unique<StreamMark>();
        return {};
    }
    Status wait(const StreamMark&) override { return waiting.pass(), Status{}; }
    Status copy(Memory, size_t, Memory, size_t, size_t, RunState*) override { return unused(); }
    Result<std::unique_ptr<PreparedKernel>> prepare(const KernelCall&,
                                                    const std::shared_ptr<const Module>&) override {
        return unused();
    }
    Result<std::unique_ptr<Recording>> record(const std::vector<RecordedCall>&) override { return unused(); }
    Status submit(const Recording&, const Submission&) override { return unused(); }
    Status synchronize(RunState*) override { return {}; }

  private:
    static Status unused() { return {Code::unsupported, "the pool does not call it", ""}; }

    std::mutex mutex_;
    std::map<Memory, size_t> sizes_;
};

ArenaPool::Arena* take(ArenaPool& arenas, size_t bytes, bool keep = false) {
    bool allocated = false;
    ArenaPool::Request request;
    request.bytes = bytes, request.keep = keep;
    const auto result = arenas.take(request, allocated);
    REQUIRE_MESSAGE(result.status.ok(), result.status.message);
    return result.value;
}

}  // namespace

TEST_CASE("a run that fails before it uses its arena leaves the mark of the run that does") {
    for (const bool host : {false, true}) {
        const auto on = backend();
        const auto arenas = std::make_shared<ArenaPool>(on);
        const auto first = pooled(on, chain(*on, n), arenas), second = pooled(on, pick(*on), arenas),
                   third = pooled(on, chain(*on, n), arenas);
        const Weight w = Weight::filled(*on, 7), good = Weight::filled(*on, 1),
                     bad = Weight::filled(*on, 1234);
        const Blocks a(*on), b(*on), c(*on);
        const auto mine = std::move(on->stream().value), other = std::move(on->stream().value),
                   last = std::move(on->stream().value);
        Arrays arrays(0);
        if (host) REQUIRE(run_host(*second, good.weights, arrays).ok());  // the arena has room for its copies
        REQUIRE(run_device(*second, bad.weights, *b.x, *b.y, {true, other->handle()}).ok());
        REQUIRE(
            other->synchronize().ok());  // the report of the bad index is on the host, and fails the next run
        REQUIRE(run_device(*first, w.weights, *a.x, *a.y, {true, mine->handle()}).ok());
        const Status status = host ? run_host(*second, good.weights, arrays)
                                   : run_device(*second, good.weights, *b.x, *b.y, {true, other->handle()});
        CHECK(status.message.find("index 1234 is outside") != std::string::npos);
        CHECK_FALSE(mine->done().value);
        const int waits = calls("cuStreamWaitEvent");
        REQUIRE(run_device(*third, w.weights, *c.x, *c.y, {true, last->handle()}).ok());
        CHECK(calls("cuStreamWaitEvent") == waits + 1);
        REQUIRE(last->synchronize().ok());
        CHECK(mine->done().value);
        CHECK(arenas->statistics().arenas == 1);
    }
}

TEST_CASE("a run that is stopped before its first kernel does not order the next run of its context") {
    const auto on = backend();
    const auto arenas = std::make_shared<ArenaPool>(on);
    const auto first = pooled(on, chain(*on, n), arenas), second = pooled(on, chain(*on, n), arenas);
    const Weight w = Weight::filled(*on, 7);
    const Blocks a(*on), b(*on);
    const auto mine = std::move(on->stream().value), other = std::move(on->stream().value),
               last = std::move(on->stream().value);
    REQUIRE(run_device(*first, w.weights, *a.x, *a.y, {true, mine->handle()}).ok());
    CHECK(run_stopped(*second, w.weights, b, {true, other->handle()}).code == Code::cancelled);
    CHECK_FALSE(mine->done().value);
    REQUIRE(run_device(*second, w.weights, *b.x, *b.y, {true, last->handle()}).ok());
    REQUIRE(last->synchronize().ok());
    CHECK(mine->done().value);
    CHECK(arenas->statistics().arenas == 1);
}

TEST_CASE("threads take and give back arenas while another waits for the device or allocates") {
    const auto on = std::make_shared<GatedBackend>();
    RunState state;
    enum class Call { replace, allocate, trim };
    for (const Call slow : {Call::replace, Call::allocate, Call::trim}) {
        ArenaPool arenas(on);
        ArenaPool::Arena* const small = take(arenas, 100);
        ArenaPool::Arena* const other = take(arenas, 200);
        if (slow != Call::allocate) REQUIRE(arenas.give_back(*small, &state, nullptr, true).ok());
        Gate& gate = slow == Call::allocate ? on->allocating : on->waiting;
        gate.close();
        ArenaPool::Arena* large = nullptr;
        int64_t trimmed = 0;
        std::thread busy([&] {
            if (slow == Call::trim)
                trimmed = arenas.trim();
            else
                large = take(arenas, 300);
        });
        gate.await();
        REQUIRE(arenas.give_back(*other, &state, nullptr, false).ok());
        CHECK(take(arenas, 150) == other);
        CHECK(arenas.statistics().held_bytes >= 200);
        CHECK(gate.open());
        busy.join();
        CHECK(trimmed == (slow == Call::trim ? 100 : 0));
        CHECK((large != nullptr) == (slow != Call::trim));
        if (large != nullptr) REQUIRE(arenas.give_back(*large, &state, nullptr, false).ok());
        if (slow == Call::allocate) REQUIRE(arenas.give_back(*small, &state, nullptr, false).ok());
        REQUIRE(arenas.give_back(*other, &state, nullptr, false).ok());
        CHECK(arenas.statistics().held_bytes == on->live);
    }
    CHECK(on->live == 0);
}

TEST_CASE("an allocation that fails leaves its bytes to others") {
    const auto on = std::make_shared<GatedBackend>();
    RunState state;
    ArenaPool arenas(on);
    arenas.set_limit(300);
    for (const bool keep : {false, true}) {
        on->refused = 300;
        bool allocated = false;
        ArenaPool::Request request;
        request.bytes = 300, request.keep = keep;
        CHECK(arenas.take(request, allocated).status.message == "refused");
        CHECK_FALSE(allocated);
        CHECK(arenas.statistics().held_bytes == 0);
        on->refused = 0;
        ArenaPool::Arena* const arena = take(arenas, 300, keep);
        CHECK(arenas.statistics().peak_bytes == 300);
        if (keep)
            arenas.release(*arena);
        else
            REQUIRE(arenas.give_back(*arena, &state, nullptr, false).ok());
        CHECK(arenas.trim() == 300);
    }
}

TEST_CASE("threads that share a limit never hold more") {
    const auto on = std::make_shared<GatedBackend>();
    ArenaPool arenas(on);
    arenas.set_limit(1000);
    std::atomic<int> failed{0};
    std::vector<std::thread> threads;
    for (size_t t = 0; t < 4; ++t)
        threads.emplace_back([&, t] {
            RunState state;
            for (size_t i = 0; i < 300; ++i) {
                bool allocated = false;
                ArenaPool::Request request;
                request.bytes = 100 + 150 * ((t + i) % 5), request.user = &state;
                const auto result = arenas.take(request, allocated);
                if (!result.status.ok()) {
                    ++failed;
                    continue;
                }
                std::fill_n(static_cast<char*>(result.value->memory), request.bytes, static_cast<char>(t));
                if (!arenas.give_back(*result.value, &state, &state, i % 2 == 0).ok()) ++failed;
                if (i % 50 == 0) arenas.trim();
            }
        });
    for (std::thread& thread : threads) thread.join();
    CHECK(failed == 0);
    CHECK(on->peak <= 1000);
    CHECK(arenas.statistics().peak_bytes <= 1000);
    CHECK(arenas.statistics().held_bytes == on->live);
    arenas.trim();
    CHECK(arenas.statistics().held_bytes == 0);
    CHECK(on->live == 0);
}
