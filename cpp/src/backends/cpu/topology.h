// cpu/topology.h: cores and caches.
#pragma once

#include <vector>

#include "xpurt/device.h"

namespace xpurt {

int logical_cores();
int physical_cores();
int affinity_cores();

// As core 0 sees them, level by level: from sysfs, or from CPUID where the system has no sysfs (sandboxes).
std::vector<Cache> caches();

}  // namespace xpurt
