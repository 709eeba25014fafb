// cuda/module.cpp: CUBINs, and how a call's options say that its kernel is launched.
#include "backends/cuda/module.h"

#include <utility>

namespace xpurt::cuda {
namespace {

class Cubin final : public Module {
  public:
    Cubin(std::shared_ptr<Device> device, CUlibrary library)
        : device_(std::move(device)), library_(library) {}
    ~Cubin() override {
        const Current current(*device_);
        device_->driver.cuLibraryUnload(library_);
    }
    void* symbol(const char* name) const noexcept override {
        const Current current(*device_);
        CUkernel kernel = nullptr;
        return device_->driver.cuLibraryGetKernel(&kernel, library_, name) == 0 ? kernel : nullptr;
    }
    const char* mapped_by() const noexcept override { return "cuda"; }
    Status open_reports() {
        auto opened = Reports::open(device_, library_);
        reports_ = std::move(opened.value);
        return std::move(opened.status);
    }
    const std::shared_ptr<Reports>& reports() const noexcept { return reports_; }

  private:
    const std::shared_ptr<Device> device_;
    const CUlibrary library_;
    std::shared_ptr<Reports> reports_;
};

template <class T>
const T* option(const KernelCall& call, const char* name) {
    const auto found = call.options.find(name);
    return found == call.options.end() ? nullptr : std::get_if<T>(&found->second);
}

Status refused(const KernelCall& call, const std::string& why) {
    return {Code::invalid, "kernel " + call.kernel + " (" + call.symbol + ") " + why,
            "Compile the model again; if it persists, report the program."};
}

// Three sizes from 1 to `limits`, where the option is there.
bool sizes(const KernelCall& call, const char* name, const int64_t (&limits)[3], unsigned* x, unsigned* y,
           unsigned* z) {
    const auto* const given = option<std::vector<int64_t>>(call, name);
    if (given == nullptr) return true;
    if (given->size() != 3) return false;
    unsigned* const to[] = {x, y, z};
    for (size_t i = 0; i < 3; ++i) {
        if ((*given)[i] < 1 || (*given)[i] > limits[i]) return false;
        *to[i] = static_cast<unsigned>((*given)[i]);
    }
    return true;
}

}  // namespace

Result<std::shared_ptr<const Module>> load_cubin(std::shared_ptr<Device> device, const void* bytes) {
    const Current current(*device);
    CUlibrary library = nullptr;
    const CUresult result =
        device->driver.cuLibraryLoadData(&library, bytes, nullptr, nullptr, 0, nullptr, nullptr, 0);
    if (Status status = device->check(result, "cuLibraryLoadData"); !status.ok()) {
        status.advice = "The binary is for another device than " + device->name + " (sm_" +
                        std::to_string(device->capability) + "), or damaged: compile the model again.";
        return status;
    }
    const auto made = std::make_shared<Cubin>(std::move(device), library);
    if (Status status = made->open_reports(); !status.ok()) return status;
    return std::shared_ptr<const Module>(made);
}

std::shared_ptr<Reports> reports_of(const Module& module) {
    return static_cast<const Cubin&>(module).reports();
}

Result<Launch> launch_of(const Device& device, const KernelCall& call) {
    Launch made;
    CUlaunchConfig& config = made.config;
    if (!sizes(call, "grid", {2147483647, 65535, 65535}, &config.gridDimX, &config.gridDimY,
               &config.gridDimZ))
        return refused(call, "has a grid that no device takes");
    if (!sizes(call, "block", {1024, 1024, 64}, &config.blockDimX, &config.blockDimY, &config.blockDimZ) ||
        int64_t{config.blockDimX} * config.blockDimY * config.blockDimZ > 1024)
        return refused(call, "has a block that no device takes");
    if (const auto* const shared = option<int64_t>(call, "shared"); shared != nullptr) {
        if (*shared < 0 || *shared > device.max_shared_bytes)
            return refused(call, "asks for " + std::to_string(*shared) +
                                     " bytes of shared memory, the device has " +
                                     std::to_string(device.max_shared_bytes));
        config.sharedMemBytes = static_cast<unsigned>(*shared);
    }
    CUlaunchAttribute cluster;
    cluster.id = cluster_dimension;
    if (option<std::vector<int64_t>>(call, "cluster") != nullptr) {
        unsigned* const dims = cluster.value.clusterDim;
        if (!sizes(call, "cluster", {16, 16, 16}, dims, dims + 1, dims + 2))
            return refused(call, "has a cluster that no device takes");
        made.attributes[made.attribute_count++] = cluster;
    }
    const bool* const early = option<bool>(call, "pdl");
    if (early != nullptr && *early && device.capability >= 90) {
        CUlaunchAttribute overlap;
        overlap.id = programmatic_serialization;
        overlap.value.programmaticStreamSerializationAllowed = 1;
        made.attributes[made.attribute_count++] = overlap;
    }
    return made;
}

Result<CUkernel> kernel_of(const Device& device, const KernelCall& call, const Module& module) {
    const auto kernel = static_cast<CUkernel>(module.symbol(call.symbol.c_str()));
    if (kernel == nullptr)
        return Status{Code::symbol_missing, "the program's CUBIN has no " + call.symbol,
                      "Compile the model again."};
    const auto* const shared = option<int64_t>(call, "shared");
    if (shared != nullptr && *shared > 0) {
        const CUresult result = device.driver.cuKernelSetAttribute(
            max_dynamic_shared, static_cast<int>(*shared), kernel, device.handle);
        if (Status status = device.check(result, "cuKernelSetAttribute"); !status.ok()) return status;
    }
    return kernel;
}

}  // namespace xpurt::cuda
