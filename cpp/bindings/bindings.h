// bindings/bindings.h: the parts of the Python module. Only this folder includes Python.h.
#pragma once

#include <nanobind/nanobind.h>

namespace xpurt::bindings {

// Releases the GIL around calls that may wait or load: the loader, the driver, files, locks.
using NoGil = nanobind::call_guard<nanobind::gil_scoped_release>;

void bind_libraries(nanobind::module_& m);
void bind_devices(nanobind::module_& m);
void bind_profiler(nanobind::module_& m);
void bind_memory(nanobind::module_& m);
void bind_runtime(nanobind::module_& m);
void bind_collectives(nanobind::module_& m);
void bind_cuda(nanobind::module_& m);
void bind_host_kernels(nanobind::module_& m);
void bind_tensors(nanobind::module_& m);
void bind_ops(nanobind::module_& m);
void bind_tensor_run(nanobind::module_& m);
void bind_tensor_call(nanobind::module_& m);

}  // namespace xpurt::bindings
