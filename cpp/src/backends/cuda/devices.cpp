// cuda/devices.cpp: facts about CUDA devices, through the driver alone.
#include <cstdio>

#include "backends/cuda/driver.h"
#include "base/text.h"
#include "xpurt/device.h"

namespace xpurt::cuda {
namespace {

std::string uuid_text(const CUuuid& uuid) {
    std::string text;
    for (int i = 0; i < 16; ++i) {
        char digits[3];
        std::snprintf(digits, sizeof digits, "%02x", uuid.bytes[i]);
        if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
        text += digits;
    }
    return text;
}

// The kernel module's version: a line of its own in sysfs, or the word after "Module" in /proc.
std::string kernel_driver_version() {
    std::string version = read_line("/sys/module/nvidia/version");
    if (!version.empty()) return version;
    const std::string text = read_text("/proc/driver/nvidia/version");
    for (const std::string& word : split(text.substr(0, text.find('\n')), ' '))
        if (!word.empty() && word.find_first_not_of("0123456789.") == std::string::npos &&
            word.find('.') != word.npos)
            return word;
    return "";
}

Result<CudaDevice> describe(const Driver& driver, int index) {
    CudaDevice facts;
    facts.index = index;
    CUdevice device = 0;
    Status failed;
    const auto call = [&](const char* name, int result) {
        if (failed.ok()) failed = status_of(driver, result, name);
        return result == 0;
    };
    if (!call("cuDeviceGet", driver.cuDeviceGet(&device, index))) return failed;

    char text[256] = {};
    if (call("cuDeviceGetName", driver.cuDeviceGetName(text, sizeof text - 1, device))) facts.name = text;
    size_t bytes = 0;
    if (call("cuDeviceTotalMem_v2", driver.cuDeviceTotalMem_v2(&bytes, device)))
        facts.memory_bytes = static_cast<int64_t>(bytes);
    const auto attribute = [&](DeviceAttribute which) {
        int value = 0;
        call("cuDeviceGetAttribute", driver.cuDeviceGetAttribute(&value, which, device));
        return value;
    };
    facts.capability_major = attribute(capability_major);
    facts.capability_minor = attribute(capability_minor);
    facts.multiprocessors = attribute(multiprocessor_count);
    facts.shared_memory_per_block = attribute(max_shared_per_block_optin);
    facts.clock_khz = attribute(clock_rate);
    facts.memory_clock_khz = attribute(memory_clock_rate);

    // Optional functions: a driver that lacks one leaves the fact empty.
    CUuuid uuid{};
    if (driver.cuDeviceGetUuid_v2 != nullptr &&
        call("cuDeviceGetUuid_v2", driver.cuDeviceGetUuid_v2(&uuid, device)))
        facts.uuid = uuid_text(uuid);
    char bus[32] = {};
    if (driver.cuDeviceGetPCIBusId != nullptr &&
        call("cuDeviceGetPCIBusId", driver.cuDeviceGetPCIBusId(bus, sizeof bus, device)))
        facts.pci_bus_id = bus;
    if (!failed.ok()) return failed;
    return facts;
}

}  // namespace

Result<CudaFacts> facts(Library& library, const Search& search) {
    Status status = library.open(search);
    if (!status.ok()) return status;
    const Driver driver(library);

    status = status_of(driver, driver.cuInit(0), "cuInit");
    if (!status.ok()) return status;
    CudaFacts found;
    found.driver_version = kernel_driver_version();
    status = status_of(driver, driver.cuDriverGetVersion(&found.driver_api), "cuDriverGetVersion");
    if (!status.ok()) return status;
    int count = 0;
    status = status_of(driver, driver.cuDeviceGetCount(&count), "cuDeviceGetCount");
    if (!status.ok()) return status;
    for (int index = 0; index < count; ++index) {
        Result<CudaDevice> device = describe(driver, index);
        if (!device.status.ok()) return device.status;
        found.devices.push_back(std::move(device.value));
    }
    return found;
}

}  // namespace xpurt::cuda

namespace xpurt {

Result<CudaFacts> cuda_facts(const Search& search) { return cuda::facts(cuda_library(), search); }

}  // namespace xpurt
