// cpu/topology.h: the processor's cores and caches.
#pragma once

#include <string_view>
#include <vector>

#include "xpurt/device.h"

namespace xpurt {

int logical_cores();
int physical_cores();
int affinity_cores();

// The caches of core 0 by level: from sysfs, or from CPUID where a sandbox has no sysfs.
std::vector<Cache> caches();

// The fallbacks, exposed so that tests can compare them with sysfs.
std::vector<Cache> cpuid_caches();               // shared_by is unknown; {} where there is no CPUID
int cores_in_cpuinfo(std::string_view cpuinfo);  // distinct (socket, core) pairs; 0 = the text names none

}  // namespace xpurt
