// base/elf.cpp: comparison of the ranges that an ELF object names with its size.
#include "base/elf.h"

#include <elf.h>

#include <cstdint>
#include <cstring>

namespace xpurt {
namespace {

bool inside(uint64_t offset, uint64_t bytes, size_t size) { return offset <= size && bytes <= size - offset; }

// Entry `index` of a table, which need not be aligned.
template <class Entry>
Entry entry(const char* bytes, uint64_t table, uint64_t index) {
    Entry value;
    std::memcpy(&value, bytes + table + index * sizeof value, sizeof value);
    return value;
}

}  // namespace

std::string elf_damage(const void* data, size_t size) {
    const auto* const bytes = static_cast<const char*>(data);
    Elf64_Ehdr header;
    if (size < sizeof header) return "the header is truncated";
    std::memcpy(&header, bytes, sizeof header);
    if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64)
        return "it is not a 64-bit ELF object";
    if (header.e_phnum > 0) {
        if (header.e_phentsize != sizeof(Elf64_Phdr) ||
            !inside(header.e_phoff, uint64_t{header.e_phnum} * sizeof(Elf64_Phdr), size))
            return "the program headers extend past its end";
        for (uint64_t i = 0; i < header.e_phnum; ++i) {
            const auto segment = entry<Elf64_Phdr>(bytes, header.e_phoff, i);
            if (!inside(segment.p_offset, segment.p_filesz, size))
                return "segment " + std::to_string(i) + " extends past its end";
        }
    }
    if (header.e_shoff == 0 || header.e_shnum == 0) return "";
    if (header.e_shentsize != sizeof(Elf64_Shdr) ||
        !inside(header.e_shoff, uint64_t{header.e_shnum} * sizeof(Elf64_Shdr), size))
        return "the section headers extend past its end";
    for (uint64_t i = 0; i < header.e_shnum; ++i) {
        const auto section = entry<Elf64_Shdr>(bytes, header.e_shoff, i);
        if (section.sh_type != SHT_NOBITS && section.sh_type != SHT_NULL &&
            !inside(section.sh_offset, section.sh_size, size))
            return "section " + std::to_string(i) + " extends past its end";
    }
    return "";
}

}  // namespace xpurt
