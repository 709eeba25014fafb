// The executor on the CPU and null backends; a run allocates nothing.
#include "xpurt/executor.h"

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>
#include <string>
#include <vector>

#include "doctest/doctest.h"
#include "executor_case.h"
#include "xpurt/memory.h"

namespace {
std::atomic<int64_t> news{0};
}

// Counts every C++ allocation of this program.
[[gnu::noinline]] void* operator new(size_t size) {
    news.fetch_add(1, std::memory_order_relaxed);
    if (void* const block = std::malloc(size == 0 ? 1 : size)) return block;
    throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* block) noexcept { std::free(block); }
[[gnu::noinline]] void operator delete(void* block, size_t) noexcept { std::free(block); }

using namespace xpurt;

TEST_CASE("a plan gives the same result on any number of threads and in any batches") {
    for (const int threads : {1, 2, 5})
        for (const int batch : {0, 1, 2, 100}) {
            Plan plan = chain(1000);
            plan.batch = batch;
            const auto executor = make(cpu_backend(threads), plan);
            ChainArrays a(1000);
            const WeightBindings weights({a.w.data()}, false);
            REQUIRE(run(*executor, weights, {a.x.data()}, {a.y.data()}).ok());
            CHECK(a.matches());
        }
}

TEST_CASE("inputs, outputs and weights may change from run to run") {
    const auto executor = make(cpu_backend(2), chain(100));
    std::vector<ChainArrays> all(4, ChainArrays(100));
    std::vector<WeightBindings> weights;
    for (ChainArrays& a : all) {
        a.x[5] = static_cast<float>(&a - all.data());
        a.w[7] = 10 * static_cast<float>(&a - all.data());
        weights.emplace_back(std::vector<Memory>{a.w.data()}, false);
    }
    for (const size_t i : {0, 1, 1, 3, 2, 0, 0}) {
        std::fill(all[i].y.begin(), all[i].y.end(), -1.0f);
        REQUIRE(run(*executor, weights[i], {all[i].x.data()}, {all[i].y.data()}).ok());
        CHECK(all[i].matches());
    }
    CHECK(executor->counters().runs == 7);
    CHECK(executor->counters().dispatches == 14);
    CHECK(executor->counters().prepared == 2);
    CHECK(executor->counters().contexts == 1);
    CHECK(executor->counters().allocations == 1);
}

TEST_CASE("a thousand runs allocate nothing") {
    for (const int threads : {1, 2}) {
        const auto executor = make(cpu_backend(threads), chain(256));
        ChainArrays a(256);
        const WeightBindings weights({a.w.data()}, false);
        const std::vector<Memory> in{a.x.data()}, out{a.y.data()};
        std::vector<int64_t> times(2);
        EventRing ring(16);
        const auto once = [&] {
            return executor->run({&weights, in.data(), out.data(), times.data(), &ring}).ok();
        };
        REQUIRE(once());
        REQUIRE(once());
        const Counters before = executor->counters();
        const int64_t pool_before = MemoryPool::host().statistics().allocations;
        const int64_t news_before = news;
        const size_t heap_before = mallinfo2().uordblks;
        bool good = true;
        for (int i = 0; i < 1000; ++i) good &= once();
        const int64_t news_after = news;
        CHECK(good);
        CHECK(news_after == news_before);
        CHECK(mallinfo2().uordblks == heap_before);
        CHECK(MemoryPool::host().statistics().allocations == pool_before);
        CHECK(executor->counters().allocations == before.allocations);
        CHECK(executor->counters().prepared == before.prepared);
        CHECK(executor->counters().copies == 0);
        CHECK(executor->counters().runs == before.runs + 1000);
    }
}

TEST_CASE("each thread has its own aligned scratch") {
    Plan plan;
    plan.inputs = plan.outputs = 1;
    plan.module = kernels();
    plan.calls = {call("through_scratch", {{1, 0}, {2, 0}}, 4096)};
    plan.calls[0].scratch_bytes = 4096 * 4 + 4;
    const auto executor = make(cpu_backend(4), plan);
    ChainArrays a(4096);
    const WeightBindings none({}, false);
    for (int i = 0; i < 50; ++i) {
        std::fill(a.y.begin(), a.y.end(), 0.0f);
        REQUIRE(run(*executor, none, {a.x.data()}, {a.y.data()}).ok());
        REQUIRE(a.y == a.x);
    }
}

