// base/elf.h: whether object code is as long as it says, which loaders believe.
#pragma once

#include <cstddef>
#include <string>

namespace xpurt {

// Why the bytes are no whole 64-bit ELF object: a header, a table, a segment or a section reaches behind
// their end. Empty for a whole one.
std::string elf_damage(const void* bytes, size_t size);

}  // namespace xpurt
