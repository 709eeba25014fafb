// bindings/module.cpp: the Python module xpuruntime._core. Importing it loads no vendor library and queries
// no device.
#include "bindings.h"
#include "xpurt/status.h"

NB_MODULE(_core, m) {
    // Executors over Python backends may live until the interpreter ends, which is not a leak.
    nanobind::set_leak_warnings(false);
    m.doc() = "The C++ core of xpuruntime. Private: use xpuruntime.runtime and xpuruntime.profiler.";
    m.attr("__version__") = xpurt::version();
    xpurt::bindings::bind_libraries(m);
    xpurt::bindings::bind_devices(m);
    xpurt::bindings::bind_profiler(m);
    xpurt::bindings::bind_memory(m);
    xpurt::bindings::bind_runtime(m);
    xpurt::bindings::bind_collectives(m);
    xpurt::bindings::bind_cuda(m);
    xpurt::bindings::bind_tensors(m);
    xpurt::bindings::bind_ops(m);
    xpurt::bindings::bind_tensor_run(m);
    xpurt::bindings::bind_tensor_call(m);
    xpurt::bindings::bind_host_kernels(m);
}
