// bindings/tensors.h: tensors of NumPy and of libraries with DLPack's C exchange API, read and created
// without a call into Python.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstdint>
#include <tuple>
#include <vector>

#include "dlpack_exchange.h"
#include "xpurt/dispatcher.h"

namespace xpurt::bindings {

// The layout of a NumPy array (PyArrayObject_fields of NumPy's C API, a stable ABI). Asking an array for its
// address through Python costs more than a small kernel. trust_arrays() checks the layout on a real array.
struct ArrayFields {
    PyObject head;
    char* data;
    int nd;
    Py_ssize_t* dims;
    Py_ssize_t* strides;
    PyObject* base;
    PyObject* descr;
    int flags;
};
constexpr int32_t cpu_device = 1;  // kDLCPU
constexpr int c_contiguous = 0x1, aligned = 0x100, writeable = 0x400;

extern PyTypeObject* array_type;  // null: the layout is not verified, and arrays are passed by address only

// How tensors of one Python type are read and created.
struct TensorLibrary {
    const exchange::DlpackExchangeApi* api = nullptr;
    bool arrays = false;     // NumPy arrays
    bool gradients = false;  // tensors may require gradients, which our outputs would lose

    bool cache() const noexcept { return arrays || api != nullptr; }
};
// The entry of a type, looked up once per type. The GIL must be held.
const TensorLibrary& library_of(PyTypeObject* type);

constexpr int max_rank = 16;

// A view of a Python tensor, valid while its owner does not change it.
struct ForeignTensor {
    TensorView view{};
    const TensorLibrary* library = nullptr;
    bool writeable = true;

    ForeignTensor() = default;
    ForeignTensor(const ForeignTensor&) = delete;
    ForeignTensor& operator=(const ForeignTensor&) = delete;

    enum class Read {
        done,
        unsupported,  // an unknown library, dtype or layout
        gradient,     // the tensor requires a gradient, which would not be computed
    };
    Read read(PyObject* object);
    // The stream for a run on this tensor: its library's current stream on a device with streams. Return
    // false with a Python error set.
    bool order(StreamOrder& order) const;

  private:
    std::array<int64_t, max_rank> strides_;  // of a NumPy array, converted from bytes to elements
};

// Creates outputs of one shape and dtype in the caller's library.
class TensorFactory {
  public:
    TensorFactory(std::vector<int64_t> shape, uint8_t code, uint8_t bits, nanobind::object array_dtype);
    // A new uninitialized tensor on a device; null with a Python error set.
    PyObject* make(const TensorLibrary& library, int32_t device_type, int32_t device_index,
                   Memory& memory) const;
    // True if a caller's tensor can receive the output.
    bool fits(const ForeignTensor& tensor, int32_t device_type, int32_t device_index) const noexcept;
    int64_t bytes() const noexcept { return bytes_; }

  private:
    std::vector<int64_t> shape_;
    uint8_t code_, bits_;
    int64_t bytes_;
    nanobind::object array_arguments_;  // arguments of numpy.empty
};

// The inputs and outputs of runs on tensors of one set of forms.
class TensorForms {
  public:
    // name, shape, DLPack's (code, bits), NumPy's dtype
    using PyForm =
        std::tuple<nanobind::str, std::vector<int64_t>, std::tuple<uint8_t, uint8_t>, nanobind::object>;

    TensorForms(const std::vector<PyForm>& inputs, const std::vector<PyForm>& outputs, int32_t device_type,
                int32_t device_index);

    size_t input_count() const noexcept { return input_count_; }
    size_t count() const noexcept { return forms_.size(); }
    PyObject* name(size_t i) const noexcept { return forms_[i].name.ptr(); }
    int64_t bytes(size_t i) const noexcept { return forms_[i].form.bytes(); }

    // Check the inputs, which must be tensors of one library. Unless `memory` is null, store their addresses
    // there and the stream of a run in `order`.
    bool read(const nanobind::dict& tensors, Memory* memory, const TensorLibrary*& library,
              StreamOrder& order) const;
    // New outputs by name, in the inputs' library; their addresses follow those of the inputs.
    nanobind::dict make_outputs(const TensorLibrary& library, Memory* memory) const;

  private:
    struct NamedForm {
        nanobind::str name;
        TensorFactory form;
    };
    std::vector<NamedForm> forms_;  // inputs, then outputs
    size_t input_count_ = 0;
    int32_t device_type_, device_index_;
};

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

}  // namespace xpurt::bindings
