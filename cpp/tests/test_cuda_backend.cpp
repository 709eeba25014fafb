// The CUDA backend over a simulated driver, whose memory is the host's and whose queues run only when they
// are waited for: order, graphs, copies, failures. scripts/test-gpu tests the real driver.
#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "backends/cuda/stream.h"
#include "doctest/doctest.h"
#include "simulated_cuda.h"
#include "xpurt/cuda.h"
#include "xpurt/executor.h"

using namespace xpurt;
using namespace simulated;

TEST_CASE("host arrays are copied both ways, by single launches first and then by one graph") {
    const auto on = backend();
    CHECK(on->capability() == 90);
    CHECK(on->device_name() == "Simulated GPU");
    const auto executor = make(on, chain(*on, n));
    const Weight w = Weight::filled(*on, 7);
    for (int i = 0; i < 5; ++i) {
        Arrays a(static_cast<float>(i));
        REQUIRE(run_host(*executor, w.weights, a).ok());
        CHECK(a.right());
    }
    const CudaCounters counters = on->counters();
    CHECK(counters.plain == 1);
    CHECK(counters.captures == 1);
    CHECK(counters.replays == 4);
    CHECK(counters.updates == 0);
    CHECK(executor->counters().sent == 5 * 4 * n);
    CHECK(executor->counters().fetched == 5 * 4 * n);
    CHECK(executor->counters().runs == 5);
    CHECK(on->declined().empty());
}

TEST_CASE("changed addresses update the graph") {
    const auto on = backend();
    const auto executor = make(on, chain(*on, n));
    const Weight seven = Weight::filled(*on, 7), nine = Weight::filled(*on, 9);
    std::vector<std::shared_ptr<CudaBlock>> in, out;
    for (int i = 0; i < 4; ++i) {
        in.push_back(on->block(4 * n, {}).value);
        out.push_back(on->block(4 * n, {}).value);
        const Arrays a(static_cast<float>(10 * i));
        REQUIRE(on->upload(in.back()->address(), a.x.data(), 4 * n).ok());
    }
    for (int i = 0; i < 4; ++i) {
        const Weight& w = i == 3 ? nine : seven;
        REQUIRE(run_device(*executor, w.weights, *in[size_t(i)], *out[size_t(i)]).ok());
    }
    for (int i = 0; i < 4; ++i) {
        Arrays a(static_cast<float>(10 * i));
        REQUIRE(on->download(a.y.data(), out[size_t(i)]->address(), 4 * n).ok());
        CHECK(a.right(i == 3 ? 9 : 7));
    }
    CHECK(on->counters().captures == 1);
    CHECK(on->counters().updates == 2);
}

TEST_CASE("library kernels run among generated ones, also in graphs") {
    const auto on = backend();
    const auto executor = make(on, with_library(*on));
    CHECK(executor->implementations() == std::vector<std::string>{"copy algorithm 3", "", ""});
    const Weight w = Weight::filled(*on, 7);
    for (int i = 0; i < 3; ++i) {
        Arrays a(static_cast<float>(i));
        REQUIRE(run_host(*executor, w.weights, a).ok());
        CHECK(a.right());
    }
    const auto x = on->block(4 * n, {}).value, y = on->block(4 * n, {}).value;
    Arrays a(100);
    REQUIRE(on->upload(x->address(), a.x.data(), 4 * n).ok());
    REQUIRE(run_device(*executor, w.weights, *x, *y).ok());
    REQUIRE(on->download(a.y.data(), y->address(), 4 * n).ok());
    CHECK(a.right());
    CHECK(on->counters().updates == 1);
    // The new capture updated the first graph, whose nodes are still valid.
    const auto z = on->block(4 * n, {}).value;
    REQUIRE(run_device(*executor, w.weights, *x, *z).ok());
    Arrays b(100);
    REQUIRE(on->download(b.y.data(), z->address(), 4 * n).ok());
    CHECK(b.right());
    CHECK(on->counters().updates == 2);

    Plan unknown = with_library(*on);
    unknown.calls[0].library = "nobody";
    CHECK(Executor::create(on, unknown, 1).status.message == "kernel test/copy needs the library nobody");
}

