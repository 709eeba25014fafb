// cpu/instruction_sets.cpp: CPUID and XGETBV on x86-64, the auxiliary vector on aarch64, nothing elsewhere.
#include "backends/cpu/instruction_sets.h"

#include "base/text.h"

#if defined(__x86_64__)
#include <cpuid.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace xpurt {

#if defined(__x86_64__)

CpuidWords cpuid(unsigned leaf, unsigned subleaf) {
    CpuidWords words;
    if (__get_cpuid_count(leaf, subleaf, &words.eax, &words.ebx, &words.ecx, &words.edx) == 0) return {};
    return words;
}

namespace {

enum Register { eax, ebx, ecx, edx };

// Register states (bits of XCR0) that the operating system must save for a flag to be usable. Intel SDM
// volume 1, 13.3.
constexpr uint64_t none = 0, ymm = 0x6, zmm = 0xe6, tile = 0x60000;

struct Flag {
    const char* name;
    unsigned leaf, subleaf;
    Register where;
    int bit;
    uint64_t state;
    int level;  // the first level that requires the flag (see level_names); 0 = none
};

// Levels 2 to 4 are those of the System V psABI ("micro-architecture levels"). Levels 5 to 7 are those of
// codegen/cpp/isa.py beyond AVX-512.
constexpr struct {
    std::string_view name;
    int level;
} level_names[] = {{"x86-64-v2", 2},      {"x86-64-v3", 3},      {"x86-64-v4", 4},
                   {"x86-64-v4+vnni", 5}, {"x86-64-v4+bf16", 6}, {"x86-64-v4+amx", 7}};

// Bits: Intel SDM volume 2, CPUID; AMD APM volume 3, appendix E.
constexpr Flag flag_table[] = {
    {"cx16", 1, 0, ecx, 13, none, 2},
    {"lahf", 0x80000001, 0, ecx, 0, none, 2},
    {"popcnt", 1, 0, ecx, 23, none, 2},
    {"sse3", 1, 0, ecx, 0, none, 2},
    {"ssse3", 1, 0, ecx, 9, none, 2},
    {"sse4.1", 1, 0, ecx, 19, none, 2},
    {"sse4.2", 1, 0, ecx, 20, none, 2},
    {"avx", 1, 0, ecx, 28, ymm, 3},
    {"avx2", 7, 0, ebx, 5, ymm, 3},
    {"bmi1", 7, 0, ebx, 3, none, 3},
    {"bmi2", 7, 0, ebx, 8, none, 3},
    {"f16c", 1, 0, ecx, 29, ymm, 3},
    {"fma", 1, 0, ecx, 12, ymm, 3},
    {"lzcnt", 0x80000001, 0, ecx, 5, none, 3},
    {"movbe", 1, 0, ecx, 22, none, 3},
    {"avx512f", 7, 0, ebx, 16, zmm, 4},
    {"avx512bw", 7, 0, ebx, 30, zmm, 4},
    {"avx512cd", 7, 0, ebx, 28, zmm, 4},
    {"avx512dq", 7, 0, ebx, 17, zmm, 4},
    {"avx512vl", 7, 0, ebx, 31, zmm, 4},
    {"avx-vnni", 7, 1, eax, 4, ymm, 0},
    {"avx512vnni", 7, 0, ecx, 11, zmm, 5},
    {"avx512bf16", 7, 1, eax, 5, zmm, 6},
    {"avx512fp16", 7, 0, edx, 23, zmm, 0},
    // A process must also request permission for the tile data (arch_prctl ARCH_REQ_XCOMP_PERM).
    {"amx-tile", 7, 0, edx, 24, tile, 7},
    {"amx-bf16", 7, 0, edx, 22, tile, 7},
    {"amx-int8", 7, 0, edx, 25, tile, 7},
    {"amx-fp16", 7, 1, eax, 21, tile, 0},
};

uint64_t enabled_states() {
    constexpr unsigned osxsave = 1u << 27;
    if ((cpuid(1).ecx & osxsave) == 0) return 0;
    uint32_t low = 0, high = 0;
    // Inline assembly: the intrinsic would require -mxsave.
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (static_cast<uint64_t>(high) << 32) | low;
}

bool present(const Flag& flag, uint64_t states) {
    const CpuidWords words = cpuid(flag.leaf, flag.subleaf);
    const unsigned by_register[] = {words.eax, words.ebx, words.ecx, words.edx};
    return (by_register[flag.where] >> flag.bit & 1u) != 0 && (states & flag.state) == flag.state;
}

// XPU_TEST_LEVEL lowers the detected level, so that tests can run as on an older processor. An unknown level
// hides every flag.
bool masked(const Flag& flag) {
    const char* const name = std::getenv("XPU_TEST_LEVEL");
    if (name == nullptr || *name == '\0') return false;
    int highest = 0;
    for (const auto& entry : level_names)
        if (entry.name == name) highest = entry.level;
    return flag.level == 0 || flag.level > highest;
}

std::string text_of(std::initializer_list<unsigned> words) {
    std::string text;
    for (const unsigned word : words) {
        char bytes[4];
        std::memcpy(bytes, &word, sizeof bytes);
        text.append(bytes, sizeof bytes);
    }
    return std::string(trim(text.c_str()));  // the brand string ends at its first zero byte
}

std::string brand() {
    if (cpuid(0x80000000).eax < 0x80000004) return "";
    std::string text;
    const CpuidWords a = cpuid(0x80000002), b = cpuid(0x80000003), c = cpuid(0x80000004);
    return text_of({a.eax, a.ebx, a.ecx, a.edx, b.eax, b.ebx, b.ecx, b.edx, c.eax, c.ebx, c.ecx, c.edx});
}

struct Detected {
    std::string vendor, model;
    std::vector<const Flag*> flags;
};

Detected detect() {
    Detected result;
    const CpuidWords first = cpuid(0);
    result.vendor = text_of({first.ebx, first.edx, first.ecx});
    result.model = brand();
    const uint64_t states = enabled_states();
    for (const Flag& flag : flag_table)
        if (present(flag, states)) result.flags.push_back(&flag);
    return result;
}

}  // namespace

