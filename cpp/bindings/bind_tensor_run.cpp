// bindings/bind_tensor_run.cpp: whole programs on tensors of other libraries that are on the program's
// device.
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <optional>

#include "bindings.h"
#include "runtime_objects.h"
#include "tensors.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace xpurt::bindings {
namespace {

// The addresses of one run's inputs and outputs, on the stack unless there are many.
class MemoryArray {
  public:
    explicit MemoryArray(size_t count) {
        if (count > inline_count) heap_.resize(count);
    }
    Memory* data() noexcept { return heap_.empty() ? inline_.data() : heap_.data(); }

  private:
    static constexpr size_t inline_count = 32;
    std::array<Memory, inline_count> inline_;
    std::vector<Memory> heap_;
};

// Runs a program on tensors that are already on its device.
class TensorRun {
  public:
    // name, shape, DLPack's (code, bits), NumPy's dtype
    using PyForm = std::tuple<nb::str, std::vector<int64_t>, std::tuple<uint8_t, uint8_t>, nb::object>;

    TensorRun(nb::object executor, const std::vector<PyForm>& inputs, const std::vector<PyForm>& outputs,
              int32_t device_type, int32_t device_index, bool borrows_arena)
        : executor_(std::move(executor)), device_type_(device_type), device_index_(device_index) {
        for (const auto* const side : {&inputs, &outputs})
            for (const auto& [name, shape, dtype, array_dtype] : *side) {
                const auto [code, bits] = dtype;
                io_forms_.push_back({name, TensorFactory(shape, code, bits, array_dtype)});
            }
        input_count_ = inputs.size();
        const size_t bytes = nb::cast<const PyExecutor&>(executor_).core->arena_bytes();
        if (borrows_arena && bytes > 0)
            arena_form_.emplace(std::vector<int64_t>{static_cast<int64_t>(bytes)}, uint8_t{1}, uint8_t{8},
                                nb::module_::import_("numpy").attr("dtype")("uint8"));
    }

    // True if run() would accept the tensors.
    bool fits(const nb::dict& tensors) const {
        StreamOrder order;
        const TensorLibrary* library = nullptr;
        return read(tensors, nullptr, library, order);
    }

    // Return the outputs by name, queued on the tensors' current stream; None if the tensors are not all of
    // one library, on the device and of the right shape and dtype; or the Status of a failed run.
    nb::object run(nb::handle weights, const nb::dict& tensors, const StopFlag* stop) const {
        const size_t count = io_forms_.size();
        MemoryArray memory_array(count);
        Memory* const memory = memory_array.data();
        const TensorLibrary* library = nullptr;
        StreamOrder order;
        // Copy: another thread may change the dictionary during the run.
        const nb::dict inputs = nb::steal<nb::dict>(PyDict_Copy(tensors.ptr()));
        if (!read(inputs, memory, library, order)) return nb::none();
        nb::dict outputs;
        for (size_t i = input_count_; i < count; ++i) {
            const nb::object tensor =
                nb::steal(io_forms_[i].form.make(*library, device_type_, device_index_, memory[i]));
            if (!tensor.is_valid()) throw nb::python_error();
            outputs[io_forms_[i].name] = tensor;
        }
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
        run.outputs = memory + input_count_;
        run.order = order;
        run.stop = stop == nullptr ? nullptr : &stop->set;
        const Status status = [&] {
            const nb::gil_scoped_release no_gil;
            return executor.core->run(run);
        }();
        return status.ok() ? outputs : nb::cast(status);
    }

  private:
    // Check the inputs and store their addresses in `memory`, unless it is null.
    bool read(const nb::dict& tensors, Memory* memory, const TensorLibrary*& library,
              StreamOrder& order) const {
        if (tensors.size() != input_count_ || input_count_ == 0) return false;
        for (size_t i = 0; i < input_count_; ++i) {
            PyObject* const object = PyDict_GetItem(tensors.ptr(), io_forms_[i].name.ptr());
            ForeignTensor tensor;
            if (object == nullptr || tensor.read(object) != ForeignTensor::Read::done) return false;
            tensor.writeable = true;  // inputs are only read
            if (!io_forms_[i].form.fits(tensor, device_type_, device_index_)) return false;
            if (library == nullptr) {
                library = tensor.library;
                if (memory != nullptr && !tensor.order(order)) throw nb::python_error();
            }
            if (library->api != tensor.library->api) return false;
            if (memory != nullptr) memory[i] = tensor.view.data;
        }
        return true;
    }

    struct NamedForm {
        nb::str name;
        TensorFactory form;
    };
    nb::object executor_;
    std::vector<NamedForm> io_forms_;  // inputs, then outputs
    size_t input_count_ = 0;
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
