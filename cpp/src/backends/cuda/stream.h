// cuda/stream.h: kernels of vendors' libraries (cuBLAS, cuDNN ...) on CUDA: what a library implements so that
// its calls stand among generated kernels in a submission, and in a captured graph.
#pragma once

#include <memory>
#include <string>

#include "backends/cuda/device.h"
#include "xpurt/kernel.h"

namespace xpurt::cuda {

// A call to a library, ready to be queued. Constant once made; launched from several threads, each time on
// another stream and with another workspace.
class StreamKernel {
  public:
    virtual ~StreamKernel() = default;

    // Queues the work on `stream`. `args`: device addresses in the order of the call (inputs, then outputs);
    // `workspace`: at least workspace_bytes(), 256-byte aligned, null when that is 0. The device's context is
    // current. The stream may be capturing: no waiting, no memory, no other streams.
    virtual Status launch(void* const* args, void* workspace, CUstream stream) const = 0;

    virtual size_t workspace_bytes() const { return 0; }

    // What runs, in the library's own words, for receipts: "cublasLtMatmul algorithm 21, tile 128x128, ...".
    virtual std::string implementation() const = 0;
};

// A library that brings kernels. prepare() does everything slow, once: handles, descriptors, plans, and the
// choice of an algorithm. Any thread; the device's context is current.
class StreamLibrary {
  public:
    virtual ~StreamLibrary() = default;
    virtual std::string version() const = 0;  // "13.1"; "" when it cannot be loaded
    virtual Result<std::unique_ptr<StreamKernel>> prepare(const KernelCall& call, Device& device) = 0;
};

// The registered library ("cublas", "cublasLt", "cudnn"), or null. Any thread.
StreamLibrary* find_stream_library(const std::string& name);
void register_stream_library(const std::string& name, std::unique_ptr<StreamLibrary> library);

}  // namespace xpurt::cuda
