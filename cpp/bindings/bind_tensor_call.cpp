// bindings/bind_tensor_call.cpp: what a call of a vendor's engine on tensors of one set of forms does before
// the vendor: check the inputs, create the outputs, read the addresses. One call, since after a vendor's run
// most of Python's code is no longer in the processor's caches.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>

#include "bindings.h"
#include "tensors.h"
#include "xpurt/cuda.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace xpurt::bindings {
namespace {

// The attributes of DeviceBuffer and TensorSpec that are read and set here.
struct Names {
    nb::str address{intern("address")}, array{intern("_array")}, backend{intern("backend")},
        dtype{intern("dtype")}, handle{intern("native_handle")}, layout{intern("layout")},
        pending{intern("pending")}, shape{intern("shape")}, spec{intern("spec")};

    static nb::str intern(const char* text) { return nb::steal<nb::str>(PyUnicode_InternFromString(text)); }
};
const Names& names() {
    static const auto* const all = new Names();
    return *all;
}

nb::object get(nb::handle object, const nb::str& name) {
    return nb::steal(PyObject_GetAttr(object.ptr(), name.ptr()));
}
nb::object checked_get(nb::handle object, const nb::str& name) {
    nb::object value = get(object, name);
    if (!value.is_valid()) throw nb::python_error();
    return value;
}
void set(nb::handle object, const nb::str& name, nb::handle value) {
    if (PyObject_SetAttr(object.ptr(), name.ptr(), value.ptr()) != 0) throw nb::python_error();
}

// Buffers of the runtime (DeviceBuffer) on one CUDA device.
class BufferForms {
  public:
    // type: DeviceBuffer. backend: the Python object, which outputs name. inputs, outputs: their specs.
    BufferForms(nb::object type, nb::object backend, std::shared_ptr<CudaBackend> core,
                const nb::list& inputs, const nb::list& outputs)
        : type_(std::move(type)),
          create_(type_.attr("__new__")),
          backend_(std::move(backend)),
          core_(std::move(core)) {
        for (const nb::handle spec : inputs)
            inputs_.push_back({nb::borrow(spec), checked_get(spec, names().shape),
                               checked_get(spec, names().dtype), nb::none()});
        for (const nb::handle spec : outputs) outputs_.push_back(nb::borrow(spec));
    }

    bool is_buffer(nb::handle object) const noexcept {
        return reinterpret_cast<PyObject*>(Py_TYPE(object.ptr())) == type_.ptr();
    }

    // The address of input i for work on the stream, ordered on it; none if it is not such an input.
    std::optional<Memory> read(size_t i, nb::handle buffer, nb::handle stream) const {
        Input& input = inputs_[i];
        if (!is_buffer(buffer)) return {};
        const nb::object spec = checked_get(buffer, names().spec);
        if (!spec.is(input.spec)) {
            if (!checked_get(spec, names().layout).is_none() ||
                !checked_get(spec, names().dtype).is(input.dtype) ||
                !checked_get(spec, names().shape).equal(input.shape))
                return {};
            input.spec = spec;  // the same object next time
        }
        const nb::object backend = checked_get(buffer, names().backend);
        if (!backend.is(backend_) && !backend.is(input.backend)) {
            if (!nb::cast<bool>(backend_.attr("shares_memory")(backend))) return {};
            input.backend = backend;
        }
        const nb::object pending = checked_get(buffer, names().pending);
        if (!pending.is_none() && !pending.equal(stream)) buffer.attr("settle")(stream);
        const nb::object handle = checked_get(buffer, names().handle);
        CudaBlock* block = nullptr;
        if (!nb::try_cast(handle, block) || block == nullptr)  // memory of another library
            return reinterpret_cast<Memory>(nb::cast<uintptr_t>(checked_get(handle, names().address)));
        block->used_on(reinterpret_cast<void*>(nb::cast<uintptr_t>(stream)));
        return reinterpret_cast<Memory>(block->address());
    }

    // Create the buffer for output i of work on the stream.
    Status make(size_t i, size_t bytes, nb::handle stream, Memory& memory, nb::object& buffer) const {
        const StreamOrder order{true, reinterpret_cast<void*>(nb::cast<uintptr_t>(stream))};
        XPURT_ASSIGN_OR_RETURN(auto block, core_->block(bytes, order));
        memory = reinterpret_cast<Memory>(block->address());
        buffer = create_(type_);
        set(buffer, names().handle, nb::cast(std::move(block)));
        set(buffer, names().spec, outputs_[i]);
        set(buffer, names().backend, backend_);
        set(buffer, names().array, nb::none());
        set(buffer, names().pending, stream);
        return {};
    }

  private:
    struct Input {
        nb::object spec, shape, dtype;
        nb::object backend;  // another object of the same device's memory, if one was seen
    };
    nb::object type_, create_, backend_;
    std::shared_ptr<CudaBackend> core_;
    mutable std::vector<Input> inputs_;
    std::vector<nb::object> outputs_;
};

class TensorCall {
  public:
    using PyForm = TensorForms::PyForm;

