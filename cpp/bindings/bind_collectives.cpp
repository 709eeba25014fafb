// bindings/bind_collectives.cpp: communicators.
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "tensors.h"
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

// The type of a tensor's elements by DLPack's codes; false if a group cannot add them.
bool element_type_of(const TensorView& view, ElementType& type) {
    constexpr struct {
        uint8_t code, bits;
        ElementType type;
    } types[] = {{0, 32, ElementType::int32},   {0, 64, ElementType::int64},
                 {2, 16, ElementType::float16}, {4, 16, ElementType::bfloat16},
                 {2, 32, ElementType::float32}, {2, 64, ElementType::float64}};
    for (const auto& each : types)
        if (view.code == each.code && view.bits == each.bits) return type = each.type, true;
    return false;
}

// The number of elements of a dense tensor on a rank's device; -1 for any other tensor.
int64_t dense_elements(const TensorView& view, const Communicator& rank) {
    constexpr int32_t cuda_device = 2;  // kDLCUDA
    const bool here = rank.device() < 0
                          ? view.device_type == cpu_device
                          : view.device_type == cuda_device && view.device_index == rank.device();
    return here && view.dense() && view.count() > 0 ? view.count() : -1;
}

// True if `out` has the shape of a collective's result.
bool fits(const TensorView& in, const TensorView& out, Collective collective, int64_t size) {
    if (in.rank != out.rank || (in.rank == 0 && collective != Collective::all_reduce)) return false;
    for (int32_t d = 0; d < in.rank; ++d) {
        const bool divided = d == 0 && collective == Collective::reduce_scatter;
        const bool repeated = d == 0 && collective == Collective::all_gather;
        if (in.shape[d] * (repeated ? size : 1) != out.shape[d] * (divided ? size : 1)) return false;
    }
    return true;
}

// Exchange tensors of a library whose tensors are read without a call into Python, on its current stream.
// Return None for other tensors, and for those that do not fit.
nb::object exchange_tensors(Communicator& self, const std::string& name, nb::handle x, nb::handle out) {
    ForeignTensor in, result;
    Collective collective{};
    ElementType type{}, result_type{};
    if (in.read(x.ptr()) != ForeignTensor::Read::done ||
        result.read(out.ptr()) != ForeignTensor::Read::done || !result.writeable ||
        in.library->api != result.library->api || !collective_of(name, collective) ||
        !element_type_of(in.view, type) || !element_type_of(result.view, result_type) || type != result_type)
        return nb::none();
    const int64_t count = dense_elements(in.view, self);
    if (count < 0 || dense_elements(result.view, self) < 0 ||
        !fits(in.view, result.view, collective, self.size()) ||
        (collective != Collective::all_reduce && in.view.data == result.view.data))
        return nb::none();
    StreamOrder order;
    if (!in.order(order)) throw nb::python_error();
    const auto run = [&] {
        const nb::gil_scoped_release no_gil;
        return self.run(collective, in.view.data, result.view.data, static_cast<size_t>(count), type,
                        order.stream);
    };
    return nb::cast(run());
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
        .def("exchange", &exchange_tensors, "collective"_a, "x"_a, "out"_a,
             nb::sig("def exchange(self, collective: str, x: object, out: object) -> Status | None"),
             "Exchange tensors of one library that are read in place; None for others.")
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