TEST_CASE("the caller's arena also holds the workspace of libraries") {
    const auto on = backend();
    const auto executor = make(on, with_library(*on), 1);
    CHECK(executor->arena_bytes() == (256 + 8 * n + 255) / 256 * 256 + 100);
    const Weight w = Weight::filled(*on, 7);
    const auto stream = std::move(on->stream().value);
    const StreamOrder order{true, stream->handle()};
    const auto x = on->block(4 * n, {}).value, y = on->block(4 * n, {}).value;
    const auto bytes = static_cast<int64_t>(executor->arena_bytes());
    const auto first = on->block(bytes, {}).value, second = on->block(bytes, {}).value;
    const Memory in = reinterpret_cast<Memory>(x->address()), out = reinterpret_cast<Memory>(y->address());
    Executor::Run run;
    run.weights = &w.weights, run.inputs = &in, run.outputs = &out, run.order = order;
    // Two runs at one place: single launches, then a graph; a graph is not valid for another arena.
    float start = 0;
    for (const auto* arena : {&first, &first, &first, &second, &second, &first}) {
        Arrays a(start += 10);
        REQUIRE(on->upload(x->address(), a.x.data(), 4 * n).ok());
        run.arena = reinterpret_cast<Memory>((*arena)->address());
        REQUIRE(executor->run(run).ok());
        REQUIRE(stream->synchronize().ok());
        REQUIRE(on->download(a.y.data(), y->address(), 4 * n).ok());
        CHECK(a.right());
    }
    CHECK(executor->counters().allocations == 0);
}

TEST_CASE("a workspace takes what no part of the arena holds during its call") {
    const auto on = backend();
    const Weight w = Weight::filled(*on, 7);
    struct Case {
        int64_t first, second;
        size_t bytes;
    };
    // In front, between the parts, behind them; the gap of 96 bytes at 4000 is too small.
    for (const Case& each : {Case{256, 4352, 8448}, Case{0, 4352, 8448}, Case{0, 4096, 8192 + 100}}) {
        const auto executor = make(on, with_library_between(*on, each.first, each.second), 1);
        CHECK(executor->arena_bytes() == each.bytes);
        for (int i = 0; i < 3; ++i) {
            Arrays a(static_cast<float>(i));
            REQUIRE(run_host(*executor, w.weights, a).ok());
            CHECK(a.right());
        }
    }
    Plan outside = with_library_between(*on, 0, 4096);
    outside.arena_parts[1].bytes += 1;
    CHECK(Executor::create(on, outside, 1).status.message.find("a part of the arena lies outside of it") !=
          std::string::npos);
}

TEST_CASE("all calls that libraries refuse are reported together, with the first one's reason") {
    const auto on = backend();
    Plan plan = with_library(*on);
    plan.calls.push_back(plan.calls[0]);
    plan.calls[0].symbol = "unknown";
    plan.calls[3].library = "nobody";
    for (size_t i = 0; i < plan.calls.size(); ++i) plan.calls[i].position = static_cast<int32_t>(i);
    const Status status = Executor::create(on, plan, 1).status;
    CHECK(status.code == Code::unsupported);
    CHECK(status.message == "no such word: unknown");
    REQUIRE(status.refusals.size() == 2);
    CHECK(status.refusals[0].call == 0);
    CHECK(status.refusals[1].call == 3);
    CHECK(status.refusals[1].reason == "kernel test/copy needs the library nobody");
    plan.calls.resize(3);
    plan.calls[0].symbol = "copy";
    plan.calls[1].symbol = "nowhere";  // missing generated code is a broken program, not a refusal
    CHECK(Executor::create(on, plan, 1).status.refusals.empty());
}

