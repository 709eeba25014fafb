// The log of failures that have no caller, and the destructors that use it.
#include "base/log.h"

#include <string>
#include <vector>

#include "base/owned_handle.h"
#include "simulated_cuda.h"

using namespace xpurt;
using namespace simulated;

namespace {

std::vector<std::string> lines;

// Collects the log's lines instead of writing them to stderr.
struct CollectedLog {
    CollectedLog() : previous(set_log_sink([](const std::string& line) { lines.push_back(line); })) {
        lines.clear();
    }
    ~CollectedLog() { set_log_sink(previous); }
    const LogSink previous;
};

// Allocate a block and let its release fail with `result`, then free the memory that the failure left behind.
void fail_to_free(CudaBackend& on, int result) {
    auto block = on.block(64, {}).value;
    const uint64_t address = block->address();
    fail("cuMemFreeAsync", result);
    block.reset();
    fail("cuMemFreeAsync", 0);
    REQUIRE(control<int (*)(uint64_t, void*)>("cuMemFreeAsync")(address, nullptr) == 0);
    REQUIRE(on.synchronize(nullptr).ok());
}

}  // namespace

TEST_CASE("each failure is logged once, and success is not logged") {
    const CollectedLog log;
    log_failure({});
    log_failure({Code::call_failed, "first", ""});
    log_failure({Code::call_failed, "second", ""});
    log_failure({Code::call_failed, "first", ""});
    CHECK(lines == std::vector<std::string>{"first", "second"});
}

TEST_CASE("an owned handle is destroyed once, and its failure is logged") {
    const CollectedLog log;
    static int destroyed = 0;
    {
        OwnedHandle<ResultCode> handle([](void*) { return ++destroyed, ResultCode{7}; });
        *handle.out() = &lines;
        const OwnedHandle<ResultCode> moved(std::move(handle));
        CHECK(moved.get() == &lines);
        const OwnedHandle<ResultCode> empty([](void*) { return ++destroyed, ResultCode{7}; });
    }
    CHECK(destroyed == 1);
    CHECK(lines == std::vector<std::string>{"a library could not destroy a handle: result 7"});
}

TEST_CASE("a device's failure to free memory is logged with the call and the error") {
    const CollectedLog log;
    const auto on = backend();
    fail_to_free(*on, 400);
    REQUIRE(lines.size() == 1);
    CHECK(lines[0] == "cuMemFreeAsync returned CUDA_ERROR_UNKNOWN (simulated)");
}

TEST_CASE("failures after the driver's shutdown or on a lost context are not logged") {
    const CollectedLog log;
    const auto on = backend();
    for (const int result : {4, 700, 719}) fail_to_free(*on, result);
    CHECK(lines.empty());
}
