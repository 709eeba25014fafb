// cpu/cgroup.h: the limits that a container or service manager puts on this process.
#pragma once

#include <cstdint>
#include <string>

namespace xpurt {

struct CgroupLimits {
    double cpu_cores = 0;      // quota / period; 0 = no limit
    int64_t memory_bytes = 0;  // 0 = no limit
};

// Versions 1 and 2 and the hybrid of both. The tightest limit on the way from this process's group to the
// top holds. `root` is put before every path read, so that tests can bring their own tree.
CgroupLimits cgroup_limits(const std::string& root = "");

}  // namespace xpurt
