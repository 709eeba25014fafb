// cpu/onednn_kernel.h: one call computed by oneDNN.
#pragma once

#include <memory>

#include "backends/cpu/onednn_api.h"
#include "xpurt/kernel.h"

namespace xpurt {

// Create the primitive for a call. `api` must outlive the kernel. Fails with Code::unsupported if oneDNN has
// no implementation for the shapes and types, or only its slow reference implementation.
Result<std::unique_ptr<LibraryKernel>> make_onednn_kernel(const dnnl::OneDnnApi& api, const KernelCall& call,
                                                          int threads);

}  // namespace xpurt
