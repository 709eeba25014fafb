// Errors that kernels report, such as an index out of range: each is returned once, with the name of the
// call, by the run itself if it waits for the device, otherwise by a later call.
#include "doctest/doctest.h"
#include "simulated_cuda.h"

using namespace xpurt;
using namespace simulated;

TEST_CASE("an index out of range fails the run with the kernel's name, and the next run succeeds") {
    const auto on = backend();
    const auto executor = make(on, pick(*on));
    const Weight good = Weight::filled(*on, 7), bad = Weight::filled(*on, 1234);
    Arrays a(0);
    for (int i = 0; i < 3; ++i) {  // as single launches, then as a CUDA graph
        REQUIRE(run_host(*executor, good.weights, a).ok());
        CHECK(a.y[n - 1] == 7);
        const Status status = run_host(*executor, bad.weights, a);
        CHECK(status.message == "kernel test/pick (node embed): index 1234 is outside a dim of 1000");
        CHECK(status.advice == "Check the values of the inputs that are indices or sizes.");
    }
    REQUIRE(run_host(*executor, good.weights, a).ok());
    CHECK(executor->counters().runs == 4);
}

TEST_CASE("a queued run's report is returned once, by the next wait for the device") {
    const auto on = backend();
    const auto executor = make(on, pick(*on), 1);
    const Weight bad = Weight::filled(*on, -3);
    const auto x = on->block(4 * n, {}).value, y = on->block(4 * n, {}).value;
    auto mine = std::move(on->stream().value);
    REQUIRE(run_device(*executor, bad.weights, *x, *y, {true, mine->handle()}).ok());
    CHECK(on->reported().ok());  // the work has not run yet
    const Status status = on->synchronize(nullptr);
    CHECK(status.message ==
          "a queued run failed: kernel test/pick (node embed): index -3 is outside a dim of 1000");
    CHECK(on->reported().ok());
    CHECK(on->synchronize(nullptr).ok());
}

TEST_CASE("a queued run's report is returned by the next run of its context") {
    const auto on = backend();
    const auto executor = make(on, pick(*on), 1);
    const Weight bad = Weight::filled(*on, -3), good = Weight::filled(*on, 1);
    const auto x = on->block(4 * n, {}).value, y = on->block(4 * n, {}).value;
    auto mine = std::move(on->stream().value);
    const StreamOrder order{true, mine->handle()};
    REQUIRE(run_device(*executor, bad.weights, *x, *y, order).ok());
    REQUIRE(run_device(*executor, good.weights, *x, *y, order).ok());  // the report is not known yet
    REQUIRE(mine->synchronize().ok());
    CHECK(run_device(*executor, good.weights, *x, *y, order).message.find("index -3 is outside") !=
          std::string::npos);
    REQUIRE(run_device(*executor, good.weights, *x, *y, order).ok());
    REQUIRE(mine->synchronize().ok());
    CHECK(on->reported().ok());
}

TEST_CASE("a run in flight fails when a concurrent run's report is consumed") {
    const auto on = backend();
    Plan plan = pick(*on);
    const auto first = make(on, plan, 1), second = make(on, plan, 1);  // of the same module
    const Weight bad = Weight::filled(*on, 5000), good = Weight::filled(*on, 1);
    const auto x = on->block(4 * n, {}).value, y = on->block(4 * n, {}).value;
    auto mine = std::move(on->stream().value);
    REQUIRE(run_device(*second, good.weights, *x, *y, {true, mine->handle()}).ok());
    Arrays a(0);
    CHECK(run_host(*first, bad.weights, a).message ==
          "kernel test/pick (node embed): index 5000 is outside a dim of 1000");
    REQUIRE(mine->synchronize().ok());
    CHECK(on->reported().message ==
          "a queued run failed: a concurrent run failed: kernel test/pick (node embed): index "
          "5000 is outside a dim of 1000");
    REQUIRE(run_host(*second, good.weights, a).ok());
}

TEST_CASE("a run without reports copies nothing to the host") {
    const auto on = backend();
    const auto executor = make(on, pick(*on), 1);
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

TEST_CASE("kernels with an older report format are not loaded") {
    const auto on = backend();
    const Status status = load(*on, PROBES "/libprobe_former_kernels.so").status;
    CHECK(status.message == "the kernels report errors in the format of an older version");
    CHECK(status.advice == "Compile the model again.");
}

TEST_CASE("kernels whose report address cannot be set are not loaded") {
    const auto on = backend();
    fail("cuMemcpyHtoDAsync_v2", 2);
    const Status status = load(*on, PROBES "/libprobe_simulated_kernels.so").status;
    fail("cuMemcpyHtoDAsync_v2", 0);
    CHECK(status.message.find("cuMemcpyHtoDAsync_v2") != std::string::npos);
    CHECK(load(*on, PROBES "/libprobe_simulated_kernels.so").status.ok());
}
