// cuda/stream.h: the interface for vendors' libraries (cuBLAS, cuDNN, ...) on CUDA. Their calls are queued on
// the submission's stream, together with generated kernels, and can be captured into a graph.
#pragma once

#include <memory>
#include <string>

#include "backends/cuda/device.h"
#include "xpurt/kernel.h"

namespace xpurt::cuda {

// A prepared call of a library. Immutable; launched from several threads, each with another stream and
// workspace.
class StreamKernel {
  public:
    virtual ~StreamKernel() = default;

    // Queue the work on `stream`. `args` holds device addresses in the order of the call (inputs, then
    // outputs). `workspace` has at least workspace_bytes() and is 256-byte aligned; it is null if that is 0.
    // The device's context is current. The stream may be capturing: do not synchronize, allocate memory or
    // use another stream.
    virtual Status launch(void* const* args, void* workspace, CUstream stream) const = 0;

    virtual size_t workspace_bytes() const { return 0; }

    // The implementation, in the library's own terms, for receipts: "cublasLtMatmul algorithm 21, tile
    // 128x128, ...".
    virtual std::string implementation() const = 0;
};

// A library of kernels. prepare() does all slow work of a call once: handles, descriptors, plans, and the
// choice of an algorithm. Thread-safe; the device's context is current.
class StreamLibrary {
  public:
    virtual ~StreamLibrary() = default;
    virtual std::string version() const = 0;  // "13.1"; "" if it cannot be loaded
    virtual Result<std::unique_ptr<StreamKernel>> prepare(const KernelCall& call, Device& device) = 0;
};

// The registered library ("cublas", "cublasLt", "cudnn", "python"), or null. Thread-safe.
StreamLibrary* find_stream_library(const std::string& name);
void register_stream_library(const std::string& name, std::unique_ptr<StreamLibrary> library);

}  // namespace xpurt::cuda
