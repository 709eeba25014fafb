// bindings/tensors.cpp: reading and creating tensors of other libraries.
#include "tensors.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <vector>

#include "bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace xpurt::bindings {

PyTypeObject* array_type = nullptr;

namespace {

// NumPy's dtype objects that are singletons, with DLPack's type codes.
struct ArrayDtype {
    PyObject* descr;
    uint8_t code, bits;
};
std::vector<ArrayDtype>& array_dtypes() {
    static auto* const cache = new std::vector<ArrayDtype>();
    return *cache;
}
PyObject* numpy_empty = nullptr;

const ArrayDtype* find_dtype(const PyObject* descr) noexcept {
    for (const ArrayDtype& each : array_dtypes())
        if (each.descr == descr) return &each;
    return nullptr;
}

// The exchange table of a type, or null. A subclass that overrides `__dlpack__` or `__torch_dispatch__`
// changes how its memory is to be read, so its base class's table is not used.
const exchange::DlpackExchangeApi* api_of(nb::handle type) {
    if (!nb::hasattr(type, exchange::DlpackExchangeApi::attribute)) return nullptr;
    nb::object owner;
    for (const nb::handle base : nb::borrow<nb::tuple>(type.attr("__mro__")))
        if (nb::hasattr(base, exchange::DlpackExchangeApi::attribute)) owner = nb::borrow(base);
    for (const char* const name : {"__dlpack__", "__torch_dispatch__"}) {
        const nb::object method = nb::getattr(type, name, nb::none());
        if (!method.equal(nb::getattr(owner, name, nb::none()))) return nullptr;
    }
    const nb::object capsule = type.attr(exchange::DlpackExchangeApi::attribute);
    auto* api = static_cast<const exchange::DlpackExchangeApi*>(
        PyCapsule_GetPointer(capsule.ptr(), exchange::DlpackExchangeApi::capsule));
    if (api == nullptr) PyErr_Clear();
    while (api != nullptr && api->version.major > exchange::DlpackExchangeApi::major) api = api->older;
    const bool whole = api != nullptr && api->version.major == exchange::DlpackExchangeApi::major &&
                       api->show != nullptr && api->allocate != nullptr && api->import_tensor != nullptr &&
                       api->current_stream != nullptr;
    return whole ? api : nullptr;
}

// Interned once: creating the string for each lookup would double the cost.
PyObject* interned(const char* text) { return PyUnicode_InternFromString(text); }

bool wants_gradient(PyObject* tensor) {
    static PyObject* const requires_grad = interned("requires_grad");
    static PyObject* enabled = nullptr;  // torch.is_grad_enabled
    PyObject* const requires_gradient = PyObject_GetAttr(tensor, requires_grad);
    if (requires_gradient == nullptr) PyErr_Clear();
    const bool requested = requires_gradient == Py_True;
    Py_XDECREF(requires_gradient);
    if (!requested) return false;
    if (enabled == nullptr)
        enabled = nb::object(nb::module_::import_("torch").attr("is_grad_enabled")).release().ptr();
    return nb::steal(PyObject_CallNoArgs(enabled)).is(nb::handle(Py_True));
}

// A view with the negative bit set: its memory has the other signs.
bool negated(PyObject* tensor) {
    static PyObject* const is_neg = interned("is_neg");
    const nb::object method = nb::steal(PyObject_GetAttr(tensor, is_neg));
    if (!method.is_valid()) return PyErr_Clear(), false;
    return nb::steal(PyObject_CallNoArgs(method.ptr())).is(nb::handle(Py_True));
}

void set_error(void*, const char* kind, const char* message) {
    const bool memory = std::string(kind == nullptr ? "" : kind).find("emory") != std::string::npos;
    PyErr_SetString(memory ? PyExc_MemoryError : PyExc_RuntimeError, message == nullptr ? "" : message);
}

}  // namespace

const TensorLibrary& library_of(PyTypeObject* type) {
    static auto* const cache = new std::unordered_map<PyTypeObject*, TensorLibrary>();
    const auto entry = cache->find(type);
    if (entry != cache->end()) return entry->second;
    TensorLibrary result;
    result.arrays = type == array_type;
    const nb::handle object(reinterpret_cast<PyObject*>(type));
    if (!result.arrays) {
        result.api = api_of(object);
        result.gradients = result.api != nullptr && nb::hasattr(object, "requires_grad");
    }
    object.inc_ref();  // the type must stay alive, since its address is the key
    return cache->emplace(type, result).first->second;
}

