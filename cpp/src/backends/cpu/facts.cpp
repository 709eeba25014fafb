// cpu/facts.cpp: all facts about the host processor.
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>

#include "backends/cpu/cgroup.h"
#include "backends/cpu/instruction_sets.h"
#include "backends/cpu/topology.h"
#include "xpurt/device.h"

namespace xpurt {

CpuFacts cpu_facts() {
    CpuFacts facts;
    utsname system{};
    if (uname(&system) == 0) facts.architecture = system.machine;

    InstructionSets sets = instruction_sets();
    facts.vendor = std::move(sets.vendor);
    facts.model = std::move(sets.model);
    facts.level = std::move(sets.level);
    facts.flags = std::move(sets.flags);
    facts.caches = caches();

    const CgroupLimits limits = cgroup_limits();
    facts.logical_cores = logical_cores();
    facts.physical_cores = physical_cores();
    facts.affinity_cores = affinity_cores();
    facts.quota_cores = limits.cpu_cores;
    facts.usable_cores = facts.affinity_cores;
    // Round the quota down: one thread more than the quota allows would throttle all of them.
    if (limits.cpu_cores > 0)
        facts.usable_cores = std::max(1, std::min(facts.usable_cores, static_cast<int>(limits.cpu_cores)));

    const int64_t pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);  // -1: unknown
    facts.memory_bytes = pages > 0 && page_bytes > 0 ? pages * page_bytes : 0;
    facts.memory_limit_bytes = limits.memory_bytes;
    return facts;
}

}  // namespace xpurt
