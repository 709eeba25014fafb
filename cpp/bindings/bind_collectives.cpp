// bindings/bind_collectives.cpp: communicators.
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "xpurt/collectives.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace xpurt::bindings {
namespace {

Status run(Communicator& self, const std::string& name, uintptr_t in, uintptr_t out, size_t count,
           const std::string& dtype, uintptr_t stream) {
    Collective collective{};
    ElementType type{};
    if (!collective_of(name, collective)) throw nb::value_error(("no collective " + name).c_str());
    if (!element_type_of(dtype, type))
        return {Code::unsupported, "collectives do not exchange " + dtype,
                "Use int32, int64, float16, bfloat16, float32 or float64."};
    const nb::gil_scoped_release no_gil;
    return self.run(collective, reinterpret_cast<const void*>(in), reinterpret_cast<void*>(out), count, type,
                    reinterpret_cast<void*>(stream));
}

}  // namespace

void bind_collectives(nb::module_& m) {
    nb::class_<Communicator>(m, "Communicator", "One rank of a group that exchanges tensors.")
        .def_prop_ro("id", &Communicator::id)
        .def_prop_ro("rank", &Communicator::rank)
        .def_prop_ro("size", &Communicator::size)
        .def_prop_ro("device", &Communicator::device)
        .def("run", &run, "collective"_a, "in_"_a, "out"_a, "count"_a, "dtype"_a, "stream"_a = 0,
             "Exchange count elements at an address.")
        .def("check", &Communicator::check, NoGil(), "Return the first error of the group.")
        .def("abort", &Communicator::abort, "reason"_a, NoGil(), "End the group.");
    m.def("host_communicators", &host_communicators, "size"_a, "timeout_s"_a,
          "Return the communicators of a group of threads.");
    m.def(
        "nccl_version",
        []() -> nb::object {
            auto result = [] {
                const nb::gil_scoped_release no_gil;
                return nccl_version();
            }();
            if (!result.status.ok()) return nb::cast(std::move(result.status));
            return nb::cast(result.value);
        },
        nb::sig("def nccl_version() -> str | Status"), "Return NCCL's version.");
    m.def(
        "nccl_group_id",
        []() -> nb::object {
            auto result = [] {
                const nb::gil_scoped_release no_gil;
                return nccl_group_id();
            }();
            if (!result.status.ok()) return nb::cast(std::move(result.status));
            return nb::bytes(result.value.data(), result.value.size());
        },
        nb::sig("def nccl_group_id() -> bytes | Status"), "Return a new id of a group.");
    m.def(
        "nccl_communicator",
        [](int device, int rank, int size, const nb::bytes& id, double timeout_s) -> nb::object {
            const std::string group_id(static_cast<const char*>(id.data()), id.size());
            auto result = [&] {
                const nb::gil_scoped_release no_gil;
                return nccl_communicator(device, rank, size, group_id, timeout_s);
            }();
            if (!result.status.ok()) return nb::cast(std::move(result.status));
            return nb::cast(result.value);
        },
        "device"_a, "rank"_a, "size"_a, "group_id"_a, "timeout_s"_a,
        nb::sig("def nccl_communicator(device: int, rank: int, size: int, group_id: bytes, timeout_s: float) "
                "-> Communicator | Status"),
        "Join a group of GPUs.");
}

}  // namespace xpurt::bindings
