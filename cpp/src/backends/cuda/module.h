// cuda/module.h: a CUBIN, loaded, and one of its kernels with its launch.
#pragma once

#include <memory>

#include "backends/cuda/device.h"
#include "backends/cuda/reports.h"
#include "xpurt/kernel.h"

namespace xpurt::cuda {

// The module of a CUBIN; symbol() gives a CUkernel.
Result<std::shared_ptr<const Module>> load_cubin(std::shared_ptr<Device> device, const void* bytes);
// Where the kernels of such a module report; null when none of them does.
std::shared_ptr<KernelReports> reports_of(const Module& module);

// What a call's options say of its launch: "grid", "block" and "cluster" as [x, y, z], "shared" in bytes,
// "pdl".
struct LaunchParams {
    CUlaunchConfig config{};
    CUlaunchAttribute attributes[2]{};
    unsigned attribute_count = 0;
};
// The kernel of a call, allowed the shared memory that it asks for.
Result<CUkernel> kernel_of(const Device& device, const KernelCall& call, const Module& module);
Result<LaunchParams> launch_of(const Device& device, const KernelCall& call);

}  // namespace xpurt::cuda