TEST_CASE("runs on the caller's stream are queued without waiting") {
    const auto on = backend();
    const auto executor = make(on, chain(*on, n), 1);
    const Weight w = Weight::filled(*on, 7);
    auto mine = std::move(on->stream().value), other = std::move(on->stream().value);
    const StreamOrder order{true, mine->handle()}, elsewhere{true, other->handle()};
    Arrays a(5), b(50);
    {
        const auto x = on->block(4 * n, order).value, y = on->block(4 * n, order).value;
        const auto x2 = on->block(4 * n, {}).value, y2 = on->block(4 * n, {}).value;
        REQUIRE(on->upload(x->address(), a.x.data(), 4 * n).ok());
        REQUIRE(on->upload(x2->address(), b.x.data(), 4 * n).ok());
        for (int i = 0; i < 3; ++i) REQUIRE(run_device(*executor, w.weights, *x, *y, order).ok());
        CHECK_FALSE(mine->done().value);
        // The same context on another stream: its arena is still in use by queued work.
        REQUIRE(run_device(*executor, w.weights, *x2, *y2, elsewhere).ok());
        x2->used_on(other->handle());
        y2->used_on(other->handle());
        CHECK_FALSE(other->done().value);
        REQUIRE(other->synchronize().ok());
        CHECK(mine->done().value);  // it was queued first
        REQUIRE(on->download(a.y.data(), y->address(), 4 * n).ok());
        REQUIRE(on->download(b.y.data(), y2->address(), 4 * n).ok());
        // Queue again, and release the blocks before the work has run.
        REQUIRE(run_device(*executor, w.weights, *x, *y, order).ok());
    }
    CHECK(a.right());
    CHECK(b.right());
    executor->close();
}

TEST_CASE("a block of one stream is freed in its order, without a wait between streams") {
    const auto on = backend();
    auto mine = std::move(on->stream().value), other = std::move(on->stream().value);
    const StreamOrder order{true, mine->handle()};
    const auto waits = [] { return std::vector<int>{calls("cuEventRecord"), calls("cuStreamWaitEvent")}; };
    const std::vector<int> before = waits();
    for (int i = 0; i < 3; ++i) REQUIRE(on->block(4 * n, order).status.ok());
    CHECK(waits() == before);
    {
        const auto block = on->block(4 * n, order).value;
        block->used_on(other->handle());
    }
    CHECK(waits() == std::vector<int>{before[0] + 2, before[1] + 2});
    REQUIRE(mine->synchronize().ok());
    CHECK(on->trim() >= 0);
    CHECK(on->memory().live_bytes == 0);
}

TEST_CASE("a small block of the default stream is kept for the next one of its size") {
    const auto on = backend();
    const StreamOrder order{true, nullptr};
    on->trim();
    const auto allocated = [] { return calls("cuMemAllocFromPoolAsync"); };
    const auto freed = [] { return calls("cuMemFreeAsync"); };
    const int allocations = allocated(), frees = freed();
    const auto reuses = on->memory().reuses;
    const uint64_t first = on->block(400, order).value->address();
    CHECK(allocated() == allocations + 1);
    CHECK(freed() == frees);
    CHECK(on->memory().live_bytes == 0);
    {
        const auto again = on->block(400, order).value, second = on->block(400, order).value;
        CHECK(again->address() == first);
        CHECK(second->address() != first);
        CHECK(on->block(401, order).value->address() != first);
        CHECK(allocated() == allocations + 3);
        CHECK(on->memory().live_bytes == 800);
        CHECK(on->memory().reuses >= reuses + 1);
    }
    const int few = freed();
    { const auto large = on->block(2 << 20, order).value; }  // is freed at once
    CHECK(freed() == few + 1);
    auto mine = std::move(on->stream().value);
    { const auto other = on->block(400, {true, mine->handle()}).value; }
    CHECK(freed() == few + 2);
    for (int i = 0; i < 3; ++i) {  // used on another stream as well: that stream may still read it
        const auto both = on->block(400, order).value;
        both->used_on(mine->handle());
    }
    CHECK(freed() == few + 5);
    for (int size = 1; size <= 40; ++size) REQUIRE(on->block(static_cast<size_t>(size), order).status.ok());
    { const auto new_size = on->block(404, order).value; }  // the oldest makes room
    const int present = allocated();
    { const auto same_size = on->block(404, order).value; }
    CHECK(allocated() == present);
    std::vector<std::shared_ptr<CudaBlock>> many;
    for (int i = 0; i < 40; ++i) many.push_back(on->block(400, order).value);
    many.clear();
    CHECK(freed() >= few + 5 + 40 - 16);  // a bounded number is kept
    on->trim();
    CHECK(blocks() == 0);
    CHECK(on->memory().live_bytes == 0);
}

