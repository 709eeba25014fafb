// cuda/devices.cpp: facts about CUDA devices, from the driver library only.
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

// The kernel module's version: in sysfs, or after the word "Module" in /proc.
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
    const auto check = [&](CUresult result, const char* call) { return status_of(driver, result, call); };
    CUdevice device = 0;
    XPURT_TRY(check(driver.cuDeviceGet(&device, index), "cuDeviceGet"));
    char text[256] = {};
    XPURT_TRY(check(driver.cuDeviceGetName(text, sizeof text - 1, device), "cuDeviceGetName"));
    facts.name = text;
    size_t bytes = 0;
    XPURT_TRY(check(driver.cuDeviceTotalMem_v2(&bytes, device), "cuDeviceTotalMem_v2"));
    facts.memory_bytes = static_cast<int64_t>(bytes);
    const auto attribute = [&](DeviceAttribute which, auto& fact) {
        int value = 0;
        const CUresult result = driver.cuDeviceGetAttribute(&value, which, device);
        fact = value;
        return check(result, "cuDeviceGetAttribute");
    };
    XPURT_TRY(attribute(capability_major, facts.capability_major));
    XPURT_TRY(attribute(capability_minor, facts.capability_minor));
    XPURT_TRY(attribute(multiprocessor_count, facts.multiprocessors));
    int shared_bytes = 0;
    XPURT_TRY(attribute(max_shared_per_block_optin, shared_bytes));
    facts.shared_memory_per_block = shared_bytes;
    XPURT_TRY(attribute(clock_rate, facts.clock_khz));
    XPURT_TRY(attribute(memory_clock_rate, facts.memory_clock_khz));

    // Optional functions: if the driver lacks one, the fact stays empty.
    CUuuid uuid{};
    if (driver.cuDeviceGetUuid_v2 != nullptr) {
        XPURT_TRY(check(driver.cuDeviceGetUuid_v2(&uuid, device), "cuDeviceGetUuid_v2"));
        facts.uuid = uuid_text(uuid);
    }
    char bus[32] = {};
    if (driver.cuDeviceGetPCIBusId != nullptr) {
        XPURT_TRY(check(driver.cuDeviceGetPCIBusId(bus, sizeof bus, device), "cuDeviceGetPCIBusId"));
        facts.pci_bus_id = bus;
    }
    return facts;
}

}  // namespace

Result<CudaFacts> facts(Library& library, const Search& search) {
    XPURT_TRY(library.open(search));
    const Driver driver(library);
    XPURT_TRY(status_of(driver, driver.cuInit(0), "cuInit"));
    CudaFacts result;
    result.driver_version = kernel_driver_version();
    XPURT_TRY(status_of(driver, driver.cuDriverGetVersion(&result.driver_api), "cuDriverGetVersion"));
    int count = 0;
    XPURT_TRY(status_of(driver, driver.cuDeviceGetCount(&count), "cuDeviceGetCount"));
    for (int index = 0; index < count; ++index) {
        XPURT_ASSIGN_OR_RETURN(auto device, describe(driver, index));
        result.devices.push_back(std::move(device));
    }
    return result;
}

}  // namespace xpurt::cuda

namespace xpurt {

Result<CudaFacts> cuda_facts(const Search& search) { return cuda::facts(cuda_library(), search); }

}  // namespace xpurt
