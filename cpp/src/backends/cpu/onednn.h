// cpu/onednn.h: oneDNN as a kernel library. onednn_api.h declares its C API, onednn_kernel.h its calls.
#pragma once

#include <memory>

#include "xpurt/kernel.h"
#include "xpurt/library.h"

namespace xpurt {

// The kernels of onednn_library(). It is opened by a caller that knows its path (see Search), else by the
// loader's own search.
std::unique_ptr<KernelLibrary> make_onednn();

}  // namespace xpurt
