// Cgroup limits, read from trees of files in the kernel's layout.
#include "doctest/doctest.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "backends/cpu/cgroup.h"

using namespace xpurt;
namespace fs = std::filesystem;

namespace {

// A root directory of its own for each test.
struct Tree {
    std::string root = std::string(SCRATCH) + "/cgroup." + std::to_string(getpid());

    Tree() { fs::remove_all(root); }
    ~Tree() { fs::remove_all(root); }

    void write(const std::string& path, const std::string& text) {
        fs::create_directories(fs::path(root + path).parent_path());
        std::ofstream(root + path) << text;
    }
};

const std::string v2_mount = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";

}  // namespace

TEST_CASE("without cgroups there are no limits") {
    Tree tree;
    CHECK(cgroup_limits(tree.root).cpu_cores == 0);
    CHECK(cgroup_limits(tree.root).memory_bytes == 0);
}

TEST_CASE("in version 2 the tightest limit up to the root applies") {
    Tree tree;
    tree.write("/proc/self/cgroup", "0::/system/job\n");
    tree.write("/proc/self/mountinfo", "22 1 8:1 / / rw - ext4 /dev/sda rw\n" + v2_mount);
    tree.write("/sys/fs/cgroup/system/cpu.max", "150000 100000\n");
    tree.write("/sys/fs/cgroup/system/job/cpu.max", "max 100000\n");
    tree.write("/sys/fs/cgroup/system/memory.max", "max\n");
    tree.write("/sys/fs/cgroup/system/job/memory.max", "1073741824\n");
    CHECK(cgroup_limits(tree.root).cpu_cores == doctest::Approx(1.5));
    CHECK(cgroup_limits(tree.root).memory_bytes == 1073741824);
}

TEST_CASE("version 2 works in a container whose own group is the root") {
    Tree tree;
    tree.write("/proc/self/cgroup", "0::/\n");
    tree.write("/proc/self/mountinfo", v2_mount);
    tree.write("/sys/fs/cgroup/cpu.max", "200000 100000\n");
    tree.write("/sys/fs/cgroup/memory.max", "2147483648\n");
    CHECK(cgroup_limits(tree.root).cpu_cores == doctest::Approx(2));
    CHECK(cgroup_limits(tree.root).memory_bytes == 2147483648);
}

TEST_CASE("version 1 works with a mount inside the hierarchy") {
    Tree tree;
    tree.write("/proc/self/cgroup", "4:memory:/docker/abc\n2:cpu,cpuacct:/docker/abc/inner\n");
    tree.write("/proc/self/mountinfo",
               "32 31 0:29 /docker/abc /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n"
               "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
    tree.write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "300000");
    tree.write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000");
    tree.write("/sys/fs/cgroup/cpu,cpuacct/inner/cpu.cfs_quota_us", "-1");
    tree.write("/sys/fs/cgroup/cpu,cpuacct/inner/cpu.cfs_period_us", "100000");
    tree.write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "536870912");
    CHECK(cgroup_limits(tree.root).cpu_cores == doctest::Approx(3));
    CHECK(cgroup_limits(tree.root).memory_bytes == 536870912);
}

TEST_CASE("version 1's largest number means no limit") {
    Tree tree;
    tree.write("/proc/self/cgroup", "4:memory:/\n0::/\n");
    tree.write("/proc/self/mountinfo", "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
    tree.write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712");
    CHECK(cgroup_limits(tree.root).memory_bytes == 0);
}

TEST_CASE("damaged files mean no limit") {
    Tree tree;
    tree.write("/proc/self/cgroup", "::\n0\nx:y\n0::/a\n");
    tree.write("/proc/self/mountinfo", "short - cgroup2\n" + v2_mount + " - \n");
    tree.write("/sys/fs/cgroup/a/cpu.max", "what ever\n");
    tree.write("/sys/fs/cgroup/a/memory.max", "\n");
    CHECK(cgroup_limits(tree.root).cpu_cores == 0);
    CHECK(cgroup_limits(tree.root).memory_bytes == 0);
}