ForeignTensor::Read ForeignTensor::read(PyObject* object) {
    library = &library_of(Py_TYPE(object));
    if (library->arrays) {
        const auto& array = *reinterpret_cast<const ArrayFields*>(object);
        const ArrayDtype* const dtype = find_dtype(array.descr);
        if (dtype == nullptr || array.nd > max_rank || (array.flags & aligned) == 0) return Read::unsupported;
        static_assert(sizeof(Py_ssize_t) == sizeof(int64_t), "an array's dims are read as they are");
        view = {array.data,  reinterpret_cast<const int64_t*>(array.dims),
                nullptr,     array.nd,
                dtype->code, dtype->bits,
                cpu_device,  0};
        writeable = (array.flags & bindings::writeable) != 0;
        if ((array.flags & c_contiguous) != 0) return Read::done;
        const Py_ssize_t size = dtype->bits / 8;
        for (int d = 0; d < array.nd; ++d) {
            if (array.strides[d] % size != 0) return Read::unsupported;
            strides_[static_cast<size_t>(d)] = array.strides[d] / size;
        }
        view.strides = strides_.data();
        return Read::done;
    }
    if (library->api == nullptr) return Read::unsupported;
    exchange::DlpackTensor exported;
    if (library->api->show(object, &exported) != 0) {
        PyErr_Clear();  // the slow path reports the error
        return Read::unsupported;
    }
    if (exported.rank > max_rank || exported.dtype.lanes != 1) return Read::unsupported;
    view = {static_cast<char*>(exported.data) + exported.byte_offset,
            exported.shape,
            exported.strides,
            exported.rank,
            exported.dtype.code,
            exported.dtype.bits,
            exported.device.type,
            exported.device.index};
    if (library->gradients) {
        if (wants_gradient(object)) return Read::gradient;
        if (negated(object)) return Read::unsupported;
    }
    return Read::done;
}

bool ForeignTensor::order(StreamOrder& order) const {
    order = {};
    if (view.device_type == cpu_device) return true;
    order.on_caller_stream = true;
    return library->api == nullptr ||
           library->api->current_stream(view.device_type, view.device_index, &order.stream) == 0;
}

TensorFactory::TensorFactory(std::vector<int64_t> shape, uint8_t code, uint8_t bits, nb::object array_dtype)
    : shape_(std::move(shape)), code_(code), bits_(bits), bytes_(bits / 8) {
    nb::list dims;
    for (const int64_t d : shape_) {
        bytes_ *= d;
        dims.append(d);
    }
    array_arguments_ = nb::make_tuple(nb::tuple(dims), array_dtype);
}

PyObject* TensorFactory::make(const TensorLibrary& library, int32_t device_type, int32_t device_index,
                              Memory& memory) const {
    if (library.arrays) {
        PyObject* const result = PyObject_CallObject(numpy_empty, array_arguments_.ptr());
        if (result != nullptr) memory = reinterpret_cast<ArrayFields*>(result)->data;
        return result;
    }
    exchange::DlpackTensor requires_gradient{nullptr,
                                             {device_type, device_index},
                                             static_cast<int32_t>(shape_.size()),
                                             {code_, bits_, 1},
                                             const_cast<int64_t*>(shape_.data()),
                                             nullptr,
                                             0};
    exchange::DlpackManagedTensor* managed = nullptr;
    if (library.api->allocate(&requires_gradient, &managed, nullptr, set_error) != 0 || managed == nullptr) {
        if (PyErr_Occurred() == nullptr)
            PyErr_SetString(PyExc_RuntimeError, "the tensor could not be allocated");
        return nullptr;
    }
    memory = static_cast<char*>(managed->tensor.data) + managed->tensor.byte_offset;
    void* object = nullptr;
    return library.api->import_tensor(managed, &object) == 0 ? static_cast<PyObject*>(object) : nullptr;
}

bool TensorFactory::fits(const ForeignTensor& tensor, int32_t device_type,
                         int32_t device_index) const noexcept {
    const TensorView& view = tensor.view;
    return view.rank == static_cast<int32_t>(shape_.size()) && view.code == code_ && view.bits == bits_ &&
           view.device_type == device_type && view.device_index == device_index && tensor.writeable &&
           std::equal(shape_.begin(), shape_.end(), view.shape) && view.dense();
}