TEST_CASE("a run without arena or workspace calls nothing but its launches") {
    const auto on = backend();
    Plan plan;
    plan.name = "alone";
    plan.inputs = plan.outputs = plan.weights = 1;
    plan.module = kernels(*on);
    plan.calls = {call("add", {{1, 0}, {3, 0}, {2, 0}}, n)};
    auto executor = make(on, plan, 1);
    const Weight w = Weight::filled(*on, 7);
    auto mine = std::move(on->stream().value), other = std::move(on->stream().value);
    const auto x = on->block(4 * n, {}).value, y = on->block(4 * n, {}).value;
    const std::vector<float> ones(n, 1.f);
    REQUIRE(on->upload(x->address(), ones.data(), 4 * n).ok());
    const auto driven = [] {
        return std::vector<int>{calls("cuStreamCreate"), calls("cuEventRecord"), calls("cuStreamWaitEvent"),
                                calls("cuStreamSynchronize"), calls("cuCtxSynchronize")};
    };
    const std::vector<int> before = driven();
    const int launches = calls("cuLaunchKernelEx");
    for (const CudaStream* const stream : {mine.get(), other.get(), mine.get()})
        REQUIRE(run_device(*executor, w.weights, *x, *y, {true, stream->handle()}).ok());
    CHECK(driven() == before);
    CHECK(calls("cuLaunchKernelEx") == launches + 3);
    CHECK_FALSE(mine->done().value);
    executor.reset();  // unloads the code after it has run
    CHECK(mine->done().value);
    std::vector<float> got(n);
    REQUIRE(on->download(got.data(), y->address(), 4 * n).ok());
    CHECK(got == std::vector<float>(n, 8.f));
}

TEST_CASE("a run over states waits for work on them that another stream has queued") {
    const auto on = backend();
    Plan plan = chain(*on, n);
    plan.calls[1].args[1] = {3, 0};  // into the state
    plan.calls.push_back(call("add", {{1, 0}, {3, 0}, {2, 0}}, n));
    const auto executor = make(on, plan, 2), second = make(on, plan, 2);
    const Weight state = Weight::filled(*on, 0, true);
    const WeightBindings& weights = state.weights;
    auto mine = std::move(on->stream().value);
    const StreamOrder order{true, mine->handle()};
    const auto x = on->block(4 * n, {}).value, y = on->block(4 * n, {}).value;
    Arrays a(0);
    std::fill(a.x.begin(), a.x.end(), 4.0f);
    REQUIRE(on->upload(x->address(), a.x.data(), 4 * n).ok());
    float want = 0;
    for (int i = 0; i < 3; ++i) {
        REQUIRE(run_device(*executor, weights, *x, *y, order).ok());
        want = (4 + want) * 0.5f + 3;
    }
    REQUIRE(run_host(*second, weights, a).ok());  // on the other executor's own stream
    want = (4 + want) * 0.5f + 3;
    CHECK(a.y[0] == 4 + want);
    CHECK(a.y[n - 1] == 4 + want);
}

