// bindings/tensors.h: tensors of NumPy and of libraries with DLPack's table of C functions, read and made
// without a call into Python.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstdint>

#include "dlpack_exchange.h"
#include "xpurt/dispatcher.h"

namespace xpurt::bindings {

// The head of a NumPy array (PyArrayObject_fields of its C API, which modules built against any NumPy read in
// place). Asking an array for its address in Python costs more than a small kernel. trust_arrays() checks it
// on a real one.
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
constexpr int c_contiguous = 0x1, aligned = 0x100, writeable = 0x400;

extern PyTypeObject* array_type;  // null: not trusted, arrays come by address only

// How tensors of one Python type are read, and made.
struct TensorLibrary {
    const exchange::DlpackExchangeApi* api = nullptr;
    bool arrays = false;     // NumPy's
    bool gradients = false;  // tensors say whether they need one: results of ours would lose it

    bool cache() const noexcept { return arrays || api != nullptr; }
};
// Of a type; looked at once. The GIL is held.
const TensorLibrary& library_of(PyTypeObject* type);

constexpr int max_rank = 16;

// A tensor, as long as its owner keeps it as it is.
struct ForeignTensor {
    TensorView view{};
    const TensorLibrary* library = nullptr;
    bool writeable = true;

    ForeignTensor() = default;
    ForeignTensor(const ForeignTensor&) = delete;
    ForeignTensor& operator=(const ForeignTensor&) = delete;

    enum class Read {
        done,
        unsupported,  // not in this way: of an unknown library, type or form
        gradient,     // it asks for a gradient, which nobody would compute
    };
    Read read(PyObject* object);
    // Where a run on it goes: on devices with streams, the one that its library works on. False with a Python
    // error set.
    bool order(StreamOrder& order) const;

  private:
    std::array<int64_t, max_rank> strides_;  // of an array, which counts bytes
};

// Results of one form, in whichever library the caller uses.
class TensorFactory {
  public:
    TensorFactory(std::vector<int64_t> shape, uint8_t code, uint8_t bits, nanobind::object array_dtype);
    // A new tensor on a device, content arbitrary; null with a Python error set.
    PyObject* make(const TensorLibrary& library, int32_t device_type, int32_t device_index,
                   Memory& memory) const;
    // Whether a caller's tensor can take the result.
    bool fits(const ForeignTensor& tensor, int32_t device_type, int32_t device_index) const noexcept;
    int64_t bytes() const noexcept { return bytes_; }

  private:
    std::vector<int64_t> shape_;
    uint8_t code_, bits_;
    int64_t bytes_;
    nanobind::object array_arguments_;  // of numpy.empty
};

}  // namespace xpurt::bindings
