// cpu/topology.cpp: cores and caches from sysfs, with /proc/cpuinfo and CPUID as fallbacks.
#include "backends/cpu/topology.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <set>
#include <string>

#include "backends/cpu/instruction_sets.h"
#include "base/text.h"

namespace xpurt {
namespace {

const std::string cpu_folder = "/sys/devices/system/cpu/";

// Parse "48K", "2M" or plain bytes.
int64_t parse_size(const std::string& text) {
    char* unit = nullptr;
    const int64_t value = std::strtoll(text.c_str(), &unit, 10);
    return *unit == 'K' ? value << 10 : *unit == 'M' ? value << 20 : value;
}

std::string lower(std::string text) {
    std::transform(text.begin(), text.end(), text.begin(),
                   [](unsigned char c) { return static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c); });
    return text;
}

std::vector<Cache> sysfs_caches() {
    std::vector<Cache> result;
    for (int index = 0;; ++index) {
        const std::string folder = cpu_folder + "cpu0/cache/index" + std::to_string(index) + "/";
        const std::string level = read_line(folder + "level");
        if (level.empty()) return result;
        result.push_back({std::atoi(level.c_str()), lower(read_line(folder + "type")),
                          parse_size(read_line(folder + "size")),
                          std::atoll(read_line(folder + "coherency_line_size").c_str()),
                          static_cast<int>(parse_cpu_list(read_line(folder + "shared_cpu_list")).size())});
    }
}

}  // namespace

#if defined(__x86_64__)
// Deterministic cache parameters: leaf 4 on Intel, leaf 0x8000001d on AMD, with the same layout.
std::vector<Cache> cpuid_caches() {
    const CpuidWords first = cpuid(4);
    const unsigned leaf = (first.eax & 0x1f) != 0 ? 4 : 0x8000001d;
    static const char* const types[] = {"", "data", "instruction", "unified"};
    std::vector<Cache> result;
    for (unsigned index = 0; index < 16; ++index) {
        const CpuidWords words = cpuid(leaf, index);
        const unsigned type = words.eax & 0x1f;
        if (type == 0 || type > 3) break;
        const int64_t ways = (words.ebx >> 22) + 1, partitions = (words.ebx >> 12 & 0x3ff) + 1;
        const int64_t line = (words.ebx & 0xfff) + 1, sets = static_cast<int64_t>(words.ecx) + 1;
        result.push_back(
            {static_cast<int>(words.eax >> 5 & 7), types[type], ways * partitions * line * sets, line, 0});
    }
    return result;
}
#else
std::vector<Cache> cpuid_caches() { return {}; }
#endif

int cores_in_cpuinfo(std::string_view cpuinfo) {
    std::set<std::string> cores;
    std::string paragraph;
    for (const std::string& line : split(std::string(cpuinfo) + "\n\n", '\n')) {
        if (!line.empty()) {
            paragraph += line + "\n";
            continue;
        }
        const std::string core = field(paragraph, "core id");
        if (!core.empty()) cores.insert(field(paragraph, "physical id") + ":" + core);
        paragraph.clear();
    }
    return static_cast<int>(cores.size());
}

int logical_cores() { return static_cast<int>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN))); }

namespace {

int count_physical_cores(const std::string& online) {
    std::set<std::string> cores;  // siblings of one core have equal lists, and two cores never do
    for (const int cpu : parse_cpu_list(online)) {
        const std::string topology = cpu_folder + "cpu" + std::to_string(cpu) + "/topology/";
        const std::string siblings = read_line(topology + "thread_siblings_list");
        if (!siblings.empty()) cores.insert(siblings);
    }
    if (!cores.empty()) return static_cast<int>(cores.size());
    const int named = cores_in_cpuinfo(read_text("/proc/cpuinfo"));
    return named > 0 ? named : logical_cores();
}

}  // namespace

// Counted again only when cores come or go, since it reads a file for each core.
int physical_cores() {
    static std::mutex guard;
    static std::string counted;
    static int count = 0;
    const std::string online = read_line(cpu_folder + "online");
    const std::lock_guard<std::mutex> lock(guard);
    if (count == 0 || online.empty() || online != counted) {
        count = count_physical_cores(online);
        counted = online;
    }
    return count;
}

int affinity_cores() {
#if defined(__linux__)
    // The kernel's mask may be larger than cpu_set_t's 1024 bits: grow until the call accepts it.
    for (size_t cpus = 1024; cpus <= (1u << 20); cpus *= 2) {
        cpu_set_t* mask = CPU_ALLOC(cpus);
        const size_t bytes = CPU_ALLOC_SIZE(cpus);
        const bool good = mask != nullptr && sched_getaffinity(0, bytes, mask) == 0;
        const int count = good ? CPU_COUNT_S(bytes, mask) : 0;
        CPU_FREE(mask);
        if (good) return count;
    }
#endif
    return logical_cores();
}

std::vector<Cache> caches() {
    static const std::vector<Cache> read_once = [] {
        std::vector<Cache> result = sysfs_caches();
        return result.empty() ? cpuid_caches() : result;
    }();
    return read_once;
}

}  // namespace xpurt