TEST_CASE("times and events are measured on the device") {
    const auto on = backend();
    const auto executor = make(on, chain(*on, n));
    const Weight w = Weight::filled(*on, 7);
    Arrays a(1);
    std::vector<int64_t> times(2, -1);
    EventRing ring(16);
    REQUIRE(run_host(*executor, w.weights, a, times.data(), &ring).ok());
    CHECK(a.right());
    CHECK(times == std::vector<int64_t>{1000, 1000});
    CHECK(ring.pending() == 2);
}

TEST_CASE("a failed capture falls back to single launches and is reported once") {
    const auto on = backend();
    const auto executor = make(on, chain(*on, n), 2);
    const Weight w = Weight::filled(*on, 7);
    fail("cuStreamEndCapture", 900);
    for (int i = 0; i < 4; ++i) {
        Arrays a(static_cast<float>(i));
        REQUIRE(run_host(*executor, w.weights, a).ok());
        CHECK(a.right());
    }
    fail("cuStreamEndCapture", 0);
    CHECK(on->counters().plain == 4);
    REQUIRE(on->declined().size() == 1);
    CHECK(on->declined()[0] ==
          "cuStreamEndCapture returned CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED (simulated)");
}

TEST_CASE("an out-of-memory error states the sizes, and loaded programs keep working") {
    const auto on = backend();
    const auto executor = make(on, chain(*on, n));
    const Weight w = Weight::filled(*on, 7);
    Arrays a(1);
    REQUIRE(run_host(*executor, w.weights, a).ok());
    const auto large = on->block(size_t{2} << 30, {});
    CHECK(large.status.code == Code::no_memory);
    CHECK(large.status.message.find(
              "cannot allocate 2147483648 bytes (2048 MiB) on cuda:0: 1023 MiB of 1024 MiB are free") == 0);
    CHECK(large.status.advice.find("Loaded programs keep working") != std::string::npos);
    Plan plan = chain(*on, n);
    plan.arena_bytes = int64_t{3} << 30;
    const auto huge = make(on, plan);
    CHECK(run_host(*huge, w.weights, a).code == Code::no_memory);
    CHECK(run_host(*huge, w.weights, a).code == Code::no_memory);
    a.y.assign(n, 0);
    REQUIRE(run_host(*executor, w.weights, a).ok());
    CHECK(a.right());
}

TEST_CASE("a kernel that fails on the device is named with advice") {
    const auto on = backend();
    const auto executor = make(on, chain(*on, n));
    const Weight w = Weight::filled(*on, 7);
    Arrays a(1);
    fail("cuLaunchKernelEx", 700);
    const Status status = run_host(*executor, w.weights, a);
    fail("cuLaunchKernelEx", 0);
    CHECK(status.message ==
          "kernel test/add (add): cuLaunchKernelEx returned CUDA_ERROR_ILLEGAL_ADDRESS (simulated)");
    CHECK(status.advice.find("context is lost for this process") != std::string::npos);
    CHECK(executor->counters().runs == 0);
}

