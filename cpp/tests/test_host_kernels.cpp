// Functions of the embedding program as calls of a plan, on the host and on CUDA; calls with a module of
// their own.
#include "xpurt/host_kernel.h"

#include <mutex>

#include "simulated_cuda.h"

using namespace xpurt;
using namespace simulated;

namespace {

// A function that fails with a message, or copies its first argument to its last.
struct Copies final : HostKernel {
    static inline std::string fails;
    static inline std::vector<void*> streams;
    Status run(void* const* args, void* stream) const override {
        streams.push_back(stream);
        if (!fails.empty()) return {Code::call_failed, fails, ""};
        if (stream == nullptr)
            std::memcpy(args[1], args[0], 4 * n);
        else
            control<int (*)(uint64_t, uint64_t, size_t, void*)>("cuMemcpyDtoDAsync_v2")(
                reinterpret_cast<uint64_t>(args[1]), reinterpret_cast<uint64_t>(args[0]), 4 * n, stream);
        return {};
    }
};

std::mutex lookups;
std::string last_lookup;  // the last lookup of a function; several threads prepare calls

void find_copies() {
    set_host_kernels(
        [](const KernelCall& call, const std::string& device) -> Result<std::unique_ptr<HostKernel>> {
            const std::lock_guard<std::mutex> lock(lookups);
            last_lookup = call.symbol + " on " + device;
            if (call.symbol != "copy")
                return Status{Code::not_found, "there is no " + call.symbol, "Register it."};
            return std::unique_ptr<HostKernel>(std::make_unique<Copies>());
        });
}

KernelCall python(std::string symbol, std::vector<BufferRef> args) {
    KernelCall result;
    result.kernel = "test/python";
    result.symbol = std::move(symbol);
    result.library = "python";
    result.args = std::move(args);
    result.inputs = 1;
    return result;
}

// y = x through the arena, with two calls of the function.
Plan copying() {
    Plan plan;
    plan.name = "copying";
    plan.arena_bytes = 256 + 4 * n;
    plan.inputs = plan.outputs = 1;
    plan.io_bytes = {4 * n, 4 * n};
    plan.calls = {python("copy", {{1, 0}, {0, 256}}), python("copy", {{0, 256}, {2, 0}})};
    return plan;
}

}  // namespace

TEST_CASE("a plan with a call of an unknown function is refused") {
    set_host_kernels({});
    const auto none = Executor::create(cpu_backend(1), copying(), 1);
    CHECK(none.status.message == "kernel test/python is a function that this process cannot call");
    find_copies();
    Plan plan = copying();
    plan.calls[1].symbol = "paste";
    const auto unknown = Executor::create(cpu_backend(1), plan, 1);
    CHECK(unknown.status.code == Code::not_found);
    CHECK(unknown.status.message == "there is no paste");
    CHECK(last_lookup == "paste on cpu");
}

TEST_CASE("functions run on the host, and a failure affects its run only") {
    find_copies();
    auto result = Executor::create(cpu_backend(2), copying(), 1);
    REQUIRE(result.status.ok());
    CHECK(result.value->implementations() ==
          std::vector<std::string>{"Python function copy", "Python function copy"});
    const WeightBindings nothing({}, false);
    for (const std::string& text : {std::string(), std::string("ValueError: no"), std::string()}) {
        Copies::fails = text;
        Arrays a(5);
        const Memory in = a.x.data(), out = a.y.data();
        Executor::Run run;
        run.weights = &nothing, run.inputs = &in, run.outputs = &out;
        const Status status = result.value->run(run);
        CHECK(status.ok() == text.empty());
        CHECK(status.message.find(text) != std::string::npos);
        if (text.empty()) CHECK(a.x == a.y);
    }
}

TEST_CASE("on CUDA a function queues its work on the run's stream, without a graph") {
    find_copies();
    const auto on = backend();
    const auto executor = make(on, copying(), 1);
    CHECK(last_lookup == "copy on cuda:0");
    const WeightBindings nothing({}, false);
    Copies::streams.clear();
    for (int i = 0; i < 4; ++i) {
        Arrays a(static_cast<float>(i));
        REQUIRE(run_host(*executor, nothing, a).ok());
        CHECK(a.x == a.y);
    }
    CHECK(Copies::streams.size() == 8);
    CHECK(on->counters().captures == 0);
    CHECK(on->counters().plain == 4);
    const auto declined = on->declined();
    REQUIRE(declined.size() == 1);
    CHECK(declined[0].find("the Python function copy cannot be part of a CUDA graph") != std::string::npos);

    auto mine = std::move(on->stream().value);
    const auto x = on->block(4 * n, {}).value, y = on->block(4 * n, {}).value;
    REQUIRE(run_device(*executor, nothing, *x, *y, {true, mine->handle()}).ok());
    CHECK(Copies::streams.back() == mine->handle());
    REQUIRE(mine->synchronize().ok());
}

TEST_CASE("a call may have a module of its own") {
    const auto on = backend();
    Plan plan = chain(*on, n);
    const auto own_module = plan.module;
    plan.module.reset();
    for (KernelCall& call : plan.calls) call.own_module = own_module;
    const auto executor = make(on, std::move(plan), 1);
    const Weight w = Weight::filled(*on, 7);
    for (int i = 0; i < 3; ++i) {
        Arrays a(static_cast<float>(i));
        REQUIRE(run_host(*executor, w.weights, a).ok());
        CHECK(a.right());
    }
}