InstructionSets instruction_sets() {
    static const Detected detected = detect();  // once: a virtual machine leaves the guest for each CPUID
    InstructionSets sets;
    sets.vendor = detected.vendor;
    sets.model = detected.model;
    int level = 4;  // lowered by each missing flag that a level requires
    auto next = detected.flags.begin();
    for (const Flag& flag : flag_table) {
        const bool here = next != detected.flags.end() && *next == &flag;
        next += here;
        if (here && !masked(flag))
            sets.flags.emplace_back(flag.name);
        else if (flag.level != 0 && flag.level <= level)
            level = flag.level - 1;
    }
    sets.level = "x86-64-v" + std::to_string(level);
    return sets;
}

#elif defined(__aarch64__) && defined(__linux__)

namespace {

struct Flag {
    const char* name;
    unsigned long type;
    int bit;
};

// Linux, arch/arm64/include/uapi/asm/hwcap.h: bits are never reused.
constexpr Flag flag_table[] = {
    {"asimd", AT_HWCAP, 1}, {"asimdhp", AT_HWCAP, 10}, {"asimddp", AT_HWCAP, 20}, {"sve", AT_HWCAP, 22},
    {"sve2", AT_HWCAP2, 1}, {"i8mm", AT_HWCAP2, 13},   {"bf16", AT_HWCAP2, 14},   {"sme", AT_HWCAP2, 23},
};

// Arm's implementer codes (MIDR_EL1) of server and workstation processors.
constexpr struct {
    const char *code, *name;
} implementers[] = {{"0x41", "Arm"},      {"0x46", "Fujitsu"}, {"0x48", "HiSilicon"}, {"0x4e", "NVIDIA"},
                    {"0x51", "Qualcomm"}, {"0x61", "Apple"},   {"0x6d", "Microsoft"}, {"0xc0", "Ampere"}};

}  // namespace

InstructionSets instruction_sets() {
    InstructionSets sets;
    const std::string cpuinfo = read_text("/proc/cpuinfo");
    const std::string code = field(cpuinfo, "CPU implementer");
    sets.vendor = code;
    for (const auto& entry : implementers)
        if (code == entry.code) sets.vendor = entry.name;
    const std::string part = field(cpuinfo, "CPU part");
    if (!part.empty()) sets.model = sets.vendor + " part " + part;
    for (const Flag& flag : flag_table)
        if ((getauxval(flag.type) >> flag.bit & 1ul) != 0) sets.flags.emplace_back(flag.name);
    return sets;
}

#else

InstructionSets instruction_sets() { return {}; }

#endif

}  // namespace xpurt
