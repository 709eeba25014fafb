// bindings/runtime_objects.h: the runtime objects that Python holds: executors, weight bindings and stop
// flags.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <memory>
#include <vector>

#include "tensors.h"
#include "xpurt/executor.h"

namespace xpurt::bindings {

// The properties that an input or output array must have to be used in place.
struct ArraySpec {
    nanobind::object dtype;
    std::vector<Py_ssize_t> shape;
    int flags;

    // The array's memory; null if the array does not match.
    void* memory_if_matching(PyObject* object) const noexcept {
        if (Py_TYPE(object) != array_type) return nullptr;
        const auto& array = *reinterpret_cast<const ArrayFields*>(object);
        if (array.descr != dtype.ptr() || array.nd != static_cast<int>(shape.size()) ||
            (array.flags & flags) != flags)
            return nullptr;
        for (size_t d = 0; d < shape.size(); ++d)
            if (array.dims[d] != shape[d]) return nullptr;
        return array.data;
    }
};

// WeightBindings with the Python objects that own the memory.
struct PyWeightBindings {
    WeightBindings core;
    nanobind::object owner;
};

// A flag that stops the runs it was passed to.
struct StopFlag {
    std::atomic<bool> set{false};
};

struct PyExecutor {
    std::unique_ptr<Executor> core;
    std::vector<ArraySpec> io_specs;  // inputs, then outputs
    bool copies_io = false;           // the device has memory of its own, so arrays are copied
};

}  // namespace xpurt::bindings
