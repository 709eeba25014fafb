// cpu/topology.h: cores and caches.
#pragma once

#include <string_view>
#include <vector>

#include "xpurt/device.h"

namespace xpurt {

int logical_cores();
int physical_cores();
int affinity_cores();

// As core 0 sees them, level by level: from sysfs, or from CPUID where the system has no sysfs (sandboxes).
std::vector<Cache> caches();

// The two ways behind the first choice, for themselves so that tests can hold them against it.
std::vector<Cache> cpuid_caches();               // shared_by is unknown; {} where there is no CPUID
int cores_in_cpuinfo(std::string_view cpuinfo);  // distinct (socket, core) pairs; 0 = the text names none

}  // namespace xpurt