TEST_CASE("programs that exceed the device limits are refused before they run") {
    const auto on = backend();
    const auto refusal = [&](const char* option, Option value) {
        Plan plan = chain(*on, n);
        plan.calls[0].options[option] = std::move(value);
        return Executor::create(on, plan, 1).status.message;
    };
    CHECK(refusal("block", std::vector<int64_t>{1024, 2, 1}) ==
          "kernel test/add (add) has a block that exceeds the device limits");
    CHECK(refusal("grid", std::vector<int64_t>{1, 70000, 1}) ==
          "kernel test/add (add) has a grid that exceeds the device limits");
    CHECK(refusal("shared", int64_t{300 << 10}) ==
          "kernel test/add (add) asks for 307200 bytes of shared memory, the device has 204800");
    CHECK(refusal("cluster", std::vector<int64_t>{0, 1, 1}) ==
          "kernel test/add (add) has a cluster that exceeds the device limits");
    CHECK(refusal("tensor_maps", std::vector<int64_t>{0, 10, 8, 8}) ==
          "kernel test/add (add) has tensor maps of 4 numbers, which is no multiple of five");
    CHECK(refusal("tensor_maps", std::vector<int64_t>{0, 10, 8, 12, 64}) ==
          "kernel test/add (add) has a tensor map that no device can encode: argument, rows, columns, row "
          "stride and rows of a tile are 0, 10, 8, 12, 64");
    for (const std::vector<int64_t>& map : std::vector<std::vector<int64_t>>{
             {3, 10, 8, 8, 64}, {-1, 10, 8, 8, 64}, {0, 10, 16, 8, 64}, {0, 0, 8, 8, 64}, {0, 10, 8, 8, 257}})
        CHECK(refusal("tensor_maps", map).find("has a tensor map that no device can encode") !=
              std::string::npos);
    Plan plan = chain(*on, n);
    plan.calls[0].symbol = "absent";
    CHECK(Executor::create(on, plan, 1).status.message == "the program's CUBIN has no absent");
    CHECK(on->load("no", 2).status.message == "the program's binary is not a CUBIN: the header is truncated");
    CHECK(cuda_backend(3, driver()).status.message == "there is no cuda:3");
}

TEST_CASE("a launch gets the tensor maps of its matrices, encoded for their present addresses") {
    const auto on = backend();
    Plan plan = chain(*on, n);
    plan.calls[0].symbol = "mapped";
    plan.calls[0].options["tensor_maps"] = std::vector<int64_t>{0, 10, 96, 104, 64};
    const auto executor = make(on, plan, 2);
    const Weight w = Weight::filled(*on, 7);
    const int before = calls("cuTensorMapEncodeTiled");
    auto mine = std::move(on->stream().value);
    const auto y = on->block(4 * n, {}).value;
    for (int i = 0; i < 6; ++i) {  // captured, and then with other addresses
        const auto x = on->block(4 * n, {}).value;
        Arrays a(static_cast<float>(i));
        REQUIRE(on->upload(x->address(), a.x.data(), 4 * n).ok());
        REQUIRE(run_device(*executor, w.weights, *x, *y, {true, mine->handle()}).ok());
        REQUIRE(mine->synchronize().ok());
        REQUIRE(on->download(a.y.data(), y->address(), 4 * n).ok());
        CHECK(a.right());
    }
    CHECK(calls("cuTensorMapEncodeTiled") >= before + 2);
    fail("cuTensorMapEncodeTiled", 1);
    const auto x = on->block(4 * n, {}).value;
    const Status status = run_device(*executor, w.weights, *x, *y, {true, mine->handle()});
    fail("cuTensorMapEncodeTiled", 0);
    CHECK(status.message.find("kernel test/add") == 0);
    CHECK(status.message.find("cuTensorMapEncodeTiled returned") != std::string::npos);
}

TEST_CASE("threads run concurrently, each with its own context") {
    const auto on = backend();
    const auto executor = make(on, chain(*on, n), 4);
    const Weight w = Weight::filled(*on, 7);
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 8; ++t)
        threads.emplace_back([&, t] {
            for (int i = 0; i < 50; ++i) {
                Arrays a(static_cast<float>(100 * t + i));
                if (!run_host(*executor, w.weights, a).ok() || !a.right()) ++wrong;
            }
        });
    for (std::thread& thread : threads) thread.join();
    CHECK(wrong == 0);
    CHECK(executor->counters().contexts <= 4);
    CHECK(executor->counters().runs == 400);
}

