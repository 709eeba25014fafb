// cuda/module.h: a loaded CUBIN, and a kernel of it with its launch parameters.
#pragma once

#include <memory>
#include <vector>

#include "backends/cuda/device.h"
#include "backends/cuda/reports.h"
#include "xpurt/kernel.h"

namespace xpurt::cuda {

// Load a CUBIN. symbol() of the module returns a CUkernel.
Result<std::shared_ptr<const Module>> load_cubin(std::shared_ptr<Device> device, const void* bytes);
// The object through which the module's kernels report errors; null if none of them can.
std::shared_ptr<KernelReports> reports_of(const Module& module);

// A matrix of 16-bit values whose tiles a kernel copies with the tensor memory accelerator: its argument, its
// sizes, the elements from row to row, and the rows of a tile, which has 64 columns.
struct TiledMatrix {
    int64_t argument = 0, rows = 0, columns = 0, row_stride = 0, tile_rows = 0;
};

// The launch parameters in a call's options: "grid", "block" and "cluster" as [x, y, z], "shared" in bytes,
// "pdl", and "tensor_maps" as five numbers for each TiledMatrix.
struct LaunchParams {
    CUlaunchConfig config{};
    CUlaunchAttribute attributes[2]{};
    unsigned attribute_count = 0;
    std::vector<TiledMatrix> matrices{};
};
// The kernel of a call, with its dynamic shared memory enabled.
Result<CUkernel> kernel_of(const Device& device, const KernelCall& call, const Module& module);
Result<LaunchParams> launch_of(const Device& device, const KernelCall& call);

// The kernelParams of a launch: a pointer to each argument, each number, and the tensor map of each matrix.
// The map of a matrix that is not aligned to 16 bytes is zero: the kernel copies it without the accelerator.
// The result is valid until this thread's next call.
Result<void**> kernel_params(const Device& device, const KernelCall& call, const LaunchParams& launch,
                             void* const* args);

}  // namespace xpurt::cuda
