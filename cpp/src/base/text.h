// base/text.h: reading the small text files of /proc and /sys.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace xpurt {

// The whole file; "" if it cannot be read. In /proc and /sys a missing file means "absent".
std::string read_text(const std::string& path);

// The file without surrounding white space.
std::string read_line(const std::string& path);

std::string_view trim(std::string_view text);
std::vector<std::string> split(std::string_view text, char separator);
bool starts_with(std::string_view text, std::string_view prefix);

// Parse the kernel's notation for a set of CPUs: "0-3,8" -> {0, 1, 2, 3, 8}. Anything else gives {}.
std::vector<int> parse_cpu_list(std::string_view text);

// The value of the first line "key : value", as in /proc/cpuinfo; "" if there is none.
std::string field(std::string_view text, std::string_view key);

}  // namespace xpurt
