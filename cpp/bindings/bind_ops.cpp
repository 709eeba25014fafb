// bindings/bind_ops.cpp: single ops on tensors of other libraries, in one call from Python.
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>

#include "bindings.h"
#include "runtime_objects.h"
#include "tensors.h"
#include "xpurt/dispatcher.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace xpurt::bindings {
namespace {

constexpr int64_t keep_gil_bytes =
    1 << 14;  // bytes; a smaller run ends before another thread could take the GIL
constexpr size_t max_operands = 8;

struct OpEntry final : DispatchEntry {
    TensorFactory result;
    int64_t copies = 0;      // bit mask of operands that must be copied before a program can read them
    bool keeps_gil = false;  // too short to release the GIL
    nb::object executor_owner, weights_owner, payload;

    explicit OpEntry(TensorFactory form) : result(std::move(form)) {}
};

// The operands of a call; None is an omitted operand.
struct Operands {
    std::array<ForeignTensor, max_operands> tensors;
    std::array<TensorView, max_operands> views;
    size_t count = 0;
    const ForeignTensor* first = nullptr;
    int64_t unreadable = 0;  // bit mask
    bool gradient = false;

    explicit Operands(const nb::tuple& operands_read) : count(operands_read.size()) {
        if (count > max_operands) throw nb::value_error("an op has at most 8 operands");
        for (size_t i = 0; i < count; ++i) {
            PyObject* const object = operands_read[i].ptr();
            if (object == Py_None) continue;
            switch (tensors[i].read(object)) {
                case ForeignTensor::Read::done:
                    break;
                case ForeignTensor::Read::unsupported:
                    unreadable |= int64_t{1} << i;
                    continue;
                case ForeignTensor::Read::gradient:
                    gradient = true;
                    continue;
            }
            views[i] = tensors[i].view;
            if (first == nullptr) first = &tensors[i];
        }
    }
    // True if the memory to be written overlaps with an operand.
    bool overlap(const void* begin, int64_t bytes) const noexcept {
        const auto* const from = static_cast<const char*>(begin);
        for (size_t i = 0; i < count; ++i) {
            const TensorView& view = views[i];
            if (view.data == nullptr || view.count() == 0) continue;
            int64_t reach = 1;
            int64_t elements = 1;
            for (int32_t d = view.rank - 1; d >= 0; --d) {
                reach += (view.shape[d] - 1) * (view.strides == nullptr ? elements : view.strides[d]);
                elements *= view.shape[d];
            }
            const auto* const data = static_cast<const char*>(view.data);
            if (data < from + bytes && from < data + reach * view.bits / 8) return true;
        }
        return false;
    }
};

// Add a number, a bool, None or a tuple of those by its bits, after a word for its kind.
void add_attribute(Signature& signature, PyObject* value, int depth = 0) {
    constexpr int max_depth = 8;  // nesting of tuples; no op needs more than two
    enum : uint64_t { none = 1, flag, integer, real, row };
    if (value == Py_None) return signature.add(none);
    if (PyBool_Check(value)) {
        signature.add(flag);
        return signature.add(value == Py_True);
    }
    if (PyLong_Check(value)) {
        signature.add(integer);
        const long long number = PyLong_AsLongLong(value);
        if (number == -1 && PyErr_Occurred() != nullptr) throw nb::python_error();
        return signature.add(static_cast<uint64_t>(number));
    }
    if (PyFloat_Check(value)) {
        const double number = PyFloat_AsDouble(value);
        uint64_t bits = 0;
        std::memcpy(&bits, &number, sizeof bits);
        signature.add(real);
        return signature.add(bits);
    }
    if (!PyTuple_Check(value))
        throw nb::type_error("an attribute is a number, a flag, a tuple of those or None");
    if (depth > max_depth) throw nb::type_error("an attribute is nested too deeply");
    const Py_ssize_t size = PyTuple_Size(value);
    signature.add(row);
    signature.add(static_cast<uint64_t>(size));
    for (Py_ssize_t i = 0; i < size; ++i) add_attribute(signature, PyTuple_GetItem(value, i), depth + 1);
}

class Ops {
  public:
    explicit Ops(size_t capacity) : table_(capacity) {}