TEST_CASE("a kernel that reports an error fails its run but not the next one") {
    for (const int threads : {1, 3}) {
        Plan plan;
        plan.inputs = plan.outputs = 1;
        plan.module = kernels();
        plan.calls = {call("refuse_negative", {{1, 0}, {2, 0}}, 90)};
        plan.calls[0].scratch_bytes = 4;
        const auto executor = make(cpu_backend(threads), plan);
        ChainArrays a(90);
        const WeightBindings none({}, false);
        for (int i = 0; i < 3; ++i) {
            a.x[0] = a.x[40] = a.x[80] = -5;
            const Status status = run(*executor, none, {a.x.data()}, {a.y.data()});
            CHECK(status.code == Code::call_failed);
            CHECK(status.message == "kernel test/refuse_negative: index -5 is outside a dim of 7");
            a.x[0] = a.x[40] = a.x[80] = 5;
            CHECK(run(*executor, none, {a.x.data()}, {a.y.data()}).ok());
            CHECK(a.y == a.x);
        }
        CHECK(executor->counters().runs == 3);
    }
}

TEST_CASE("calls without tasks, plans without calls and copied outputs work") {
    Plan plan;
    plan.inputs = 1;
    plan.outputs = 2;
    plan.weights = 1;
    plan.module = kernels();
    plan.calls = {call("add", {{1, 0}, {1, 0}, {2, 0}}, 0)};
    plan.output_copies = {{{1, 4}, 0, 8}, {{4, 0}, 1, 4}};  // y0 = x[1:3], y1 = w[0:1]
    const auto executor = make(cpu_backend(2), plan);
    ChainArrays a(8);
    float second = 0;
    const WeightBindings weights({a.w.data()}, false);
    REQUIRE(run(*executor, weights, {a.x.data()}, {a.y.data(), &second}).ok());
    CHECK(a.y[0] == 2.0f);
    CHECK(a.y[1] == 3.0f);
    CHECK(a.y[2] == 0.0f);
    CHECK(second == -7.0f);
    CHECK(executor->counters().copies == 2);
    CHECK(make(cpu_backend(1), Plan{})
              ->run({&*std::make_unique<WeightBindings>(std::vector<Memory>{}, false)})
              .ok());
}

TEST_CASE("times and events cover every call") {
    Plan plan = chain(64);
    plan.batch = 1;
    const auto executor = make(cpu_backend(1), plan);
    ChainArrays a(64);
    const WeightBindings weights({a.w.data()}, false);
    std::vector<int64_t> times{-1, -1, -7};
    EventRing ring(8);
    const int64_t start = now_ns();
    REQUIRE(run(*executor, weights, {a.x.data()}, {a.y.data()}, times.data(), &ring).ok());
    const int64_t end = now_ns();
    CHECK(times[0] >= 0);
    CHECK(times[1] >= 0);
    CHECK(times[2] == -7);
    CHECK(times[0] + times[1] <= end - start);
    std::vector<Event> events(8);
    REQUIRE(ring.drain(events.data(), 8) == 2);
    CHECK(ring.names()[events[0].name] == "test/add");
    CHECK(ring.names()[events[1].name] == "test/scale");
    CHECK(events[1].step == 1);
    CHECK(events[1].payload == 64);
    CHECK(events[1].kind == EventKind::complete);
    CHECK(events[1].time_ns >= events[0].time_ns + events[0].duration_ns);
    CHECK(events[1].duration_ns == times[1]);
}

TEST_CASE("a plan that cannot be prepared gives a status") {
    const auto status = [](Plan plan) { return Executor::create(cpu_backend(1), std::move(plan), 1).status; };
    Plan plan = chain(8);
    plan.calls[0].symbol = "absent";
    CHECK(status(plan).code == Code::symbol_missing);
    CHECK(status(plan).message.find("absent") != std::string::npos);
    plan = chain(8);
    plan.module.reset();
    CHECK(status(plan).code == Code::symbol_missing);
    plan = chain(8);
    plan.calls[0].library = "nowhere";
    CHECK(status(plan).code == Code::not_found);
    plan = chain(8);
    plan.calls[0].args[0].slot = 4;
    CHECK(status(plan).code == Code::invalid);
    plan = chain(8);
    plan.calls[0].args[0].offset = -1;
    CHECK(status(plan).code == Code::invalid);
    plan = chain(8);
    plan.calls[0].grain = 0;
    CHECK(status(plan).code == Code::invalid);
    plan = chain(8);
    plan.output_copies = {{{1, 0}, 1, 4}};
    CHECK(status(plan).code == Code::invalid);
    const auto executor = make(cpu_backend(1), chain(8));
    const WeightBindings none({}, false);
    CHECK(executor->run({&none}).code == Code::invalid);
}

TEST_CASE("an arena that cannot be allocated gives a status, and the next run retries") {
    Plan plan = chain(8);
    plan.arena_bytes = INT64_MAX / 4;
    const auto executor = make(cpu_backend(1), plan, 1);
    ChainArrays a(8);
    const WeightBindings weights({a.w.data()}, false);
    for (int i = 0; i < 2; ++i)
        CHECK(run(*executor, weights, {a.x.data()}, {a.y.data()}).code == Code::no_memory);
    CHECK(executor->counters().runs == 0);
}

