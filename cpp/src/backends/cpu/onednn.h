// cpu/onednn.h: oneDNN as a library of kernels. Its C API, as far as it is used here, stands in onednn.cpp.
#pragma once

#include <memory>

#include "xpurt/kernel.h"
#include "xpurt/library.h"

namespace xpurt {

// Kernels of onednn_library(), which is opened by whoever knows where it lies (see Search), else by the
// loader's own search.
std::unique_ptr<KernelLibrary> make_onednn();

}  // namespace xpurt
