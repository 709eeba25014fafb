// cpu/cgroup.cpp: limits of control groups (Linux, Documentation/admin-guide/cgroup-v{1,2}).
#include "backends/cpu/cgroup.h"

#include <algorithm>
#include <cstdlib>
#include <functional>

#include "base/text.h"

namespace xpurt {
namespace {

// Version 1 writes "no limit" as the largest page-aligned 64-bit number; no real limit is near 2^60.
constexpr int64_t no_limit = int64_t{1} << 60;

bool listed(const std::string& commas, const std::string& word) {
    const std::vector<std::string> words = split(commas, ',');
    return std::find(words.begin(), words.end(), word) != words.end();
}

struct Hierarchy {
    std::string mount{};  // mount point of the hierarchy; "" if it is not mounted
    std::string group{};  // this process's group below it, "/a/b" or ""
};

// Find the hierarchy of a controller; "" names version 2's single hierarchy.
Hierarchy find(const std::string& root, const std::string& controller) {
    std::string path;
    for (const std::string& line : split(read_text(root + "/proc/self/cgroup"), '\n')) {
        const size_t first = line.find(':'), second = line.find(':', first + 1);
        if (second == std::string::npos) continue;
        const std::string controllers = line.substr(first + 1, second - first - 1);
        if (controller.empty() ? controllers.empty() : listed(controllers, controller))
            path = line.substr(second + 1);
    }
    if (path.empty()) return {};
    // mountinfo: id parent device root mountpoint options [optional fields] - type source superoptions
    for (const std::string& line : split(read_text(root + "/proc/self/mountinfo"), '\n')) {
        const size_t dash = line.find(" - ");
        if (dash == std::string::npos) continue;
        const std::vector<std::string> left = split(line.substr(0, dash), ' '),
                                       right = split(line.substr(dash + 3), ' ');
        if (left.size() < 5 || right.size() < 3) continue;
        if (right[0] != (controller.empty() ? "cgroup2" : "cgroup")) continue;
        if (!controller.empty() && !listed(right[2], controller)) continue;
        // A container may see its own group as the root of the mount.
        const std::string& top = left[3];
        std::string group = path;
        if (top != "/") group = starts_with(path, top) ? path.substr(top.size()) : "";
        if (group == "/" || starts_with(group, "/..")) group = "";
        return {left[4], group};
    }
    return {};
}

// Call `visit` with every directory from the process's group up to the mount point.
void upwards(const std::string& root, const Hierarchy& where,
             const std::function<void(const std::string&)>& visit) {
    if (where.mount.empty()) return;
    for (std::string group = where.group;; group.erase(group.rfind('/'))) {
        visit(root + where.mount + group + "/");
        if (group.find('/') == std::string::npos) return;
    }
}

void tighten_cpu(CgroupLimits& limits, const std::string& quota_text, const std::string& period_text) {
    const double quota = std::atof(quota_text.c_str()), period = std::atof(period_text.c_str());
    if (quota <= 0 || period <= 0) return;  // "max", -1 or no file
    const double cores = quota / period;
    limits.cpu_cores = limits.cpu_cores == 0 ? cores : std::min(limits.cpu_cores, cores);
}

void tighten_memory(CgroupLimits& limits, const std::string& text) {
    const int64_t bytes = std::strtoll(text.c_str(), nullptr, 10);
    if (bytes <= 0 || bytes >= no_limit) return;
    limits.memory_bytes = limits.memory_bytes == 0 ? bytes : std::min(limits.memory_bytes, bytes);
}

}  // namespace

CgroupLimits cgroup_limits(const std::string& root) {
    CgroupLimits limits;
    upwards(root, find(root, ""), [&](const std::string& folder) {
        const std::vector<std::string> cpu = split(read_line(folder + "cpu.max"), ' ');
        if (cpu.size() == 2) tighten_cpu(limits, cpu[0], cpu[1]);
        tighten_memory(limits, read_line(folder + "memory.max"));
    });
    upwards(root, find(root, "cpu"), [&](const std::string& folder) {
        tighten_cpu(limits, read_line(folder + "cpu.cfs_quota_us"), read_line(folder + "cpu.cfs_period_us"));
    });
    upwards(root, find(root, "memory"), [&](const std::string& folder) {
        tighten_memory(limits, read_line(folder + "memory.limit_in_bytes"));
    });
    return limits;
}

}  // namespace xpurt
