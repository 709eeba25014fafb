// bindings/runtime_objects.h: what Python holds of the runtime: executors, what they read from run to run,
// flags.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <memory>
#include <vector>

#include "tensors.h"
#include "xpurt/executor.h"

namespace xpurt::bindings {

// What an array at a program's border must be for its memory to be used as it is.
struct ArraySpec {
    nanobind::object dtype;
    std::vector<Py_ssize_t> shape;
    int flags;

    // The array's memory, or null when it does not fit.
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

// Fixed with the Python objects that own the memory.
struct PyWeightBindings {
    WeightBindings core;
    nanobind::object owner;
};

// A flag that ends the runs it was handed to.
struct StopFlag {
    std::atomic<bool> set{false};
};

struct PyExecutor {
    std::unique_ptr<Executor> core;
    std::vector<ArraySpec> io_specs;  // inputs, then outputs
    bool copies_io = false;           // the device's memory is not the host's
};

}  // namespace xpurt::bindings
