// cuda/module.h: a loaded CUBIN, and a kernel of it with its launch parameters.
#pragma once

#include <memory>

#include "backends/cuda/device.h"
#include "backends/cuda/reports.h"
#include "xpurt/kernel.h"

namespace xpurt::cuda {

// Load a CUBIN. symbol() of the module returns a CUkernel.
Result<std::shared_ptr<const Module>> load_cubin(std::shared_ptr<Device> device, const void* bytes);
// The object through which the module's kernels report errors; null if none of them can.
std::shared_ptr<KernelReports> reports_of(const Module& module);

// The launch parameters in a call's options: "grid", "block" and "cluster" as [x, y, z], "shared" in bytes,
// "pdl".
struct LaunchParams {
    CUlaunchConfig config{};
    CUlaunchAttribute attributes[2]{};
    unsigned attribute_count = 0;
};
// The kernel of a call, with its dynamic shared memory enabled.
Result<CUkernel> kernel_of(const Device& device, const KernelCall& call, const Module& module);
Result<LaunchParams> launch_of(const Device& device, const KernelCall& call);

}  // namespace xpurt::cuda
