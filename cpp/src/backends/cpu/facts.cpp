// cpu/facts.cpp: everything about the host processor in one value.
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
    // Whole cores only: a thread more than the quota carries makes every thread wait its turn.
    if (limits.cpu_cores > 0)
        facts.usable_cores = std::max(1, std::min(facts.usable_cores, static_cast<int>(limits.cpu_cores)));

    facts.memory_bytes = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
    facts.memory_limit_bytes = limits.memory_bytes;
    return facts;
}

}  // namespace xpurt
