// xpurt/host_kernel.h: kernels that are functions of the embedding program. A plan names them as calls of the
// library "python".
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "xpurt/kernel.h"
#include "xpurt/status.h"

namespace xpurt {

class HostKernel {
  public:
    virtual ~HostKernel() = default;
    // Compute the call. `args` holds the addresses of its inputs, then of its outputs. `stream` is the CUDA
    // stream to queue work on, null on the host. Called from any thread.
    virtual Status run(void* const* args, void* stream) const = 0;
};

// A lookup of the function for a call on a device ("cpu", "cuda:0"). Called once per call when an executor is
// created, from several threads at once.
using FindHostKernel =
    std::function<Result<std::unique_ptr<HostKernel>>(const KernelCall&, const std::string& device)>;

// Set the lookup; to be called at start-up. Without one, plans with calls of "python" are refused.
void set_host_kernels(FindHostKernel find);
Result<std::unique_ptr<HostKernel>> find_host_kernel(const KernelCall& call, const std::string& device);

std::unique_ptr<KernelLibrary> make_host_library();

}  // namespace xpurt
