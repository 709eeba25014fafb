// bindings/module.cpp: the Python module xpuruntime._core. Importing it loads no vendor and reads no device.
#include "bindings.h"
#include "xpurt/status.h"

NB_MODULE(_core, m) {
    m.doc() = "The C++ core of xpuruntime. Private: use xpuruntime.runtime and xpuruntime.profiler.";
    m.attr("__version__") = xpurt::version();
    xpurt::bindings::bind_libraries(m);
    xpurt::bindings::bind_devices(m);
    xpurt::bindings::bind_profiler(m);
    xpurt::bindings::bind_runtime(m);
}
