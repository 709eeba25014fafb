// bindings/bind_tensor_run.cpp: whole programs on tensors of other libraries that are on the program's
// device.
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "bindings.h"
#include "runtime_objects.h"
#include "tensors.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace xpurt::bindings {
namespace {

// Runs a program on tensors that are already on its device.
class TensorRun {
  public:
    using PyForm = TensorForms::PyForm;

    TensorRun(nb::object executor, const std::vector<PyForm>& inputs, const std::vector<PyForm>& outputs,
              int32_t device_type, int32_t device_index, bool borrows_arena)
        : executor_(std::move(executor)),
          forms_(inputs, outputs, device_type, device_index),
          device_type_(device_type),
          device_index_(device_index) {
        const size_t bytes = nb::cast<const PyExecutor&>(executor_).core->arena_bytes();
        if (borrows_arena && bytes > 0)
            arena_form_.emplace(std::vector<int64_t>{static_cast<int64_t>(bytes)}, uint8_t{1}, uint8_t{8},
                                nb::module_::import_("numpy").attr("dtype")("uint8"));
    }

    // True if run() would accept the tensors.
    bool fits(const nb::dict& tensors) const {
        StreamOrder order;
        const TensorLibrary* library = nullptr;
        return forms_.read(tensors, nullptr, library, order);
    }

    // Return the outputs by name, queued on the tensors' current stream; None if the tensors are not all of
    // one library, on the device and of the right shape and dtype; or the Status of a failed run.
    nb::object run(nb::handle weights, const nb::dict& tensors, const StopFlag* stop) const {
        MemoryArray memory_array(forms_.count());
        Memory* const memory = memory_array.data();
        const TensorLibrary* library = nullptr;
        StreamOrder order;
        // Copy: another thread may change the dictionary during the run.
        const nb::dict inputs = nb::steal<nb::dict>(PyDict_Copy(tensors.ptr()));
        if (!forms_.read(inputs, memory, library, order)) return nb::none();
        const nb::object outputs = forms_.make_outputs(*library, memory);
        const PyExecutor& executor = nb::cast<const PyExecutor&>(executor_);
        Executor::Run run;
        // The library reuses its memory in the order of the stream, so that the tensor may end before the
        // work does.
        nb::object arena;
        if (arena_form_) {
            arena = nb::steal(arena_form_->make(*library, device_type_, device_index_, run.arena));
            if (!arena.is_valid()) throw nb::python_error();
        }
        run.weights = &nb::cast<const PyWeightBindings&>(weights).core;
        run.inputs = memory;
        run.outputs = memory + forms_.input_count();
        run.order = order;
        run.stop = stop == nullptr ? nullptr : &stop->set;
        const Status status = [&] {
            const nb::gil_scoped_release no_gil;
            return executor.core->run(run);
        }();
        return status.ok() ? outputs : nb::cast(status);
    }

  private:
    nb::object executor_;
    TensorForms forms_;
    std::optional<TensorFactory> arena_form_;  // if set: each run takes its arena from the tensors' library
    int32_t device_type_, device_index_;
};

}  // namespace

void bind_tensor_run(nb::module_& m) {
    using PyForm = TensorRun::PyForm;
    nb::class_<TensorRun>(m, "TensorRun", "A runner of a program on tensors that are on its device.")
        .def(
            nb::init<nb::object, const std::vector<PyForm>&, const std::vector<PyForm>&, int32_t, int32_t,
                     bool>(),
            "executor"_a, "inputs"_a, "outputs"_a, "device_type"_a, "device_index"_a,
            "borrows_arena"_a = false,
            nb::sig("def __init__(self, executor: Executor, inputs: Sequence[tuple[str, Sequence[int], "
                    "tuple[int, int], object]], outputs: Sequence[tuple[str, Sequence[int], tuple[int, int], "
                    "object]], device_type: int, device_index: int, borrows_arena: bool = False) -> None"))
        .def("fits", &TensorRun::fits, "tensors"_a,
             nb::sig("def fits(self, tensors: dict[str, object]) -> bool"),
             "Return True if run() would accept the tensors.")
        .def("run", &TensorRun::run, "weights"_a, "tensors"_a, "stop"_a = nb::none(),
             nb::sig("def run(self, weights: WeightBindings, tensors: dict[str, object], stop: Stop | None = "
                     "None) -> "
                     "dict[str, object] | Status | None"));
}

}  // namespace xpurt::bindings
