// cuda/host_kernels.cpp: the library "python" on CUDA: functions that queue their work on the run's stream.
#include <utility>

#include "backends/cuda/libraries/vendor.h"
#include "xpurt/host_kernel.h"

namespace xpurt::cuda {
namespace {

class Call final : public StreamKernel {
  public:
    Call(std::unique_ptr<HostKernel> kernel, const Device& device, std::string name)
        : kernel_(std::move(kernel)), device_(device), name_(std::move(name)) {}

    Status launch(void* const* args, void*, CUstream stream) const override {
        int capturing = 0;
        const CUresult asked = device_.driver.cuStreamIsCapturing(stream, &capturing);
        if (Status status = device_.check(asked, "cuStreamIsCapturing"); !status.ok()) return status;
        if (capturing != 0)
            return {Code::unsupported, "the Python function " + name_ + " cannot be part of a CUDA graph",
                    ""};
        return kernel_->run(args, stream);
    }
    std::string implementation() const override { return "Python function " + name_; }

  private:
    const std::unique_ptr<HostKernel> kernel_;
    const Device& device_;  // of the backend that prepared the call, which outlives it
    const std::string name_;
};

class HostLibrary final : public StreamLibrary {
  public:
    std::string version() const override { return "1"; }
    Result<std::unique_ptr<StreamKernel>> prepare(const KernelCall& call, Device& device) override {
        auto found = find_host_kernel(call, "cuda:" + std::to_string(device.index));
        if (!found.status.ok()) return found.status;
        return std::unique_ptr<StreamKernel>(
            std::make_unique<Call>(std::move(found.value), device, call.symbol));
    }
};

}  // namespace

std::unique_ptr<StreamLibrary> make_host_stream_library() { return std::make_unique<HostLibrary>(); }

}  // namespace xpurt::cuda
