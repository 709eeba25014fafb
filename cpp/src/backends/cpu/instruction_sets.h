// cpu/instruction_sets.h: the instruction sets that the processor reports.
#pragma once

#include <string>
#include <vector>

namespace xpurt {

struct InstructionSets {
    std::string vendor{};
    std::string model{};
    std::string level{};
    std::vector<std::string> flags{};
};

InstructionSets instruction_sets();

#if defined(__x86_64__)
struct CpuidWords {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

// CPUID at a leaf and subleaf; all zero beyond the highest leaf.
CpuidWords cpuid(unsigned leaf, unsigned subleaf = 0);
#endif

}  // namespace xpurt
