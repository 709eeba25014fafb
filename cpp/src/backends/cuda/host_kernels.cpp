// cuda/host_kernels.cpp: the library "python" on CUDA, whose functions queue their work on the run's stream.
#include <utility>

#include "backends/cuda/libraries/vendor_library.h"
#include "xpurt/host_kernel.h"

namespace xpurt::cuda {
namespace {

class PythonStreamKernel final : public StreamKernel {
  public:
    PythonStreamKernel(std::unique_ptr<HostKernel> kernel, const Device& device, std::string name)
        : kernel_(std::move(kernel)), device_(device), name_(std::move(name)) {}

    Status launch(void* const* args, void*, CUstream stream) const override {
        int capturing = 0;
        const CUresult result = device_.driver.cuStreamIsCapturing(stream, &capturing);
        XPURT_TRY(device_.check(result, "cuStreamIsCapturing"));
        if (capturing != 0)
            return {Code::unsupported, "the Python function " + name_ + " cannot be part of a CUDA graph",
                    ""};
        return kernel_->run(args, stream);
    }
    std::string implementation() const override { return "Python function " + name_; }

  private:
    const std::unique_ptr<HostKernel> kernel_;
    const Device& device_;  // owned by the backend that prepared the call, which outlives the kernel
    const std::string name_;
};

class PythonStreamLibrary final : public StreamLibrary {
  public:
    std::string version() const override { return "1"; }
    Result<std::unique_ptr<StreamKernel>> prepare(const KernelCall& call, Device& device) override {
        XPURT_ASSIGN_OR_RETURN(auto kernel, find_host_kernel(call, "cuda:" + std::to_string(device.index)));
        return std::unique_ptr<StreamKernel>(
            std::make_unique<PythonStreamKernel>(std::move(kernel), device, call.symbol));
    }
};

}  // namespace

std::unique_ptr<StreamLibrary> make_host_stream_library() { return std::make_unique<PythonStreamLibrary>(); }

}  // namespace xpurt::cuda
