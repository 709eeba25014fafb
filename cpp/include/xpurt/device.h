// xpurt/device.h: facts about the processors of this machine, read again on each call.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "xpurt/library.h"
#include "xpurt/status.h"

namespace xpurt {

struct Cache {
    int level = 0;       // 1, 2, 3, ...
    std::string type{};  // "data", "instruction" or "unified"
    int64_t bytes = 0;   // of one instance of the cache
    int64_t line_bytes = 0;
    int shared_by = 0;  // number of logical cores that share one instance; 0 = unknown
};

struct CpuFacts {
    std::string architecture{};  // the kernel's name: "x86_64", "aarch64", ...
    std::string vendor{};        // "GenuineIntel", "AuthenticAMD", "Arm", ...
    std::string model{};         // brand string; on aarch64 implementer and part number
    std::string level{};         // "x86-64-v1" to "x86-64-v4"; "" elsewhere
    std::vector<std::string>
        flags{};                  // instruction sets that both the processor and the operating system support
    std::vector<Cache> caches{};  // of core 0
    int logical_cores = 0;        // online in the machine
    int physical_cores = 0;
    int affinity_cores = 0;          // allowed by this process's affinity mask
    double quota_cores = 0;          // cgroup CPU quota in cores; 0 = none
    int usable_cores = 0;            // min(affinity_cores, quota_cores rounded down), at least 1
    int64_t memory_bytes = 0;        // of the machine
    int64_t memory_limit_bytes = 0;  // cgroup limit; 0 = none
};

CpuFacts cpu_facts();

struct CudaDevice {
    int index = 0;
    std::string name{};
    std::string uuid{};        // 8-4-4-4-12 hex digits; "" when the driver is older than 11.4
    std::string pci_bus_id{};  // "0000:01:00.0"
    int capability_major = 0;
    int capability_minor = 0;
    int multiprocessors = 0;
    int64_t shared_memory_per_block = 0;  // maximum by opt-in at launch, in bytes
    int64_t memory_bytes = 0;
    int64_t clock_khz = 0;         // highest SM clock
    int64_t memory_clock_khz = 0;  // highest memory clock
};

struct CudaFacts {
    int driver_api = 0;            // newest CUDA version that the driver supports, 1000 * major + 10 * minor
    std::string driver_version{};  // version of the kernel module, "580.65.06"; "" if the system hides it
    std::vector<CudaDevice> devices{};
};

// Read the facts, loading the driver library if necessary. Creates no context, so it takes no device memory.
Result<CudaFacts> cuda_facts(const Search& search = {});

}  // namespace xpurt
