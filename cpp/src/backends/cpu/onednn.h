// cpu/onednn.h: oneDNN as a library of kernels. Its C API stands in onednn_api.h, calls in onednn_kernel.h.
#pragma once

#include <memory>

#include "xpurt/kernel.h"
#include "xpurt/library.h"

namespace xpurt {

// Kernels of onednn_library(), which is opened by whoever knows where it lies (see Search), else by the
// loader's own search.
std::unique_ptr<KernelLibrary> make_onednn();

}  // namespace xpurt
