// bindings/bind_profiler.cpp: the event ring, NVTX, and driver records.
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "xpurt/observation.h"
#include "xpurt/profiler.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace xpurt::bindings {
namespace {

using RecordBytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Events are copied directly from the ring into the array's memory.
size_t drain(EventRing& ring, const RecordBytes& out) {
    if (out.size() % sizeof(Event) != 0 || reinterpret_cast<uintptr_t>(out.data()) % alignof(Event) != 0)
        throw nb::value_error("drain: out must be whole records of 48 bytes, aligned to 8");
    const nb::gil_scoped_release no_gil;
    return ring.drain(reinterpret_cast<Event*>(out.data()), out.size() / sizeof(Event));
}

EventKind checked(uint32_t kind) {
    if (kind > static_cast<uint32_t>(EventKind::complete)) throw nb::value_error("kind must be 0, 1, 2 or 3");
    return static_cast<EventKind>(kind);
}

}  // namespace

void bind_profiler(nb::module_& m) {
    m.attr("EVENT_BYTES") = sizeof(Event);
    m.def("now_ns", &now_ns, "Return the monotonic clock that stamps the events, in nanoseconds.");

    nb::class_<EventRing>(m, "EventRing", "Fixed-size ring of events from many threads.")
        .def(
            "__init__",
            [](EventRing* self, size_t capacity) {
                if (capacity > (size_t{1} << 28))
                    throw nb::value_error("capacity must be at most 2**28 events");
                new (self) EventRing(capacity);
            },
            "capacity"_a)
        .def(
            "record",
            [](EventRing& self, uint32_t kind, uint32_t name, int64_t step, int64_t payload) {
                return self.record_now(checked(kind), name, step, payload);
            },
            "kind"_a, "name"_a, "step"_a, "payload"_a, "Record an event now; False when the ring is full.")
        .def(
            "complete",
            [](EventRing& self, uint32_t name, int64_t start_ns, int64_t duration_ns, int64_t step,
               int64_t payload) {
                return self.record(
                    {start_ns, duration_ns, step, payload, name, thread_id(), EventKind::complete, 0});
            },
            "name"_a, "start_ns"_a, "duration_ns"_a, "step"_a, "payload"_a,
            "Record a finished span; False when the ring is full.")
        .def("drain", &drain, "out"_a, "Move events into a byte view of a record array; return their number.")
        .def("intern", &EventRing::intern, "name"_a, NoGil(), "Return the id of a name.")
        .def("names", &EventRing::names, NoGil(), "Return all names; the index is the id.")
        .def_prop_ro("capacity", &EventRing::capacity)
        .def_prop_ro("pending", &EventRing::pending)
        .def_prop_ro("dropped", &EventRing::dropped);

    nb::class_<DeviceActivity>(m, "DeviceActivity", "A kernel, copy or fill that the driver recorded.")
        .def_prop_ro("kind",
                     [](const DeviceActivity& self) {
                         constexpr const char* names[] = {"kernel", "copy", "fill"};
                         return names[self.kind];
                     })
        .def_ro("call", &DeviceActivity::call)
        .def_ro("name", &DeviceActivity::name)
        .def_prop_ro(
            "grid", [](const DeviceActivity& s) { return nb::make_tuple(s.grid[0], s.grid[1], s.grid[2]); },
            nb::sig("def grid(self) -> tuple[int, int, int]"))
        .def_prop_ro(
            "block",
            [](const DeviceActivity& s) { return nb::make_tuple(s.block[0], s.block[1], s.block[2]); },
            nb::sig("def block(self) -> tuple[int, int, int]"))
        .def_ro("registers", &DeviceActivity::registers)
        .def_ro("shared_bytes", &DeviceActivity::shared_bytes)
        .def_ro("local_bytes", &DeviceActivity::local_bytes)
        .def_ro("bytes", &DeviceActivity::bytes)
        .def_ro("start_ns", &DeviceActivity::start_ns)
        .def_ro("duration_ns", &DeviceActivity::duration_ns);
    nb::class_<Observation>(m, "Observation", "The driver's record of one run.")
        .def(nb::init<>())
        .def_ro("activities", &Observation::activities)
        .def_ro("graph", &Observation::graph)
        .def_ro("joined", &Observation::joined)
        .def_ro("source", &Observation::source)
        .def_ro("absent", &Observation::absent)
        .def_ro("advice", &Observation::advice)
        .def_ro("dropped", &Observation::dropped)
        .def_ro("unmatched", &Observation::unmatched);

    m.def("nvtx_open", &nvtx_open, "search"_a, NoGil(), "Load NVTX if it is installed, and enable ranges.");
    m.def("nvtx_active", &nvtx_active);
    m.def("nvtx_each_call", &nvtx_each_call, "on"_a,
          "Give each kernel call a range of its own; plans then run as single launches.");
    m.def("nvtx_push", &nvtx_push, "name"_a);
    m.def("nvtx_pop", &nvtx_pop);
    m.def("nvtx_mark", &nvtx_mark, "name"_a);
}

}  // namespace xpurt::bindings
