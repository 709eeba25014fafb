// CUPTI's records of a run, joined to the calls of the plan, with a simulated CUPTI of several versions.
#include <dlfcn.h>

#include "backends/cuda/cupti.h"
#include "doctest/doctest.h"
#include "simulated_cuda.h"

using namespace xpurt;
using namespace simulated;

namespace {

template <class Function>
Function control_cupti(const char* name) {
    static void* const handle = dlopen(PROBES "/libprobe_simulated_cupti.so", RTLD_NOW);
    return reinterpret_cast<Function>(dlsym(handle, name));
}
void set_version(uint32_t version, bool clones = true) {
    control_cupti<void (*)(uint32_t, int)>("simulated_cupti")(version, clones);
}
void refuse(const char* call, int result) {
    control_cupti<void (*)(const char*, int)>("simulated_cupti_fail")(call, result);
}
void open_cupti() {
    REQUIRE(cupti_library().open({PROBES "/libprobe_simulated_cupti.so", {}}).ok());
    set_version(130500);
}

Observation observe(Executor& executor, const WeightBindings& weights, Arrays& a) {
    Observation observation;
    const Memory in = a.x.data(), out = a.y.data();
    Executor::Run run;
    run.weights = &weights, run.inputs = &in, run.outputs = &out, run.host = true,
    run.observation = &observation;
    const Status status = executor.run(run);
    REQUIRE_MESSAGE(status.ok(), status.message);
    return observation;
}

// Check the records of a library's copy followed by two kernels.
void check_seen(const Observation& observation) {
    CHECK(observation.absent == "");
    CHECK(observation.dropped == 0);
    CHECK(observation.unmatched == 0);
    REQUIRE(observation.activities.size() == 3);
    CHECK(observation.activities[0].kind == DeviceActivity::copy);
    CHECK(observation.activities[0].name == "copy on the device");
    CHECK(observation.activities[0].bytes == 4 * n);
    CHECK(observation.activities[1].name == "add");
    CHECK(observation.activities[2].name == "scale");
    for (int64_t i = 0; i < 3; ++i) CHECK(observation.activities[size_t(i)].call == i);
    const DeviceActivity& last = observation.activities[2];
    CHECK(last.grid[0] == n);
    CHECK(last.block[0] == 1);
    CHECK(last.registers == 40);
    CHECK(last.shared_bytes == 128);
    CHECK(last.duration_ns == 1000);
}

// A plan that has run once, so that the next run uses a graph.
struct Subject {
    std::shared_ptr<CudaBackend> on = backend();
    std::unique_ptr<Executor> executor = make(on, with_library(*on));
    Weight w = Weight::filled(*on, 7);
    Arrays a{1};
    Subject() { REQUIRE(run_host(*executor, w.weights, a).ok()); }
    Observation observed() {
        a.y.assign(n, 0);
        const Observation observation = observe(*executor, w.weights, a);
        CHECK(a.right());
        return observation;
    }
};

}  // namespace

TEST_CASE("the first run is joined by correlation ids, later ones by graph nodes") {
    open_cupti();
    const auto on = backend();
    const auto executor = make(on, with_library(*on));
    const Weight w = Weight::filled(*on, 7);
    for (int i = 0; i < 3; ++i) {
        Arrays a(static_cast<float>(i));
        const Observation observation = observe(*executor, w.weights, a);
        CHECK(a.right());
        CHECK(observation.source == "CUPTI 13.5");
        CHECK(observation.graph == (i > 0));
        CHECK(observation.joined == (i > 0 ? "graph nodes" : "correlation"));
        check_seen(observation);
    }
}

TEST_CASE("records of every supported version are read, and an older version is refused") {
    open_cupti();
    Subject s;
    const std::pair<uint32_t, const char*> versions[] = {
        {19, "CUPTI 12.0"}, {24, "CUPTI 12.6"}, {28, "CUPTI 12.9"}, {130001, "CUPTI 13.0"}};
    for (const auto& [version, text] : versions) {
        set_version(version);
        const Observation observation = s.observed();
        CHECK(observation.source == text);
        check_seen(observation);
    }
    set_version(18);
    CHECK(s.observed().absent.find("is CUPTI version 18; the oldest supported version is 12.0") !=
          std::string::npos);
}

TEST_CASE("without clone events, graph activities are joined by order") {
    open_cupti();
    Subject s;
    set_version(130500, false);
    Observation observation = s.observed();
    CHECK(observation.joined == "order");
    check_seen(observation);
    set_version(130500, true);
    refuse("cuptiSubscribe", 39);  // another client has the only subscriber
    observation = s.observed();
    refuse("cuptiSubscribe", 0);
    CHECK(observation.joined == "order");
    check_seen(observation);
}

TEST_CASE("missing permission is reported, and the run is correct") {
    open_cupti();
    Subject s;
    refuse("cuptiActivityEnable", 35);
    const Observation observation = s.observed();
    refuse("cuptiActivityEnable", 0);
    CHECK(observation.absent == "cuptiActivityEnable returned CUPTI_ERROR_INSUFFICIENT_PRIVILEGES");
    CHECK(observation.advice.find("CAP_SYS_ADMIN") != std::string::npos);
    check_seen(s.observed());  // the failure has no lasting effect
}

TEST_CASE("dropped records are counted, and records in several buffers are complete") {
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

TEST_CASE("outside of an observation nothing is recorded, and the run's graph is kept") {
    open_cupti();
    Subject s;
    for (int i = 0; i < 3; ++i) REQUIRE(run_host(*s.executor, s.w.weights, s.a).ok());
    check_seen(s.observed());  // only those of this run
    REQUIRE(run_host(*s.executor, s.w.weights, s.a).ok());
    CHECK(s.on->counters().captures == 1);
}

TEST_CASE("a plan in several submissions is joined to the calls of the whole plan") {
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
