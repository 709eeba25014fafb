// CPU facts, compared with the kernel's facts about the same processor.
#include "doctest/doctest.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <map>

#include "backends/cpu/topology.h"
#include "base/text.h"
#include "xpurt/device.h"

using namespace xpurt;

TEST_CASE("the core counts are consistent") {
    const CpuFacts facts = cpu_facts();
    CHECK(facts.architecture != "");
    CHECK(facts.logical_cores == sysconf(_SC_NPROCESSORS_ONLN));
    CHECK(facts.physical_cores >= 1);
    CHECK(facts.physical_cores <= facts.logical_cores);
    CHECK(facts.affinity_cores >= 1);
    CHECK(facts.usable_cores >= 1);
    CHECK(facts.usable_cores <= facts.affinity_cores);
    CHECK(facts.memory_bytes > int64_t{64} << 20);
}

TEST_CASE("the memory size is the kernel's MemTotal") {
    const std::string total = field(read_text("/proc/meminfo"), "MemTotal");
    REQUIRE(total != "");
    CHECK(static_cast<double>(cpu_facts().memory_bytes) ==
          doctest::Approx(std::atof(total.c_str()) * 1024).epsilon(0.01));
}

TEST_CASE("a smaller affinity mask reduces the usable cores") {
    cpu_set_t before;
    REQUIRE(sched_getaffinity(0, sizeof before, &before) == 0);
    int first = 0;
    while (!CPU_ISSET(first, &before)) ++first;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    REQUIRE(sched_setaffinity(0, sizeof one, &one) == 0);
    const CpuFacts facts = cpu_facts();
    sched_setaffinity(0, sizeof before, &before);
    CHECK(facts.affinity_cores == 1);
    CHECK(facts.usable_cores == 1);
    CHECK(facts.logical_cores == sysconf(_SC_NPROCESSORS_ONLN));
}

TEST_CASE("facts that are read once are those of the first call") {
    const CpuFacts first = cpu_facts(), second = cpu_facts();
    CHECK(second.vendor == first.vendor);
    CHECK(second.model == first.model);
    CHECK(second.flags == first.flags);
    CHECK(second.physical_cores == first.physical_cores);
    REQUIRE(second.caches.size() == first.caches.size());
    for (size_t i = 0; i < first.caches.size(); ++i) CHECK(second.caches[i].bytes == first.caches[i].bytes);
}

TEST_CASE("cache sizes are plausible") {
    for (const Cache& cache : cpu_facts().caches) {
        CAPTURE(cache.level);
        CHECK(cache.level >= 1);
        CHECK(cache.bytes >= 4096);
        CHECK(cache.line_bytes >= 16);
        CHECK((cache.type == "data" || cache.type == "instruction" || cache.type == "unified"));
    }
}

TEST_CASE("CPUID reports the same caches as sysfs") {
    const std::vector<Cache> fallback = cpuid_caches(), first = caches();
    if (fallback.empty()) return;  // this processor has no CPUID
    REQUIRE(fallback.size() == first.size());
    for (size_t i = 0; i < first.size(); ++i) {
        CHECK(fallback[i].level == first[i].level);
        CHECK(fallback[i].type == first[i].type);
        CHECK(fallback[i].bytes == first[i].bytes);
        CHECK(fallback[i].line_bytes == first[i].line_bytes);
    }
}

TEST_CASE("cpuinfo's cores are counted by socket and core") {
    const auto processor = [](int socket, int core) {
        return "processor\t: 0\nphysical id\t: " + std::to_string(socket) +
               "\ncore id\t\t: " + std::to_string(core) + "\n";
    };
    CHECK(cores_in_cpuinfo(processor(0, 0) + "\n" + processor(0, 0) + "\n" + processor(1, 0)) == 2);
    CHECK(cores_in_cpuinfo("processor\t: 0\nBogoMIPS\t: 50.0\n\n") == 0);
    const int here = cores_in_cpuinfo(read_text("/proc/cpuinfo"));
    if (here > 0) CHECK(here == physical_cores());
}

TEST_CASE("the kernel's CPU lists are parsed") {
    CHECK(parse_cpu_list("0-3,8") == std::vector<int>{0, 1, 2, 3, 8});
    CHECK(parse_cpu_list("5\n") == std::vector<int>{5});
    CHECK(parse_cpu_list("").empty());
    CHECK(parse_cpu_list("nonsense").empty());
}

