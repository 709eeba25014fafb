// What CUPTI sees of a run, joined to the calls of the plan: over a simulated CUPTI of several versions.
#include <dlfcn.h>

#include "backends/cuda/cupti.h"
#include "doctest/doctest.h"
#include "simulated_cuda.h"

using namespace xpurt;
using namespace simulated;

namespace {

template <class Function>
Function turn(const char* name) {
    static void* const handle = dlopen(PROBES "/libprobe_simulated_cupti.so", RTLD_NOW);
    return reinterpret_cast<Function>(dlsym(handle, name));
}
void be(uint32_t version, bool clones = true) {
    turn<void (*)(uint32_t, int)>("simulated_cupti")(version, clones);
}
void refuse(const char* call, int result) {
    turn<void (*)(const char*, int)>("simulated_cupti_fail")(call, result);
}
void open_cupti() {
    REQUIRE(cupti_library().open({PROBES "/libprobe_simulated_cupti.so", {}}).ok());
    be(130500);
}

Observation observe(Executor& executor, const WeightBindings& weights, Arrays& a) {
    Observation found;
    const Memory in = a.x.data(), out = a.y.data();
    Executor::Run run;
    run.weights = &weights, run.inputs = &in, run.outputs = &out, run.host = true, run.observation = &found;
    const Status status = executor.run(run);
    REQUIRE_MESSAGE(status.ok(), status.message);
    return found;
}

// A library's copy, then two kernels: what stands in their records.
void check_seen(const Observation& found) {
    CHECK(found.absent == "");
    CHECK(found.dropped == 0);
    CHECK(found.unmatched == 0);
    REQUIRE(found.activities.size() == 3);
    CHECK(found.activities[0].kind == DeviceActivity::copy);
    CHECK(found.activities[0].name == "copy on the device");
    CHECK(found.activities[0].bytes == 4 * n);
    CHECK(found.activities[1].name == "add");
    CHECK(found.activities[2].name == "scale");
    for (int64_t i = 0; i < 3; ++i) CHECK(found.activities[size_t(i)].call == i);
    const DeviceActivity& last = found.activities[2];
    CHECK(last.grid[0] == n);
    CHECK(last.block[0] == 1);
    CHECK(last.registers == 40);
    CHECK(last.shared_bytes == 128);
    CHECK(last.duration_ns == 1000);
}

// A plan that has run once, so that the next run is a graph.
struct Subject {
    std::shared_ptr<CudaBackend> on = backend();
    std::unique_ptr<Executor> executor = make(on, with_library(*on));
    Weight w = Weight::filled(*on, 7);
    Arrays a{1};
    Subject() { REQUIRE(run_host(*executor, w.weights, a).ok()); }
    Observation observed() {
        a.y.assign(n, 0);
        const Observation found = observe(*executor, w.weights, a);
        CHECK(a.right());
        return found;
    }
};

}  // namespace

TEST_CASE("a first run goes kernel by kernel, later ones as a graph: joined by marks, then by graph nodes") {
    open_cupti();
    const auto on = backend();
    const auto executor = make(on, with_library(*on));
    const Weight w = Weight::filled(*on, 7);
    for (int i = 0; i < 3; ++i) {
        Arrays a(static_cast<float>(i));
        const Observation found = observe(*executor, w.weights, a);
        CHECK(a.right());
        CHECK(found.source == "CUPTI 13.5");
        CHECK(found.graph == (i > 0));
        CHECK(found.joined == (i > 0 ? "graph nodes" : "correlation"));
        check_seen(found);
    }
}

TEST_CASE("records of every version are read, and one that is too old is refused") {
    open_cupti();
    Subject s;
    const std::pair<uint32_t, const char*> versions[] = {
        {19, "CUPTI 12.0"}, {24, "CUPTI 12.6"}, {28, "CUPTI 12.9"}, {130001, "CUPTI 13.0"}};
    for (const auto& [version, text] : versions) {
        be(version);
        const Observation found = s.observed();
        CHECK(found.source == text);
        check_seen(found);
    }
    be(18);
    CHECK(s.observed().absent.find("is CUPTI of version 18; 12.0 is the oldest that is read") !=
          std::string::npos);
}

TEST_CASE("without news of graphs their work is joined by its order") {
    open_cupti();
    Subject s;
    be(130500, false);
    Observation found = s.observed();
    CHECK(found.joined == "order");
    check_seen(found);
    be(130500, true);
    refuse("cuptiSubscribe", 39);  // somebody else has the one place
    found = s.observed();
    refuse("cuptiSubscribe", 0);
    CHECK(found.joined == "order");
    check_seen(found);
}

TEST_CASE("what is not permitted is told, and the run is right") {
    open_cupti();
    Subject s;
    refuse("cuptiActivityEnable", 35);
    const Observation found = s.observed();
    refuse("cuptiActivityEnable", 0);
    CHECK(found.absent == "cuptiActivityEnable returned CUPTI_ERROR_INSUFFICIENT_PRIVILEGES");
    CHECK(found.advice.find("CAP_SYS_ADMIN") != std::string::npos);
    check_seen(s.observed());  // nothing of that stays
}

TEST_CASE("records that find no room are counted; those that fill several buffers come whole") {
    open_cupti();
    Subject s;
    cuda::limit_records(256, 64);
    check_seen(s.observed());
    cuda::limit_records(256, 0);
    const Observation none = s.observed();
    cuda::limit_records(size_t{1} << 20, 64);
    CHECK(none.activities.empty());
    CHECK(none.dropped >= 4);
}

TEST_CASE("outside of an observation nothing is recorded, and a run's own graph stays") {
    open_cupti();
    Subject s;
    for (int i = 0; i < 3; ++i) REQUIRE(run_host(*s.executor, s.w.weights, s.a).ok());
    check_seen(s.observed());  // its own three alone
    REQUIRE(run_host(*s.executor, s.w.weights, s.a).ok());
    CHECK(s.on->counters().captures == 1);
}

TEST_CASE("a plan in several submissions is joined by the calls of the whole plan") {
    open_cupti();
    const auto on = backend();
    Plan plan = with_library(*on);
    plan.batch = 2;
    const auto executor = make(on, plan);
    const Weight w = Weight::filled(*on, 7);
    Arrays a(1);
    for (int i = 0; i < 2; ++i) check_seen(observe(*executor, w.weights, a));
    CHECK(a.right());
}