TEST_CASE("all resources are released") {
    const auto on = backend();
    const int before = blocks();
    {
        const auto executor = make(on, with_library(*on), 2);
        const Weight w = Weight::filled(*on, 7);
        Arrays a(1);
        for (int i = 0; i < 3; ++i) REQUIRE(run_host(*executor, w.weights, a).ok());
        CHECK(blocks() > before);
    }
    CHECK(blocks() == before);
    CHECK(on->memory().live_bytes >= 0);
    on->trim();
    CHECK(on->memory().live_bytes == 0);
    CHECK(on->pinned().cached_bytes == 0);
    const int created = calls("cuStreamCreate"), destroyed = calls("cuStreamDestroy_v2");
    CHECK(created - destroyed == 1);  // the device's home stream
}

TEST_CASE("streams and events order work and report its completion") {
    const auto on = backend();
    auto first = std::move(on->stream().value), second = std::move(on->stream().value);
    auto event = std::move(on->event(true).value), later = std::move(on->event(true).value);
    const auto block = on->block(64, {}).value;
    CHECK(first->done().value);
    CHECK(event->done().value);
    REQUIRE(event->record(*first).ok());
    REQUIRE(event->wait(*second).ok());
    REQUIRE(later->record(*second).ok());
    REQUIRE(later->synchronize().ok());
    CHECK(later->since(*event).status.ok());
    CHECK(second->synchronize().ok());
}

TEST_CASE("a queued run that is stopped keeps the order of its context's earlier run") {
    const auto on = backend();
    const auto executor = make(on, chain(*on, n), 1);
    const Weight w = Weight::filled(*on, 7);
    const auto x = on->block(4 * n, {}).value, y = on->block(4 * n, {}).value;
    const auto mine = std::move(on->stream().value), other = std::move(on->stream().value),
               last = std::move(on->stream().value);
    REQUIRE(run_device(*executor, w.weights, *x, *y, {true, mine->handle()}).ok());
    const Memory in = reinterpret_cast<Memory>(x->address()), out = reinterpret_cast<Memory>(y->address());
    const std::atomic<bool> stop{true};
    Executor::Run stopped;
    stopped.weights = &w.weights, stopped.inputs = &in, stopped.outputs = &out, stopped.stop = &stop;
    stopped.order = {true, other->handle()};
    CHECK(executor->run(stopped).code == Code::cancelled);
    REQUIRE(run_device(*executor, w.weights, *x, *y, {true, last->handle()}).ok());
    REQUIRE(last->synchronize().ok());
    CHECK(mine->done().value);
}

TEST_CASE("page-locked arrays are the caller's again when their run returns, also after a failure") {
    const auto on = backend();
    const auto executor = make(on, chain(*on, n), 1);
    const Weight w = Weight::filled(*on, 7);
    auto* const x = static_cast<float*>(on->allocate_pinned(4 * n));
    auto* const y = static_cast<float*>(on->allocate_pinned(4 * n));
    std::fill_n(x, n, 1.0f);
    const Memory in = x, out = y;
    std::atomic<bool> stop{false};
    Executor::Run run;
    run.weights = &w.weights, run.inputs = &in, run.outputs = &out, run.host = true, run.stop = &stop;
    REQUIRE(executor->run(run).ok());  // the first run of a context waits more than once
    stop = true;
    const auto driven = [] {
        return std::vector<int>{calls("cuMemcpyHtoDAsync_v2"), calls("cuStreamSynchronize")};
    };
    std::vector<int> before = driven();
    CHECK(executor->run(run).code == Code::cancelled);
    CHECK(driven() == std::vector<int>{before[0] + 1, before[1] + 1});  // nothing reads x any more
    stop = false;
    before = driven();
    REQUIRE(executor->run(run).ok());
    CHECK(driven()[0] == before[0] + 1);
    std::fill_n(x, n, 50.0f);
    REQUIRE(on->synchronize(nullptr).ok());
    CHECK(std::vector<float>(y, y + n) == std::vector<float>(n, 7.0f));
    on->release_pinned(x);
    on->release_pinned(y);
}