TensorForms::TensorForms(const std::vector<PyForm>& inputs, const std::vector<PyForm>& outputs,
                         int32_t device_type, int32_t device_index)
    : input_count_(inputs.size()), device_type_(device_type), device_index_(device_index) {
    for (const auto* const side : {&inputs, &outputs})
        for (const auto& [name, shape, dtype, array_dtype] : *side) {
            const auto [code, bits] = dtype;
            forms_.push_back({name, TensorFactory(shape, code, bits, array_dtype)});
        }
}

bool TensorForms::read(const nb::dict& tensors, Memory* memory, const TensorLibrary*& library,
                       StreamOrder& order) const {
    if (tensors.size() != input_count_ || input_count_ == 0) return false;
    for (size_t i = 0; i < input_count_; ++i) {
        PyObject* const object = PyDict_GetItem(tensors.ptr(), name(i));
        ForeignTensor tensor;
        if (object == nullptr || tensor.read(object) != ForeignTensor::Read::done) return false;
        tensor.writeable = true;  // inputs are only read
        if (!forms_[i].form.fits(tensor, device_type_, device_index_)) return false;
        if (library == nullptr) {
            library = tensor.library;
            if (memory != nullptr && !tensor.order(order)) throw nb::python_error();
        }
        if (library->api != tensor.library->api) return false;
        if (memory != nullptr) memory[i] = tensor.view.data;
    }
    return true;
}

nb::dict TensorForms::make_outputs(const TensorLibrary& library, Memory* memory) const {
    nb::dict outputs;
    for (size_t i = input_count_; i < count(); ++i) {
        const nb::object tensor =
            nb::steal(forms_[i].form.make(library, device_type_, device_index_, memory[i]));
        if (!tensor.is_valid()) throw nb::python_error();
        outputs[forms_[i].name] = tensor;
    }
    return outputs;
}

void bind_tensors(nb::module_& m) {
    m.def(
        "trust_dtype",
        [](nb::object dtype, uint8_t code, uint8_t bits) {
            if (numpy_empty == nullptr)
                numpy_empty = nb::object(nb::module_::import_("numpy").attr("empty")).release().ptr();
            if (find_dtype(dtype.ptr()) == nullptr)
                array_dtypes().push_back({dtype.release().ptr(), code, bits});
        },
        "dtype"_a, "code"_a, "bits"_a,
        nb::sig("def trust_dtype(dtype: object, code: int, bits: int) -> None"),
        "Register a dtype object of NumPy with DLPack's type codes.");
    m.def(
        "knows_tensors",
        [](nb::handle type) { return library_of(reinterpret_cast<PyTypeObject*>(type.ptr())).cache(); },
        "type"_a, nb::sig("def knows_tensors(type: object) -> bool"),
        "Return True if tensors of a type are read and created without a call into Python.");
    m.def(
        "show_tensor",
        [](nb::object object) -> nb::object {
            ForeignTensor tensor;
            if (tensor.read(object.ptr()) != ForeignTensor::Read::done) return nb::none();
            const TensorView& view = tensor.view;
            nb::list shape, strides;
            int64_t dense = 1;
            std::vector<int64_t> usual(static_cast<size_t>(view.rank));
            for (int32_t d = view.rank - 1; d >= 0; --d) {
                usual[static_cast<size_t>(d)] = dense;
                dense *= view.shape[d];
            }
            for (int32_t d = 0; d < view.rank; ++d) {
                shape.append(view.shape[d]);
                strides.append(view.strides == nullptr ? usual[static_cast<size_t>(d)] : view.strides[d]);
            }
            return nb::make_tuple(nb::tuple(shape), nb::tuple(strides), nb::make_tuple(view.code, view.bits),
                                  nb::make_tuple(view.device_type, view.device_index));
        },
        "tensor"_a,
        nb::sig("def show_tensor(tensor: object) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, int], "
                "tuple[int, int]] | None"),
        "Shape, strides in elements, DLPack's type and device of a tensor that can be read in place; None "
        "for any "
        "other.");
}

}  // namespace xpurt::bindings