    TensorCall(const std::vector<PyForm>& inputs, const std::vector<PyForm>& outputs, int32_t device_type,
               int32_t device_index, nb::object backend)
        : forms_(inputs, outputs, device_type, device_index),
          backend_(std::move(backend)),
          on_host_(device_type == cpu_device) {}

    void take_buffers(nb::object type, std::shared_ptr<CudaBackend> core, const nb::list& inputs,
                      const nb::list& outputs) {
        buffers_.emplace(std::move(type), backend_, std::move(core), inputs, outputs);
    }

    nb::object prepare(const nb::dict& tensors) const {
        MemoryArray memory_array(forms_.count());
        Memory* const memory = memory_array.data();
        // Copy: another thread may change the dictionary. It is returned, so that the tensors live until the
        // run is queued.
        const nb::dict inputs = nb::steal<nb::dict>(PyDict_Copy(tensors.ptr()));
        nb::object stream;
        nb::dict outputs;
        PyObject* const first =
            forms_.input_count() == 0 ? nullptr : PyDict_GetItem(inputs.ptr(), forms_.name(0));
        if (first == nullptr) return nb::none();
        if (buffers_ && buffers_->is_buffer(first)) {
            if (inputs.size() != forms_.input_count()) return nb::none();
            stream = backend_.attr("current_stream")();
            for (size_t i = 0; i < forms_.input_count(); ++i) {
                PyObject* const buffer = PyDict_GetItem(inputs.ptr(), forms_.name(i));
                const auto address = buffer == nullptr ? std::nullopt : buffers_->read(i, buffer, stream);
                if (!address) return nb::none();
                memory[i] = *address;
            }
            for (size_t i = forms_.input_count(); i < forms_.count(); ++i) {
                const auto bytes = static_cast<size_t>(forms_.bytes(i));
                nb::object buffer;
                Status status = buffers_->make(i - forms_.input_count(), bytes, stream, memory[i], buffer);
                if (!status.ok()) return nb::cast(std::move(status));
                outputs[nb::handle(forms_.name(i))] = buffer;
            }
        } else {
            const TensorLibrary* library = nullptr;
            StreamOrder order;
            if (!forms_.read(inputs, memory, library, order)) return nb::none();
            try {
                outputs = forms_.make_outputs(*library, memory);
            } catch (nb::python_error& error) {
                if (!error.matches(PyExc_RuntimeError) && !error.matches(PyExc_MemoryError)) throw;
                return nb::cast(
                    Status{Code::no_memory, error.what(), "Free tensors, or run smaller inputs."});
            }
            stream = on_host_ ? nb::object(backend_.attr("current_stream")())
                              : nb::object(nb::int_(reinterpret_cast<uintptr_t>(order.stream)));
        }
        nb::list addresses;
        for (size_t i = 0; i < forms_.count(); ++i) addresses.append(reinterpret_cast<uintptr_t>(memory[i]));
        return nb::make_tuple(outputs, addresses, stream, inputs);
    }

  private:
    TensorForms forms_;
    nb::object backend_;
    bool on_host_;
    std::optional<BufferForms> buffers_;
};

}  // namespace

void bind_tensor_call(nb::module_& m) {
    using PyForm = TensorForms::PyForm;
    nb::class_<TensorCall>(
        m, "TensorCall",
        "Checks the inputs and creates the outputs of a call on tensors of one set of forms, on one device.")
        .def(nb::init<const std::vector<PyForm>&, const std::vector<PyForm>&, int32_t, int32_t, nb::object>(),
             "inputs"_a, "outputs"_a, "device_type"_a, "device_index"_a, "backend"_a,
             nb::sig(
                 "def __init__(self, inputs: Sequence[tuple[str, Sequence[int], tuple[int, int], object]], "
                 "outputs: Sequence[tuple[str, Sequence[int], tuple[int, int], object]], device_type: int, "
                 "device_index: int, backend: object) -> None"))
        .def("take_buffers", &TensorCall::take_buffers, "type"_a, "core"_a, "inputs"_a, "outputs"_a,
             nb::sig("def take_buffers(self, type: object, core: CudaBackend, inputs: list[object], outputs: "
                     "list[object]) -> None"),
             "Accept buffers of the runtime, too. inputs, outputs: their specs.")
        .def("prepare", &TensorCall::prepare, "tensors"_a,
             nb::sig("def prepare(self, tensors: dict[str, object]) -> tuple[dict[str, object], list[int], "
                     "int, dict[str, object]] | Status | None"),
             "Return new outputs by name, the addresses of inputs and outputs, the caller's stream, and the "
             "inputs, which must live until the run is queued; None for inputs of other forms; the Status of "
             "outputs that cannot be created.");
}

}  // namespace xpurt::bindings
