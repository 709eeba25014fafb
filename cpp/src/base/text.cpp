// base/text.cpp: reading the small text files of /proc and /sys.
#include "base/text.h"

#include <cstdlib>
#include <fstream>
#include <sstream>

namespace xpurt {

std::string read_text(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) return "";
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

std::string read_line(const std::string& path) { return std::string(trim(read_text(path))); }

std::string_view trim(std::string_view text) {
    constexpr std::string_view white = " \t\r\n";
    const size_t first = text.find_first_not_of(white);
    if (first == std::string_view::npos) return {};
    return text.substr(first, text.find_last_not_of(white) - first + 1);
}

std::vector<std::string> split(std::string_view text, char separator) {
    std::vector<std::string> parts;
    while (!text.empty()) {
        const size_t end = text.find(separator);
        parts.emplace_back(text.substr(0, end));
        if (end == std::string_view::npos) break;
        text.remove_prefix(end + 1);
    }
    return parts;
}

bool starts_with(std::string_view text, std::string_view prefix) {
    return text.substr(0, prefix.size()) == prefix;
}

std::vector<int> parse_cpu_list(std::string_view text) {
    std::vector<int> cpus;
    for (const std::string& part : split(trim(text), ',')) {
        char* end = nullptr;
        const long first = std::strtol(part.c_str(), &end, 10);
        if (end == part.c_str()) return {};
        const long last = *end == '-' ? std::strtol(end + 1, nullptr, 10) : first;
        for (long cpu = first; cpu <= last; ++cpu) cpus.push_back(static_cast<int>(cpu));
    }
    return cpus;
}

std::string field(std::string_view text, std::string_view key) {
    for (const std::string& line : split(text, '\n')) {
        const size_t colon = line.find(':');
        if (colon == std::string::npos) continue;
        if (trim(std::string_view(line).substr(0, colon)) == key)
            return std::string(trim(std::string_view(line).substr(colon + 1)));
    }
    return "";
}

}  // namespace xpurt
