// runtime/host_kernels.cpp: the library "python" on the CPU.
#include "xpurt/host_kernel.h"

#include <mutex>
#include <utility>

namespace xpurt {
namespace {

struct FinderSlot {
    std::mutex mutex;
    FindHostKernel find;
};

FinderSlot& finder() {
    static auto* const instance =
        new FinderSlot;  // never freed: prepared kernels may outlive every static object
    return *instance;
}

class PythonFunctionKernel final : public LibraryKernel {
  public:
    PythonFunctionKernel(std::unique_ptr<HostKernel> kernel, std::string name)
        : kernel_(std::move(kernel)), name_(std::move(name)) {}
    Status execute(void* const* args, void*) const override { return kernel_->run(args, nullptr); }
    std::string implementation() const override { return "Python function " + name_; }

  private:
    const std::unique_ptr<HostKernel> kernel_;
    const std::string name_;
};

class PythonKernelLibrary final : public KernelLibrary {
  public:
    std::string version() const override { return "1"; }
    Result<std::unique_ptr<LibraryKernel>> prepare(const KernelCall& call, int) override {
        XPURT_ASSIGN_OR_RETURN(auto kernel, find_host_kernel(call, "cpu"));
        return std::unique_ptr<LibraryKernel>(
            std::make_unique<PythonFunctionKernel>(std::move(kernel), call.symbol));
    }
};

}  // namespace

void set_host_kernels(FindHostKernel find) {
    const std::lock_guard<std::mutex> lock(finder().mutex);
    finder().find = std::move(find);
}

Result<std::unique_ptr<HostKernel>> find_host_kernel(const KernelCall& call, const std::string& device) {
    FindHostKernel find;
    {
        const std::lock_guard<std::mutex> lock(finder().mutex);
        find = finder().find;
    }
    if (!find)
        return Status{Code::not_found,
                      "kernel " + call.kernel + " is a function that this process cannot call",
                      "Compile with a policy that forbids it."};
    return find(call, device);
}

std::unique_ptr<KernelLibrary> make_host_library() { return std::make_unique<PythonKernelLibrary>(); }

}  // namespace xpurt
