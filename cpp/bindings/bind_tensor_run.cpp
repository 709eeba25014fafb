// bindings/bind_tensor_run.cpp: whole programs on tensors of other libraries that lie on their device.
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <array>

#include "bindings.h"
#include "runtime_objects.h"
#include "tensors.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace xpurt::bindings {
namespace {

// The memory of one run's borders, on the stack but for programs with many.
class Places {
  public:
    explicit Places(size_t count) {
        if (count > few) many_.resize(count);
    }
    Memory* data() noexcept { return many_.empty() ? some_.data() : many_.data(); }

  private:
    static constexpr size_t few = 32;
    std::array<Memory, few> some_;
    std::vector<Memory> many_;
};

// A program's borders, for runs on tensors that lie on its device already.
class TensorRun {
  public:
    // name, shape, DLPack's (code, bits), NumPy's dtype
    using Form = std::tuple<nb::str, std::vector<int64_t>, std::tuple<uint8_t, uint8_t>, nb::object>;

    TensorRun(nb::object executor, const std::vector<Form>& inputs, const std::vector<Form>& outputs,
              int32_t device_type, int32_t device_index)
        : executor_(std::move(executor)), device_type_(device_type), device_index_(device_index) {
        for (const auto* const side : {&inputs, &outputs})
            for (const auto& [name, shape, dtype, array_dtype] : *side) {
                const auto [code, bits] = dtype;
                borders_.push_back({name, Blank(shape, code, bits, array_dtype)});
            }
        input_count_ = inputs.size();
    }

    // Whether run() would take them.
    bool fits(const nb::dict& given) const {
        Order order;
        const Library* library = nullptr;
        return read(given, nullptr, library, order);
    }

    // Outputs by name, queued in the order of the tensors' own stream; None where the tensors are not all of
    // one library, on the device and of the right form; or the Status of a run that failed.
    nb::object run(nb::handle fixed, const nb::dict& given, const Stop* stop) const {
        const size_t count = borders_.size();
        Places places(count);
        Memory* const memory = places.data();
        const Library* library = nullptr;
        Order order;
        // Whoever else has the dictionary may put other tensors into it meanwhile.
        const nb::dict kept = nb::steal<nb::dict>(PyDict_Copy(given.ptr()));
        if (!read(kept, memory, library, order)) return nb::none();
        nb::dict made;
        for (size_t i = input_count_; i < count; ++i) {
            const nb::object tensor =
                nb::steal(borders_[i].form.make(*library, device_type_, device_index_, memory[i]));
            if (!tensor.is_valid()) throw nb::python_error();
            made[borders_[i].name] = tensor;
        }
        const PyExecutor& executor = nb::cast<const PyExecutor&>(executor_);
        Executor::Run run;
        run.fixed = &nb::cast<const PyFixed&>(fixed).core;
        run.inputs = memory;
        run.outputs = memory + input_count_;
        run.order = order;
        run.stop = stop == nullptr ? nullptr : &stop->set;
        const Status status = [&] {
            const nb::gil_scoped_release no_gil;
            return executor.core->run(run);
        }();
        return status.ok() ? made : nb::cast(status);
    }

  private:
    // Checks the inputs and takes their memory, unless it is null.
    bool read(const nb::dict& given, Memory* memory, const Library*& library, Order& order) const {
        if (given.size() != input_count_ || input_count_ == 0) return false;
        for (size_t i = 0; i < input_count_; ++i) {
            PyObject* const object = PyDict_GetItem(given.ptr(), borders_[i].name.ptr());
            Tensor tensor;
            if (object == nullptr || tensor.read(object) != Tensor::Read::done) return false;
            tensor.writeable = true;  // it is only read
            if (!borders_[i].form.fits(tensor, device_type_, device_index_)) return false;
            if (library == nullptr) {
                library = tensor.library;
                if (memory != nullptr && !tensor.order(order)) throw nb::python_error();
            }
            if (library->api != tensor.library->api) return false;
            if (memory != nullptr) memory[i] = tensor.view.data;
        }
        return true;
    }

    struct Border {
        nb::str name;
        Blank form;
    };
    nb::object executor_;
    std::vector<Border> borders_;  // inputs, then outputs
    size_t input_count_ = 0;
    int32_t device_type_, device_index_;
};

}  // namespace

void bind_tensor_run(nb::module_& m) {
    using Form = TensorRun::Form;
    nb::class_<TensorRun>(m, "TensorRun", "Runs of a program on tensors that lie on its device.")
        .def(
            nb::init<nb::object, const std::vector<Form>&, const std::vector<Form>&, int32_t, int32_t>(),
            "executor"_a, "inputs"_a, "outputs"_a, "device_type"_a, "device_index"_a,
            nb::sig("def __init__(self, executor: Executor, inputs: Sequence[tuple[str, Sequence[int], "
                    "tuple[int, int], object]], outputs: Sequence[tuple[str, Sequence[int], tuple[int, int], "
                    "object]], device_type: int, device_index: int) -> None"))
        .def("fits", &TensorRun::fits, "given"_a, nb::sig("def fits(self, given: dict[str, object]) -> bool"),
             "Whether run() would take them.")
        .def("run", &TensorRun::run, "fixed"_a, "given"_a, "stop"_a = nb::none(),
             nb::sig("def run(self, fixed: Fixed, given: dict[str, object], stop: Stop | None = None) -> "
                     "dict[str, object] | Status | None"));
}

}  // namespace xpurt::bindings
