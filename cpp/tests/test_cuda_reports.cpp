// What kernels report that they cannot compute: read at the end of a run, told with the call's name, once.
#include "doctest/doctest.h"
#include "simulated_cuda.h"

using namespace xpurt;
using namespace simulated;

namespace {

// y[i] = x[at[i]], with at in the weight's place.
Plan picking(CudaBackend& on) {
    Plan plan = chain(on, n);
    KernelCall pick = call("pick", {{1, 0}, {3, 0}, {2, 0}}, n);
    pick.params = {static_cast<uint64_t>(n)};
    pick.scratch_bytes = 64;  // it reports
    pick.nodes = "node embed";
    plan.calls = {pick};
    return plan;
}

}  // namespace

TEST_CASE(
    "an index outside its dim ends a run with the kernel's and the node's name, and the next run is well") {
    const auto on = backend();
    const auto executor = make(on, picking(*on));
    const Weight good = Weight::filled(*on, 7), bad = Weight::filled(*on, 1234);
    Arrays a(0);
    for (int i = 0; i < 3; ++i) {  // kernel by kernel, and as a graph
        REQUIRE(run_host(*executor, good.weights, a).ok());
        CHECK(a.y[n - 1] == 7);
        const Status status = run_host(*executor, bad.weights, a);
        CHECK(status.message == "kernel test/pick (node embed): index 1234 is outside a dim of 1000");
        CHECK(status.advice == "Look at the values of the inputs that name places or sizes.");
    }
    REQUIRE(run_host(*executor, good.weights, a).ok());
    CHECK(executor->counters().runs == 4);
}

TEST_CASE("a queued run's report is told when somebody waits for the device, and once") {
    const auto on = backend();
    const auto executor = make(on, picking(*on), 1);
    const Weight bad = Weight::filled(*on, -3);
    const auto x = on->block(4 * n, {}).value, y = on->block(4 * n, {}).value;
    auto mine = std::move(on->stream().value);
    REQUIRE(run_device(*executor, bad.weights, *x, *y, {true, mine->handle()}).ok());
    CHECK(on->reported().ok());  // it has not run yet
    const Status status = on->synchronize(nullptr);
    CHECK(status.message ==
          "a run that was queued failed: kernel test/pick (node embed): index -3 is outside a dim of 1000");
    CHECK(on->reported().ok());
    CHECK(on->synchronize(nullptr).ok());
}

TEST_CASE("a queued run's report is told by the next run of its context") {
    const auto on = backend();
    const auto executor = make(on, picking(*on), 1);
    const Weight bad = Weight::filled(*on, -3), good = Weight::filled(*on, 1);
    const auto x = on->block(4 * n, {}).value, y = on->block(4 * n, {}).value;
    auto mine = std::move(on->stream().value);
    const StreamOrder order{true, mine->handle()};
    REQUIRE(run_device(*executor, bad.weights, *x, *y, order).ok());
    REQUIRE(run_device(*executor, good.weights, *x, *y, order).ok());  // not known yet
    REQUIRE(mine->synchronize().ok());
    CHECK(run_device(*executor, good.weights, *x, *y, order).message.find("index -3 is outside") !=
          std::string::npos);
    REQUIRE(run_device(*executor, good.weights, *x, *y, order).ok());
    REQUIRE(mine->synchronize().ok());
    CHECK(on->reported().ok());
}

TEST_CASE("a run in flight beside one whose report was taken away fails too: its own may have gone with it") {
    const auto on = backend();
    Plan plan = picking(*on);
    const auto first = make(on, plan, 1), second = make(on, plan, 1);  // over one module
    const Weight bad = Weight::filled(*on, 5000), good = Weight::filled(*on, 1);
    const auto x = on->block(4 * n, {}).value, y = on->block(4 * n, {}).value;
    auto mine = std::move(on->stream().value);
    REQUIRE(run_device(*second, good.weights, *x, *y, {true, mine->handle()}).ok());
    Arrays a(0);
    CHECK(run_host(*first, bad.weights, a).message ==
          "kernel test/pick (node embed): index 5000 is outside a dim of 1000");
    REQUIRE(mine->synchronize().ok());
    CHECK(on->reported().message ==
          "a run that was queued failed: a run beside this one failed: kernel test/pick (node embed): index "
          "5000 is outside a dim of 1000");
    REQUIRE(run_host(*second, good.weights, a).ok());
}

TEST_CASE("a run with nothing to report moves nothing to the host") {
    const auto on = backend();
    const auto executor = make(on, picking(*on), 1);
    const Weight good = Weight::filled(*on, 1);
    const auto x = on->block(4 * n, {}).value, y = on->block(4 * n, {}).value;
    auto mine = std::move(on->stream().value);
    const int before = calls("cuMemcpyDtoHAsync_v2");
    for (int i = 0; i < 3; ++i)
        REQUIRE(run_device(*executor, good.weights, *x, *y, {true, mine->handle()}).ok());
    REQUIRE(mine->synchronize().ok());
    CHECK(on->reported().ok());
    CHECK(calls("cuMemcpyDtoHAsync_v2") == before);
}

TEST_CASE("kernels that report where nobody looks any more are not loaded") {
    const auto on = backend();
    const Status status = load(*on, PROBES "/libprobe_former_kernels.so").status;
    CHECK(status.message == "the kernels report what they cannot compute in an older version's way");
    CHECK(status.advice == "Compile the model again.");
}

TEST_CASE("kernels that cannot be told where to report are not loaded") {
    const auto on = backend();
    fail("cuMemcpyHtoDAsync_v2", 2);
    const Status status = load(*on, PROBES "/libprobe_simulated_kernels.so").status;
    fail("cuMemcpyHtoDAsync_v2", 0);
    CHECK(status.message.find("cuMemcpyHtoDAsync_v2") != std::string::npos);
    CHECK(load(*on, PROBES "/libprobe_simulated_kernels.so").status.ok());
}
