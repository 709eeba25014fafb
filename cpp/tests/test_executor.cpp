// The executor: plans on the host and on the null device, contexts, states, cancelling, and that a run
// allocates nothing.
#include "xpurt/executor.h"

#include <malloc.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <new>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "doctest/doctest.h"
#include "xpurt/memory.h"

namespace {
std::atomic<int64_t> news{0};
}

// Every C++ allocation of this program is counted.
[[gnu::noinline]] void* operator new(size_t size) {
    news.fetch_add(1, std::memory_order_relaxed);
    if (void* const block = std::malloc(size == 0 ? 1 : size)) return block;
    throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* block) noexcept { std::free(block); }
[[gnu::noinline]] void operator delete(void* block, size_t) noexcept { std::free(block); }

using namespace xpurt;

namespace {

std::shared_ptr<const Module> kernels() {
    static const std::shared_ptr<const Module> module = [] {
        std::ifstream file(PROBES "/libprobe_kernels.so", std::ios::binary);
        const std::vector<char> bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
        return load_module(bytes.data(), bytes.size()).value;
    }();
    return module;
}

uint64_t bits(double value) {
    uint64_t word = 0;
    std::memcpy(&word, &value, sizeof word);
    return word;
}

KernelCall call(std::string symbol, std::vector<Place> args, int64_t tasks) {
    KernelCall made;
    made.kernel = "test/" + symbol;
    made.symbol = std::move(symbol);
    made.args = std::move(args);
    made.tasks = tasks;
    return made;
}

// Slots: 0 arena, 1 input x, 2 output y, 3 weight w. y = (x + w) * 0.5 + 3, by way of the arena at byte 64.
Plan chain(int64_t n, int64_t grain = 1) {
    Plan plan;
    plan.name = "chain";
    plan.arena_bytes = 64 + 4 * n;
    plan.inputs = plan.outputs = plan.fixed = 1;
    plan.module = kernels();
    plan.calls = {call("add", {{1, 0}, {3, 0}, {0, 64}}, n), call("scale", {{0, 64}, {2, 0}}, n)};
    plan.calls[1].params = {bits(0.5), 3};
    for (KernelCall& each : plan.calls) each.grain = grain;
    return plan;
}

struct Arrays {
    std::vector<float> x, w, y;
    explicit Arrays(int64_t n)
        : x(static_cast<size_t>(n)), w(static_cast<size_t>(n)), y(static_cast<size_t>(n)) {
        std::iota(x.begin(), x.end(), 1.0f);
        std::iota(w.begin(), w.end(), -7.0f);
    }
    bool right() const {
        for (size_t i = 0; i < y.size(); ++i)
            if (y[i] != (x[i] + w[i]) * 0.5f + 3) return false;
        return true;
    }
};

std::unique_ptr<Executor> make(const std::shared_ptr<Backend>& backend, Plan plan, int contexts = 2) {
    auto made = Executor::create(backend, std::move(plan), contexts);
    REQUIRE(made.status.ok());
    return std::move(made.value);
}

Status run(Executor& executor, const Fixed& fixed, std::vector<Memory> in, std::vector<Memory> out,
           int64_t* times = nullptr, EventRing* ring = nullptr) {
    return executor.run({&fixed, in.data(), out.data(), times, ring});
}

}  // namespace

TEST_CASE("a plan computes the same on any number of threads, in any batches") {
    for (const int threads : {1, 2, 5})
        for (const int batch : {0, 1, 2, 100}) {
            Plan plan = chain(1000);
            plan.batch = batch;
            const auto executor = make(cpu_backend(threads), plan);
            Arrays a(1000);
            const Fixed fixed({a.w.data()}, false);
            REQUIRE(run(*executor, fixed, {a.x.data()}, {a.y.data()}).ok());
            CHECK(a.right());
        }
}

