// cuda/driver.cpp: the driver library's function table and error messages.
#include "backends/cuda/driver.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "base/log.h"

namespace xpurt {

Library& cuda_library() {
    static Library& library = *new Library(cuda::library_spec());
    return library;
}

namespace cuda {

namespace {

// After these errors every further call on the context fails, according to cuda.h.
bool context_is_lost(CUresult result) noexcept {
    constexpr int lost[] = {700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 720};
    return std::find(std::begin(lost), std::end(lost), static_cast<int>(result)) != std::end(lost);
}

}  // namespace

LibrarySpec library_spec() {
    return {
        "cuda",
        "NVIDIA CUDA driver",
        "XPU_LIBCUDA",
        {"libcuda.so.1", "libcuda.so"},
        {
#define XPURT_ROW(name, since, need, type) {#name, since, Need::need},
            XPURT_CUDA_SYMBOLS(XPURT_ROW)
#undef XPURT_ROW
        },
        "Install the NVIDIA driver. In a container, make the GPUs visible when you start it.",
    };
}

Driver::Driver(const Library& library) {
    size_t index = 0;  // the members are declared in the order of the table
#define XPURT_FILL(name, since, need, type) \
    name = reinterpret_cast<std::add_pointer_t<type>>(library.address(index++));
    XPURT_CUDA_SYMBOLS(XPURT_FILL)
#undef XPURT_FILL
}

Status can_run(const Library& library) {
    // cuda_facts() and copies between devices use these if present; running programs does not need them.
    constexpr const char* not_needed[] = {
        "cuDeviceGetPCIBusId",   "cuGetErrorName",     "cuGetErrorString", "cuDeviceGetUuid_v2",
        "cuDeviceCanAccessPeer", "cuMemPoolSetAccess", "cuMemcpyPeerAsync"};
    std::string lacking;
    const std::vector<Symbol>& symbols = library.spec().symbols;
    for (size_t i = 0; i < symbols.size(); ++i) {
        if (library.address(i) != nullptr) continue;
        const std::string name = symbols[i].name;
        if (std::find(std::begin(not_needed), std::end(not_needed), name) != std::end(not_needed)) continue;
        lacking += (lacking.empty() ? "" : ", ") + name;
    }
    if (lacking.empty()) return {};
    return {Code::symbol_missing, library.info().path + " is too old to run programs: it has no " + lacking,
            "Update the driver to one that serves CUDA 12.0 or later (525 and up)."};
}

Status status_of(const Driver& driver, CUresult result, const char* call) {
    if (result == CUDA_SUCCESS) return {};
    const char *name = nullptr, *meaning = nullptr;
    if (driver.cuGetErrorName != nullptr && driver.cuGetErrorName(result, &name) != CUDA_SUCCESS)
        name = nullptr;
    if (driver.cuGetErrorString != nullptr && driver.cuGetErrorString(result, &meaning) != CUDA_SUCCESS)
        meaning = nullptr;
    std::string message =
        std::string(call) + " returned " + (name != nullptr ? name : std::to_string(result));
    if (meaning != nullptr) message += std::string(" (") + meaning + ")";
    if (context_is_lost(result))
        return {Code::call_failed, message,
                "A kernel failed, and the CUDA context is lost for this process: restart it, and "
                "find the kernel with compute-sanitizer."};
    switch (result) {
        case CUDA_ERROR_NO_DEVICE:
            return {Code::no_device, message,
                    "The driver sees no GPU: check CUDA_VISIBLE_DEVICES and the container's device "
                    "settings."};
        case CUDA_ERROR_SYSTEM_NOT_READY:
            return {Code::call_failed, message,
                    "Start the machine's fabric manager, or wait until it is ready."};
        case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
            return {Code::call_failed, message,
                    "The driver library and the kernel module differ: reboot, or reinstall the driver."};
        default:
            return {Code::call_failed, message, "Run nvidia-smi. If it fails as well, repair the driver."};
    }
}

void log_if_failed(const Driver& driver, CUresult result, const char* call) noexcept {
    if (result == CUDA_SUCCESS || result == CUDA_ERROR_DEINITIALIZED || context_is_lost(result)) return;
    log_failure(status_of(driver, result, call));
}

}  // namespace cuda
}  // namespace xpurt
