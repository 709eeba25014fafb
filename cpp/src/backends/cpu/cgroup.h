// cpu/cgroup.h: limits that a container or service manager sets for this process.
#pragma once

#include <cstdint>
#include <string>

namespace xpurt {

struct CgroupLimits {
    double cpu_cores = 0;      // quota / period; 0 = no limit
    int64_t memory_bytes = 0;  // 0 = no limit
};

// Read the limits of cgroup version 1, version 2 or a hybrid. The tightest limit between this process's group
// and the root applies. `root` is prepended to every path, so that tests can provide a tree of files.
CgroupLimits cgroup_limits(const std::string& root = "");

}  // namespace xpurt