TEST_CASE("inputs, outputs and weights change from run to run") {
    const auto executor = make(cpu_backend(2), chain(100));
    std::vector<Arrays> all(4, Arrays(100));
    std::vector<Fixed> fixed;
    for (Arrays& a : all) {
        a.x[5] = static_cast<float>(&a - all.data());
        a.w[7] = 10 * static_cast<float>(&a - all.data());
        fixed.emplace_back(std::vector<Memory>{a.w.data()}, false);
    }
    for (const size_t i : {0, 1, 1, 3, 2, 0, 0}) {
        std::fill(all[i].y.begin(), all[i].y.end(), -1.0f);
        REQUIRE(run(*executor, fixed[i], {all[i].x.data()}, {all[i].y.data()}).ok());
        CHECK(all[i].right());
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
        Arrays a(256);
        const Fixed fixed({a.w.data()}, false);
        const std::vector<Memory> in{a.x.data()}, out{a.y.data()};
        std::vector<int64_t> times(2);
        EventRing ring(16);
        const auto once = [&] {
            return executor->run({&fixed, in.data(), out.data(), times.data(), &ring}).ok();
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

TEST_CASE("each thread has aligned memory of its own") {
    Plan plan;
    plan.inputs = plan.outputs = 1;
    plan.module = kernels();
    plan.calls = {call("through_scratch", {{1, 0}, {2, 0}}, 4096)};
    plan.calls[0].scratch_bytes = 4096 * 4 + 4;
    const auto executor = make(cpu_backend(4), plan);
    Arrays a(4096);
    const Fixed none({}, false);
    for (int i = 0; i < 50; ++i) {
        std::fill(a.y.begin(), a.y.end(), 0.0f);
        REQUIRE(run(*executor, none, {a.x.data()}, {a.y.data()}).ok());
        REQUIRE(a.y == a.x);
    }
}

TEST_CASE("a kernel that cannot compute what it met fails its run, and not the next one") {
    for (const int threads : {1, 3}) {
        Plan plan;
        plan.inputs = plan.outputs = 1;
        plan.module = kernels();
        plan.calls = {call("refuse_negative", {{1, 0}, {2, 0}}, 90)};
        plan.calls[0].scratch_bytes = 4;
        const auto executor = make(cpu_backend(threads), plan);
        Arrays a(90);
        const Fixed none({}, false);
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

TEST_CASE("no tasks, no calls, and outputs that are handed through") {
    Plan plan;
    plan.inputs = 1;
    plan.outputs = 2;
    plan.fixed = 1;
    plan.module = kernels();
    plan.calls = {call("add", {{1, 0}, {1, 0}, {2, 0}}, 0)};
    plan.handovers = {{{1, 4}, 0, 8}, {{4, 0}, 1, 4}};  // y0 = x[1:3], y1 = w[0:1]
    const auto executor = make(cpu_backend(2), plan);
    Arrays a(8);
    float second = 0;
    const Fixed fixed({a.w.data()}, false);
    REQUIRE(run(*executor, fixed, {a.x.data()}, {a.y.data(), &second}).ok());
    CHECK(a.y[0] == 2.0f);
    CHECK(a.y[1] == 3.0f);
    CHECK(a.y[2] == 0.0f);
    CHECK(second == -7.0f);
    CHECK(executor->counters().copies == 2);
    CHECK(make(cpu_backend(1), Plan{})->run({&*std::make_unique<Fixed>(std::vector<Memory>{}, false)}).ok());
}

TEST_CASE("threads share an executor: more callers than contexts, and more than workers") {
    for (const int contexts : {1, 2, 8}) {
        const auto executor = make(cpu_backend(2), chain(500), contexts);
        std::atomic<int> wrong{0};
        std::vector<std::thread> callers;
        for (int c = 0; c < 5; ++c)
            callers.emplace_back([&, c] {
                Arrays a(500);
                a.x[0] = static_cast<float>(c);
                const Fixed fixed({a.w.data()}, false);
                for (int i = 0; i < 200; ++i) {
                    a.y[0] = -1;
                    if (!run(*executor, fixed, {a.x.data()}, {a.y.data()}).ok() || !a.right()) ++wrong;
                }
            });
        for (std::thread& caller : callers) caller.join();
        CHECK(wrong == 0);
        CHECK(executor->counters().runs == 1000);
        CHECK(executor->counters().contexts <= contexts);
    }
}

TEST_CASE("runs over states take turns") {
    Plan plan;  // state = state + x
    plan.inputs = plan.fixed = 1;
    plan.module = kernels();
    plan.calls = {call("add", {{2, 0}, {1, 0}, {2, 0}}, 64)};
    const auto first = make(cpu_backend(1), plan, 4), second = make(cpu_backend(1), plan, 4);
    std::vector<float> state(64, 0), one(64, 1);
    const Fixed fixed({state.data()}, true);
    Fixed shared({state.data()}, true);
    shared.share_turn(fixed);
    std::vector<std::thread> callers;
    for (int c = 0; c < 4; ++c)
        callers.emplace_back([&, c] {
            for (int i = 0; i < 250; ++i)
                (void)run(c % 2 == 0 ? *first : *second, c % 2 == 0 ? fixed : shared, {one.data()}, {});
        });
    for (std::thread& caller : callers) caller.join();
    CHECK(state == std::vector<float>(64, 1000));
}

TEST_CASE("times and events of every call") {
    Plan plan = chain(64);
    plan.batch = 1;
    const auto executor = make(cpu_backend(1), plan);
    Arrays a(64);
    const Fixed fixed({a.w.data()}, false);
    std::vector<int64_t> times{-1, -1, -7};
    EventRing ring(8);
    const int64_t start = now_ns();
    REQUIRE(run(*executor, fixed, {a.x.data()}, {a.y.data()}, times.data(), &ring).ok());
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

TEST_CASE("what cannot be prepared is a status") {
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
    plan.handovers = {{{1, 0}, 1, 4}};
    CHECK(status(plan).code == Code::invalid);
    const auto executor = make(cpu_backend(1), chain(8));
    const Fixed none({}, false);
    CHECK(executor->run({&none}).code == Code::invalid);
}

TEST_CASE("an arena that no memory is left for is a status, and the next run tries again") {
    Plan plan = chain(8);
    plan.arena_bytes = INT64_MAX / 4;
    const auto executor = make(cpu_backend(1), plan, 1);
    Arrays a(8);
    const Fixed fixed({a.w.data()}, false);
    for (int i = 0; i < 2; ++i)
        CHECK(run(*executor, fixed, {a.x.data()}, {a.y.data()}).code == Code::no_memory);
    CHECK(executor->counters().runs == 0);
}

TEST_CASE("a flag of its own ends a run, and no other one") {
    Plan plan;
    plan.outputs = 1;
    plan.module = kernels();
    for (int i = 0; i < 50; ++i) plan.calls.push_back(call("slow", {{1, 0}}, 1));
    const auto executor = make(cpu_backend(1), plan, 2);
    const Fixed none({}, false);
    float mine = 0, other = 0;
    Memory outputs[] = {&mine};
    std::atomic<bool> stop{true};
    Executor::Run doomed;
    doomed.fixed = &none;
    doomed.outputs = outputs;
    doomed.stop = &stop;
    std::thread beside([&] { CHECK(run(*executor, none, {}, {&other}).ok()); });
    CHECK(executor->run(doomed).code == Code::cancelled);
    beside.join();
    stop.store(false);
    CHECK(executor->run(doomed).ok());
    CHECK(executor->counters().runs == 2);
}

TEST_CASE("cancel ends the runs in flight, close forbids further ones") {
    Plan plan;
    plan.outputs = 1;
    plan.module = kernels();
    for (int i = 0; i < 2000; ++i) plan.calls.push_back(call("slow", {{1, 0}}, 1));
    const auto executor = make(cpu_backend(1), plan, 2);
    const Fixed none({}, false);
    for (const bool closing : {false, true}) {
        std::atomic<int> cancelled{0};
        std::vector<std::thread> callers;
        for (int c = 0; c < 3; ++c)
            callers.emplace_back([&] {
                float y = 0;
                if (run(*executor, none, {}, {&y}).code == Code::cancelled) ++cancelled;
            });
        // All three end: the one that waits for a context is let in after the first cancel and ends with the
        // next.
        while (cancelled < 3) {
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
            closing ? executor->close() : executor->cancel();
        }
        for (std::thread& caller : callers) caller.join();
        CHECK(cancelled == 3);
    }
    CHECK(executor->counters().contexts == 0);
    float y = 0;
    const Status after = run(*executor, none, {}, {&y});
    CHECK(after.code == Code::cancelled);
    CHECK(after.message.find("is closed") != std::string::npos);
    executor->close();
}

TEST_CASE("the null device computes nothing and remembers every dispatch") {
    const auto backend = null_backend();
    Plan plan = chain(8);
    plan.module.reset();  // it needs no code
    const auto executor = make(backend, plan);
    Arrays a(8);
    const Fixed fixed({a.w.data()}, false);
    std::vector<int64_t> times{-1, -1};
    REQUIRE(run(*executor, fixed, {a.x.data()}, {a.y.data()}, times.data()).ok());
    REQUIRE(run(*executor, fixed, {a.x.data()}, {a.y.data()}).ok());
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

// A library that negates: what its options say is what it does.
class Negating final : public KernelLibrary {
  public:
    std::string version() const override { return "1.0"; }
    Result<std::unique_ptr<LibraryKernel>> prepare(const KernelCall& call, int threads) override {
        const auto found = call.options.find("count");
        if (found == call.options.end() || call.specs.size() != 2 || call.specs[0].dtype != "float32")
            return Status{Code::unsupported, "negate wants a count and float32", ""};
        return std::unique_ptr<LibraryKernel>(new Kernel(std::get<int64_t>(found->second), threads));
    }

  private:
    struct Kernel final : LibraryKernel {
        int64_t count;
        int threads;
        Kernel(int64_t n, int t) : count(n), threads(t) {}
        Status execute(void* const* args, void*) const override {
            for (int64_t i = 0; i < count; ++i)
                static_cast<float*>(args[1])[i] = -static_cast<const float*>(args[0])[i];
            return count == 13 ? Status{Code::call_failed, "13 is too many", ""} : Status{};
        }
        std::string implementation() const override { return "negate:plain"; }
    };
};

}  // namespace

TEST_CASE("kernels of a library run among generated ones") {
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
        Arrays a(n);
        const Fixed fixed({a.w.data()}, false);
        const Status status = run(*executor, fixed, {a.x.data()}, {a.y.data()});
        CHECK(status.ok() == (n == 8));
        CHECK(a.y[2] == -((3.0f - 5.0f) * 0.5f + 3));
        CHECK(executor->counters().runs == (n == 8 ? 1 : 0));
    }
}

#if !defined(__SANITIZE_THREAD__)
TEST_CASE("a forked child runs, even when the parent's contexts were all in use") {
    const auto executor = make(cpu_backend(2), chain(5000), 1);
    Arrays a(5000);
    const Fixed fixed({a.w.data()}, false);
    REQUIRE(run(*executor, fixed, {a.x.data()}, {a.y.data()}).ok());
    std::atomic<bool> stop{false};
    std::thread busy([&] {
        Arrays b(5000);
        const Fixed other({b.w.data()}, false);
        while (!stop) (void)run(*executor, other, {b.x.data()}, {b.y.data()});
    });
    for (int i = 0; i < 10; ++i) {
        const pid_t child = fork();
        if (child == 0) {
            alarm(20);
            std::fill(a.y.begin(), a.y.end(), 0.0f);
            const bool good = run(*executor, fixed, {a.x.data()}, {a.y.data()}).ok() && a.right();
            _exit(good ? 0 : 1);
        }
        int status = 0;
        waitpid(child, &status, 0);
        REQUIRE(WIFEXITED(status));
        CHECK(WEXITSTATUS(status) == 0);
    }
    stop = true;
    busy.join();
}
#endif
