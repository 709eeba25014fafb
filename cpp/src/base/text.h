// base/text.h: reading the small text files of /proc and /sys.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace xpurt {

// The whole file, or "" when it cannot be read. /proc and /sys say "absent" by not having the file.
std::string read_text(const std::string& path);

// The file without surrounding white space.
std::string read_line(const std::string& path);

std::string_view trim(std::string_view text);
std::vector<std::string> split(std::string_view text, char separator);
bool starts_with(std::string_view text, std::string_view prefix);

// "0-3,8" -> {0, 1, 2, 3, 8}, the kernel's way to write a set of CPUs. Anything else -> {}.
std::vector<int> parse_cpu_list(std::string_view text);

// The value behind "key : value" in /proc/cpuinfo's style, first match, or "".
std::string field(std::string_view text, std::string_view key);

}  // namespace xpurt