    // Return the output; None if the signature or the policy is not in the table; a number if the caller must
    // act; or the Status of a failed run. Numbers: a bit mask of operands to copy first; -1: an operand
    // requires a gradient; -2: `out` cannot receive the output; -3: `out` overlaps with an operand.
    nb::object run(int64_t op, nb::handle policy, const nb::tuple& attributes, const nb::tuple& operands,
                   nb::handle out) {
        const Operands operands_read(operands);
        if (operands_read.gradient) return nb::int_(-1);
        if (operands_read.unreadable != 0) return nb::int_(operands_read.unreadable);
        if (operands_read.first == nullptr) return nb::none();
        const auto entry = find(op, policy, attributes, operands_read, true);
        if (entry == nullptr) return nb::none();
        if (entry->copies != 0) return nb::int_(entry->copies);
        return compute(*entry, operands_read, out);
    }

    // Bit mask of operands that must be converted first; -1: one requires a gradient.
    static int64_t unreadable(const nb::tuple& operands) {
        const Operands operands_read(operands);
        return operands_read.gradient ? -1 : operands_read.unreadable;
    }

    void put(int64_t op, nb::handle policy, const nb::tuple& attributes, const nb::tuple& operands,
             nb::object executor, nb::object weights, const std::vector<int32_t>& inputs,
             const std::vector<int64_t>& shape, const std::tuple<uint8_t, uint8_t>& dtype,
             nb::object array_dtype, int64_t copies, nb::object payload) {
        const Operands operands_read(operands);
        const uint64_t number = number_of(policy);
        if (operands_read.unreadable != 0 || operands_read.gradient || number == unknown)
            throw nb::value_error("put: run() would not accept these operands or this policy");
        const auto [code, bits] = dtype;
        auto entry = std::make_shared<OpEntry>(TensorFactory(shape, code, bits, std::move(array_dtype)));
        if (!executor.is_none()) {
            entry->executor = nb::cast<PyExecutor&>(executor).core.get();
            entry->weights = &nb::cast<PyWeightBindings&>(weights).core;
        }
        entry->inputs = inputs;
        entry->copies = copies;
        int64_t bytes = entry->result.bytes();
        for (const int32_t i : inputs) bytes += operands_read.views[static_cast<size_t>(i)].bytes();
        entry->keeps_gil = bytes <= keep_gil_bytes && operands_read.first->view.device_type == cpu_device;
        entry->executor_owner = std::move(executor);
        entry->weights_owner = std::move(weights);
        entry->payload = std::move(payload);
        table_.put(signature(static_cast<uint64_t>(op), number, attributes, operands_read), std::move(entry));
    }

    // The payload of an entry, or None.
    nb::object payload(int64_t op, nb::handle policy, const nb::tuple& attributes,
                       const nb::tuple& operands) {
        const Operands operands_read(operands);
        if (operands_read.unreadable != 0 || operands_read.gradient) return nb::none();
        const auto entry = find(op, policy, attributes, operands_read, false);
        return entry == nullptr ? nb::none() : entry->payload;
    }

    // Policies are looked up by object identity; signatures hold their numbers.
    void know_policy(nb::object policy, uint64_t number) {
        constexpr size_t max_policies = 32;
        if (number_of(policy) == number) return;
        if (policies_.size() >= max_policies) policies_.erase(policies_.begin());
        policies_.emplace_back(std::move(policy), number);
    }

    void clear() {
        table_.clear();
        policies_.clear();
    }
    DispatchCounters counters() const { return table_.counters(); }

  private:
    static constexpr uint64_t unknown = ~uint64_t{0};

    uint64_t number_of(nb::handle policy) const noexcept {
        for (const auto& [object, number] : policies_)
            if (object.is(policy)) return number;
        return unknown;
    }

    std::shared_ptr<const OpEntry> find(int64_t op, nb::handle policy, const nb::tuple& attributes,
                                        const Operands& operands_read, bool counts) {
        return std::static_pointer_cast<const OpEntry>(table_.find(
            signature(static_cast<uint64_t>(op), number_of(policy), attributes, operands_read), counts));
    }

