// base/elf.h: bounds checks of ELF objects, which loaders do not make.
#pragma once

#include <cstddef>
#include <string>

namespace xpurt {

// Return why the bytes are not a complete 64-bit ELF object: the header, a table, a segment or a section
// extends past their end. Empty for a complete object.
std::string elf_damage(const void* bytes, size_t size);

}  // namespace xpurt
