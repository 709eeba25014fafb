// Arenas that executors share, over the simulated driver: the order of runs that use one arena in turn.
#include <atomic>
#include <memory>
#include <vector>

#include "doctest/doctest.h"
#include "simulated_cuda.h"
#include "xpurt/arena_pool.h"

using namespace xpurt;
using namespace simulated;

namespace {

constexpr int64_t arena_bytes = 1 << 16;  // of each plan, so that all runs take the same arena

std::unique_ptr<Executor> pooled(const std::shared_ptr<CudaBackend>& on, Plan plan,
                                 const std::shared_ptr<ArenaPool>& arenas) {
    plan.arena_bytes = arena_bytes;
    auto result = Executor::create(on, std::move(plan), 1, arenas);
    REQUIRE_MESSAGE(result.status.ok(), result.status.message);
    return std::move(result.value);
}

// y[i] = x[at[i]], where `at` is passed as the weight. An index out of range is reported.
Plan picking(CudaBackend& on) {
    Plan plan = chain(on, n);
    KernelCall pick = call("pick", {{1, 0}, {3, 0}, {2, 0}}, n);
    pick.params = {static_cast<uint64_t>(n)};
    pick.scratch_bytes = 64;  // calls with scratch may report
    plan.calls = {pick};
    return plan;
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

}  // namespace

TEST_CASE("a run that fails before it uses its arena leaves the mark of the run that does") {
    for (const bool host : {false, true}) {
        const auto on = backend();
        const auto arenas = std::make_shared<ArenaPool>(on);
        const auto first = pooled(on, chain(*on, n), arenas), second = pooled(on, picking(*on), arenas),
                   third = pooled(on, chain(*on, n), arenas);
        const Weight w = Weight::filled(*on, 7), good = Weight::filled(*on, 1),
                     bad = Weight::filled(*on, 1234);
        const Blocks a(*on), b(*on), c(*on);
        const auto mine = std::move(on->stream().value), other = std::move(on->stream().value),
                   last = std::move(on->stream().value);
        Arrays arrays(0);
        if (host) REQUIRE(run_host(*second, good.weights, arrays).ok());  // the arena has room for its copies
        REQUIRE(run_device(*second, bad.weights, *b.x, *b.y, {true, other->handle()}).ok());
        REQUIRE(other->synchronize().ok());  // the report is known now
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
