// bindings/bind_tensor_run.cpp: whole programs on tensors of other libraries that lie on their device.
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "runtime_objects.h"
#include "tensors.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace xpurt::bindings {
namespace {

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

    // Outputs by name, queued in the order of the tensors' own stream; None where the tensors are not all of
    // one library, on the device and of the right form; or the Status of a run that failed.
    nb::object run(nb::handle fixed, const nb::dict& given) const {
        if (given.size() != input_count_ || input_count_ == 0) return nb::none();
        const size_t count = borders_.size();
        std::vector<Memory> memory(count);
        const Library* library = nullptr;
        Order order;
        for (size_t i = 0; i < input_count_; ++i) {
            PyObject* const object = PyDict_GetItem(given.ptr(), borders_[i].name.ptr());
            Tensor tensor;
            if (object == nullptr || tensor.read(object) != Tensor::Read::done) return nb::none();
            tensor.writeable = true;  // it is only read
            if (!borders_[i].form.fits(tensor, device_type_, device_index_)) return nb::none();
            if (library == nullptr) {
                library = tensor.library;
                if (!tensor.order(order)) throw nb::python_error();
            }
            if (library != tensor.library && library->api != tensor.library->api) return nb::none();
            memory[i] = tensor.view.data;
        }
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
        run.inputs = memory.data();
        run.outputs = memory.data() + input_count_;
        run.order = order;
        const Status status = [&] {
            const nb::gil_scoped_release no_gil;
            return executor.core->run(run);
        }();
        return status.ok() ? made : nb::cast(status);
    }

  private:
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
        .def("run", &TensorRun::run, "fixed"_a, "given"_a,
             nb::sig("def run(self, fixed: Fixed, given: dict[str, object]) -> dict[str, object] | Status | "
                     "None"));
}

}  // namespace xpurt::bindings
