// xpurt/host_kernel.h: kernels that whoever embeds this core brings: functions of the host that compute a
// call. A plan names them as calls of the library "python".
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
    // Computes the call. `args`: addresses of its buffers on `device`, inputs, then outputs; `stream`: in
    // whose order work on a GPU is queued, null on the host. Any thread.
    virtual Status run(void* const* args, void* stream) const = 0;
};

// Finds the function of a call for a device ("cpu", "cuda:0"), once for each executor.
using FindHostKernel =
    std::function<Result<std::unique_ptr<HostKernel>>(const KernelCall&, const std::string& device)>;

// Sets who finds functions; for start-up. Without one, calls of "python" are refused with a reason.
void set_host_kernels(FindHostKernel find);
Result<std::unique_ptr<HostKernel>> find_host_kernel(const KernelCall& call, const std::string& device);

std::unique_ptr<KernelLibrary> make_host_library();

}  // namespace xpurt