TEST_CASE("a run takes its arena from the caller, and then keeps none") {
    const auto executor = make(cpu_backend(1), chain(8), 1);
    ChainArrays a(8);
    const WeightBindings weights({a.w.data()}, false);
    CHECK(executor->arena_bytes() == 256);  // 64 + 32, rounded up
    const Memory in = a.x.data(), out = a.y.data();
    Executor::Run run;
    run.weights = &weights, run.inputs = &in, run.outputs = &out;
    std::vector<float> first(64, -1), second(64, -1);
    for (std::vector<float>* arena : {&first, &second, &first}) {
        std::fill(a.y.begin(), a.y.end(), 0.0f);
        std::fill(arena->begin(), arena->end(), -1.0f);
        run.arena = arena->data();
        REQUIRE(executor->run(run).ok());
        CHECK(a.matches());
        CHECK((*arena)[15] == -1);  // before byte 64
        CHECK((*arena)[16] == a.x[0] + a.w[0]);
    }
    CHECK(executor->counters().allocations == 0);
    std::fill(first.begin(), first.end(), -1.0f);
    run.arena = nullptr;
    REQUIRE(executor->run(run).ok());
    CHECK(a.matches());
    CHECK(first[16] == -1);
    CHECK(executor->counters().allocations == 1);
}

TEST_CASE("the null backend computes nothing and records every dispatch") {
    const auto backend = null_backend();
    Plan plan = chain(8);
    plan.module.reset();  // it needs no code
    const auto executor = make(backend, plan);
    ChainArrays a(8);
    const WeightBindings weights({a.w.data()}, false);
    std::vector<int64_t> times{-1, -1};
    REQUIRE(run(*executor, weights, {a.x.data()}, {a.y.data()}, times.data()).ok());
    REQUIRE(run(*executor, weights, {a.x.data()}, {a.y.data()}).ok());
    CHECK(a.y == std::vector<float>(8, 0));
    CHECK(times == std::vector<int64_t>{0, 0});
    const auto seen = backend->dispatches();
    REQUIRE(seen.size() == 4);
    CHECK(seen[0].kernel == "test/add");
    CHECK(seen[0].args == 3);
    CHECK(seen[3].symbol == "scale");
    CHECK(seen[3].tasks == 8);
    CHECK(seen[3].params == std::vector<uint64_t>{bits(0.5), 3});
    backend->forget();
    CHECK(backend->dispatches().empty());
}

namespace {

// A library that negates the number of elements in its options.
class Negating final : public KernelLibrary {
  public:
    std::string version() const override { return "1.0"; }
    Result<std::unique_ptr<LibraryKernel>> prepare(const KernelCall& call, int threads) override {
        const auto option = call.options.find("count");
        if (option == call.options.end() || call.specs.size() != 2 || call.specs[0].dtype != "float32")
            return Status{Code::unsupported, "negate wants a count and float32", ""};
        return std::unique_ptr<LibraryKernel>(new NegateKernel(std::get<int64_t>(option->second), threads));
    }

  private:
    struct NegateKernel final : LibraryKernel {
        int64_t count;
        int threads;
        NegateKernel(int64_t n, int t) : count(n), threads(t) {}
        Status execute(void* const* args, void*) const override {
            for (int64_t i = 0; i < count; ++i)
                static_cast<float*>(args[1])[i] = -static_cast<const float*>(args[0])[i];
            return count == 13 ? Status{Code::call_failed, "13 is too many", ""} : Status{};
        }
        std::string implementation() const override { return "negate:plain"; }
    };
};

}  // namespace

TEST_CASE("library kernels run among generated ones") {
    register_kernel_library("negating", std::make_unique<Negating>());
    for (const int64_t n : {8, 13}) {
        Plan plan = chain(n);
        KernelCall negate = call("negate", {{2, 0}, {2, 0}}, 1);
        negate.library = "negating";
        plan.calls.push_back(negate);
        CHECK(Executor::create(cpu_backend(2), plan, 1).status.code == Code::unsupported);
        plan.calls[2].options["count"] = n;
        plan.calls[2].specs = {{"float32", {n}, {1}}, {"float32", {n}, {1}}};
        const auto executor = make(cpu_backend(2), plan);
        ChainArrays a(n);
        const WeightBindings weights({a.w.data()}, false);
        const Status status = run(*executor, weights, {a.x.data()}, {a.y.data()});
        CHECK(status.ok() == (n == 8));
        CHECK(a.y[2] == -((3.0f - 5.0f) * 0.5f + 3));
        CHECK(executor->counters().runs == (n == 8 ? 1 : 0));
    }
}