#if defined(__x86_64__)
TEST_CASE("flags, vendor and model agree with /proc/cpuinfo") {
    // our name -> the kernel's name, where they differ
    const std::map<std::string, std::string> kernel_names = {
        {"lahf", "lahf_lm"},
        {"sse3", "pni"},
        {"sse4.1", "sse4_1"},
        {"sse4.2", "sse4_2"},
        {"lzcnt", "abm"},
        {"avx-vnni", "avx_vnni"},
        {"avx512vnni", "avx512_vnni"},
        {"avx512bf16", "avx512_bf16"},
        {"avx512fp16", "avx512_fp16"},
        {"amx-tile", "amx_tile"},
        {"amx-bf16", "amx_bf16"},
        {"amx-int8", "amx_int8"},
        {"amx-fp16", "amx_fp16"},
    };
    const std::vector<std::string> all = {
        "cx16",       "lahf",       "popcnt",     "sse3",     "ssse3",    "sse4.1",   "sse4.2",
        "avx",        "avx2",       "bmi1",       "bmi2",     "f16c",     "fma",      "lzcnt",
        "movbe",      "avx512f",    "avx512bw",   "avx512cd", "avx512dq", "avx512vl", "avx-vnni",
        "avx512vnni", "avx512bf16", "avx512fp16", "amx-tile", "amx-bf16", "amx-int8"};
    const std::string cpuinfo = read_text("/proc/cpuinfo");
    const CpuFacts facts = cpu_facts();
    CHECK(facts.vendor == field(cpuinfo, "vendor_id"));
    // A sandbox with its own cpuinfo omits the model and lists fewer flags; those listed must agree.
    const bool sandbox = field(cpuinfo, "model name") == "unknown";
    if (!sandbox) CHECK(facts.model == field(cpuinfo, "model name"));
    const std::vector<std::string> kernel = split(field(cpuinfo, "flags"), ' ');
    REQUIRE(kernel.size() > 10);
    for (const std::string& flag : all) {
        const auto renamed = kernel_names.find(flag);
        const std::string& word = renamed == kernel_names.end() ? flag : renamed->second;
        CAPTURE(flag);
        const bool ours = std::count(facts.flags.begin(), facts.flags.end(), flag) == 1;
        const bool kernels = std::count(kernel.begin(), kernel.end(), word) == 1;
        CHECK((sandbox ? ours >= kernels : ours == kernels));
    }
}

TEST_CASE("the level agrees with the compiler's") {
    __builtin_cpu_init();
    const std::string level = cpu_facts().level;
    const int expected =
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512cd")
            ? 4
        : __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2")
            ? 3
        : __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("popcnt") ? 2
                                                                               : 1;
    CHECK(level == "x86-64-v" + std::to_string(expected));
}

TEST_CASE("XPU_TEST_LEVEL lowers the level and hides the flags above it") {
    const CpuFacts whole = cpu_facts();
    if (whole.level == "x86-64-v1") return;
    const auto have = [](const CpuFacts& facts, const char* flag) {
        return std::count(facts.flags.begin(), facts.flags.end(), flag) == 1;
    };
    REQUIRE(setenv("XPU_TEST_LEVEL", "x86-64-v2", 1) == 0);
    const CpuFacts lowered = cpu_facts();
    REQUIRE(setenv("XPU_TEST_LEVEL", "x86-64-v4+amx", 1) == 0);
    const CpuFacts highest = cpu_facts();
    REQUIRE(setenv("XPU_TEST_LEVEL", "no such level", 1) == 0);
    const CpuFacts none = cpu_facts();
    unsetenv("XPU_TEST_LEVEL");
    CHECK(lowered.level == "x86-64-v2");
    CHECK(have(lowered, "sse4.2"));
    CHECK(!have(lowered, "avx"));
    CHECK(highest.level == whole.level);
    CHECK(have(highest, "avx2") == have(whole, "avx2"));
    CHECK(have(highest, "amx-bf16") == have(whole, "amx-bf16"));
    CHECK(none.flags.empty());
    CHECK(cpu_facts().flags == whole.flags);
}
#endif