    static Signature signature(uint64_t op, uint64_t policy, const nb::tuple& attributes,
                               const Operands& operands_read) {
        Signature result;
        result.add(op);
        result.add(policy);
        add_attribute(result, attributes.ptr());
        for (size_t i = 0; i < operands_read.count; ++i)
            operands_read.tensors[i].library == nullptr ? result.add_absent()
                                                        : result.add(operands_read.views[i]);
        return result;
    }

    static nb::object compute(const OpEntry& entry, const Operands& operands_read, nb::handle out) {
        const ForeignTensor& first = *operands_read.first;
        const int32_t type = first.view.device_type, index = first.view.device_index;
        Memory memory = nullptr;
        nb::object result;
        if (out.is_none()) {
            result = nb::steal(entry.result.make(*first.library, type, index, memory));
            if (!result.is_valid()) throw nb::python_error();
        } else {
            ForeignTensor target;
            if (target.read(out.ptr()) != ForeignTensor::Read::done ||
                !entry.result.fits(target, type, index))
                return nb::int_(-2);
            memory = target.view.data;
            if (operands_read.overlap(memory, entry.result.bytes())) return nb::int_(-3);
            result = nb::borrow(out);
        }
        StreamOrder order;
        if (!first.order(order)) throw nb::python_error();
        Status status;
        if (entry.keeps_gil) {
            status = entry.run(operands_read.views.data(), memory, order);
        } else {
            const nb::gil_scoped_release no_gil;
            status = entry.run(operands_read.views.data(), memory, order);
        }
        return status.ok() ? result : nb::cast(status);
    }

    Dispatcher table_;
    std::vector<std::pair<nb::object, uint64_t>> policies_;
};

}  // namespace

void bind_ops(nb::module_& m) {
    nb::class_<DispatchCounters>(m, "DispatchCounters", "Counts of a table of ops.")
        .def_ro("hits", &DispatchCounters::hits)
        .def_ro("misses", &DispatchCounters::misses)
        .def_ro("evictions", &DispatchCounters::evictions)
        .def_ro("entries", &DispatchCounters::entries);
    nb::class_<Ops>(m, "Ops", "A cache of compiled ops: a call is a lookup and a launch.")
        .def(nb::init<size_t>(), "capacity"_a)
        .def("run", &Ops::run, "op"_a, "policy"_a, "attributes"_a, "operands"_a, "out"_a.none(),
             nb::sig("def run(self, op: int, policy: object, attributes: tuple[object, ...], operands: "
                     "tuple[object, ...], out: object) -> object"),
             "Return the output, None if no entry exists, a number if the caller must act, or a Status.")
        .def("put", &Ops::put, "op"_a, "policy"_a, "attributes"_a, "operands"_a, "executor"_a.none(),
             "weights"_a.none(), "inputs"_a, "shape"_a, "dtype"_a, "array_dtype"_a, "copies"_a,
             "payload"_a.none(),
             nb::sig("def put(self, op: int, policy: object, attributes: tuple[object, ...], operands: "
                     "tuple[object, ...], executor: Executor | None, weights: WeightBindings | None, inputs: "
                     "Sequence[int], shape: Sequence[int], dtype: tuple[int, int], array_dtype: object, "
                     "copies: int, payload: object) -> None"),
             "Insert an entry for the signature of a call.")
        .def("payload", &Ops::payload, "op"_a, "policy"_a, "attributes"_a, "operands"_a,
             nb::sig("def payload(self, op: int, policy: object, attributes: tuple[object, ...], operands: "
                     "tuple[object, ...]) -> object"),
             "Return the payload of a signature, or None.")
        .def_static("unread", &Ops::unreadable, "operands"_a,
                    nb::sig("def unread(operands: tuple[object, ...]) -> int"),
                    "Return a bit mask of operands to convert first; -1: one requires a gradient.")
        .def("know_policy", &Ops::know_policy, "policy"_a, "number"_a)
        .def("clear", &Ops::clear)
        .def_prop_ro("counters", &Ops::counters);
}

}  // namespace xpurt::bindings
