// EventRing: order, overflow, names, and many writers with one reader. Also run under the thread sanitizer.
#include "doctest/doctest.h"

#include <cstddef>
#include <set>
#include <thread>

#include "xpurt/profiler.h"

using namespace xpurt;

namespace {

Event numbered(int64_t step, int64_t payload) {
    return {now_ns(), 0, step, payload, 0, 0, EventKind::instant, 0};
}

}  // namespace

TEST_CASE("the layout of an event is the one that Python reads") {
    CHECK(offsetof(Event, time_ns) == 0);
    CHECK(offsetof(Event, duration_ns) == 8);
    CHECK(offsetof(Event, step) == 16);
    CHECK(offsetof(Event, payload) == 24);
    CHECK(offsetof(Event, name) == 32);
    CHECK(offsetof(Event, thread) == 36);
    CHECK(offsetof(Event, kind) == 40);
}

TEST_CASE("the capacity is a power of two") {
    CHECK(EventRing(0).capacity() == 2);
    CHECK(EventRing(2).capacity() == 2);
    CHECK(EventRing(3).capacity() == 4);
    CHECK(EventRing(1000).capacity() == 1024);
}

TEST_CASE("events are drained oldest first") {
    EventRing ring(8);
    for (int i = 0; i < 5; ++i) CHECK(ring.record(numbered(i, 100 + i)));
    CHECK(ring.pending() == 5);
    Event out[8];
    REQUIRE(ring.drain(out, 3) == 3);
    REQUIRE(ring.drain(out + 3, 5) == 2);
    for (int i = 0; i < 5; ++i) {
        CHECK(out[i].step == i);
        CHECK(out[i].payload == 100 + i);
    }
    CHECK(ring.pending() == 0);
    CHECK(ring.drain(out, 8) == 0);
}

TEST_CASE("a full ring drops and counts new events, and accepts events after a drain") {
    EventRing ring(4);
    Event out[4];
    for (int lap = 0; lap < 10; ++lap) {
        for (int i = 0; i < 4; ++i) CHECK(ring.record(numbered(i, lap)));
        CHECK_FALSE(ring.record(numbered(99, lap)));
        CHECK(ring.dropped() == static_cast<uint64_t>(lap + 1));
        REQUIRE(ring.drain(out, 4) == 4);
        for (int i = 0; i < 4; ++i) CHECK((out[i].step == i && out[i].payload == lap));
    }
}

TEST_CASE("record_now stamps the clock and the thread") {
    EventRing ring(2);
    const int64_t before = now_ns();
    ring.record_now(EventKind::begin, 7, -1, 5);
    const int64_t after = now_ns();
    Event out[1];
    REQUIRE(ring.drain(out, 1) == 1);
    CHECK(out[0].time_ns >= before);
    CHECK(out[0].time_ns <= after);
    CHECK(out[0].thread == thread_id());
    CHECK(out[0].kind == EventKind::begin);
    CHECK(out[0].name == 7);
}

TEST_CASE("equal names have equal ids across threads") {
    EventRing ring(2);
    const uint32_t first = ring.intern("first");
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
        threads.emplace_back([&] {
            for (int i = 0; i < 500; ++i) ring.intern("name " + std::to_string(i));
        });
    for (std::thread& thread : threads) thread.join();
    CHECK(ring.intern("first") == first);
    const std::vector<std::string> names = ring.names();
    CHECK(names.size() == 501);
    for (uint32_t id = 0; id < names.size(); ++id) CHECK(ring.intern(names[id]) == id);
    CHECK(ring.intern("") == 501);
}

TEST_CASE("with many writers and one reader every event is read once and in its thread's order") {
    constexpr int writers = 4, each = 40000;
    EventRing ring(1024);
    std::atomic<int> running{writers};
    std::atomic<uint64_t> refused{0};
    std::vector<std::vector<char>> accepted(writers, std::vector<char>(each, 0));
    std::vector<std::thread> threads;
    for (int w = 0; w < writers; ++w)
        threads.emplace_back([&, w] {
            for (int i = 0; i < each; ++i) {
                // The payload depends on both, so that a torn event is detected.
                if (ring.record({i, i, w, int64_t{i} * 1000003 + w, static_cast<uint32_t>(w), 0,
                                 EventKind::complete, 0}))
                    accepted[w][i] = 1;
                else
                    refused.fetch_add(1);
                if (i % 64 == 0) std::this_thread::yield();
            }
            running.fetch_sub(1);
        });

    std::vector<std::vector<char>> seen(writers, std::vector<char>(each, 0));
    std::vector<int64_t> last(writers, -1);
    std::vector<Event> batch(256);
    uint64_t total = 0, torn = 0, twice = 0, disordered = 0;
    for (bool more = true; more;) {
        more = running.load() > 0;  // read before the drain: after the last writer ends, drain once more
        for (size_t count; (count = ring.drain(batch.data(), batch.size())) > 0; total += count)
            for (size_t i = 0; i < count; ++i) {
                const Event& event = batch[i];
                const size_t w = static_cast<size_t>(event.step), n = static_cast<size_t>(event.time_ns);
                torn += event.payload != event.time_ns * 1000003 + event.step ||
                        event.duration_ns != event.time_ns || event.name != event.step;
                twice += seen[w][n]++ != 0;
                disordered += event.time_ns <= last[w];
                last[w] = event.time_ns;
            }
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(torn == 0);
    CHECK(twice == 0);
    CHECK(disordered == 0);
    CHECK(seen == accepted);
    CHECK(ring.dropped() == refused.load());
    CHECK(total + refused.load() == uint64_t{writers} * each);
}

TEST_CASE("concurrent readers share the events") {
    EventRing ring(4096);
    for (int i = 0; i < 4096; ++i) ring.record(numbered(i, 0));
    std::vector<std::vector<Event>> parts(4, std::vector<Event>(4096));
    std::vector<size_t> counts(4, 0);
    std::vector<std::thread> threads;
    for (size_t t = 0; t < 4; ++t)
        threads.emplace_back([&, t] {
            while (const size_t count = ring.drain(parts[t].data() + counts[t], 16)) counts[t] += count;
        });
    for (std::thread& thread : threads) thread.join();
    std::set<int64_t> steps;
    for (size_t t = 0; t < 4; ++t)
        for (size_t i = 0; i < counts[t]; ++i) steps.insert(parts[t][i].step);
    CHECK(counts[0] + counts[1] + counts[2] + counts[3] == 4096);
    CHECK(steps.size() == 4096);
}
