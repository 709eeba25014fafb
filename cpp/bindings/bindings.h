// bindings/bindings.h: the module's parts. Python.h is seen in this folder only.
#pragma once

#include <nanobind/nanobind.h>

namespace xpurt::bindings {

// Released around whatever can wait or load: the loader, the driver, files, a lock.
using NoGil = nanobind::call_guard<nanobind::gil_scoped_release>;

void bind_libraries(nanobind::module_& m);
void bind_devices(nanobind::module_& m);
void bind_profiler(nanobind::module_& m);
void bind_memory(nanobind::module_& m);
void bind_runtime(nanobind::module_& m);
void bind_cuda(nanobind::module_& m);
void bind_host_kernels(nanobind::module_& m);
void bind_tensors(nanobind::module_& m);
void bind_ops(nanobind::module_& m);
void bind_tensor_run(nanobind::module_& m);

}  // namespace xpurt::bindings
