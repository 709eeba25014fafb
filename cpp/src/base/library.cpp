// base/library.cpp: finding, loading and describing a shared library.
#include "xpurt/library.h"

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/log.h"

namespace xpurt {
namespace {

std::string version_text(int since) {
    return std::to_string(since / 1000) + "." + std::to_string(since % 1000 / 10);
}

// "cuFoo (since 11.4)"
std::string symbol_text(const Symbol& symbol) {
    std::string text = symbol.name;
    if (symbol.since > 0) text += " (since " + version_text(symbol.since) + ")";
    return text;
}

// The path of the mapped file. The loader's own name for a handle may be a link.
std::string mapped_path(void* handle) {
    link_map* map = nullptr;
    if (dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr) return "";
    char resolved[PATH_MAX];
    return realpath(map->l_name, resolved) != nullptr ? resolved : map->l_name;
}

std::string file_version(const std::string& path) {
    const size_t at = path.rfind(".so.");
    return at == std::string::npos ? "" : path.substr(at + 4);
}

std::string joined(const std::vector<std::string>& parts, const char* separator) {
    std::string text;
    for (const std::string& part : parts) text += (text.empty() ? "" : separator) + part;
    return text;
}

}  // namespace

Library::Library(LibrarySpec spec) : spec_(std::move(spec)) {
    info_.status = {Code::not_loaded, std::string(spec_.title) + " has not been loaded yet", ""};
}

Status Library::load(const std::string& candidate, bool is_path) {
    // Check first: a missing file must not start the loader's search for its name.
    if (is_path && access(candidate.c_str(), F_OK) != 0)
        return {Code::not_found, candidate + ": " + std::strerror(errno), ""};
    void* handle = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
        const char* text = dlerror();
        const std::string error = text != nullptr ? text : candidate + ": the loader gave no reason";
        // If a dependency is missing, the loader reports ENOENT as well, but the message then starts with the
        // dependency's name.
        const bool absent = !is_path && error.find(std::strerror(ENOENT)) != std::string::npos &&
                            error.compare(0, candidate.size(), candidate) == 0;
        return {absent ? Code::not_found : Code::unreadable, error, ""};
    }
    std::vector<void*> addresses;
    std::vector<std::string> lacking, absent;
    for (const Symbol& symbol : spec_.symbols) {
        addresses.push_back(dlsym(handle, symbol.name));
        if (addresses.back() != nullptr) continue;
        (symbol.need == Need::required ? lacking : absent).push_back(symbol_text(symbol));
    }
    const std::string path = mapped_path(handle);
    if (!lacking.empty()) {
        if (dlclose(handle) != 0) log_failure({Code::call_failed, std::string("dlclose: ") + dlerror(), ""});
        return {Code::symbol_missing, path + " has no " + joined(lacking, ", "), ""};
    }
    addresses_ = std::move(addresses);
    info_ = {{}, path, file_version(path), std::move(absent)};
    return {};
}

Status Library::open(const Search& search) {
    if (loaded()) return {};
    const std::lock_guard<std::mutex> lock(mutex_);
    if (loaded()) return {};

    struct Candidate {
        std::string name;
        bool is_path;
    };
    std::vector<Candidate> candidates;
    if (!search.override_path.empty()) {
        // A path that the user names is used or is an error: no other file is tried.
        candidates.push_back({search.override_path, true});
    } else {
        for (const char* file : spec_.files) candidates.push_back({file, false});
        for (const std::string& folder : search.folders)
            for (const char* file : spec_.files) candidates.push_back({folder + "/" + file, true});
    }

    // The most informative failure determines the code: missing symbol, then unreadable, then not found.
    Code worst = Code::not_found;
    std::vector<std::string> reasons, names;
    for (const Candidate& candidate : candidates) {
        const Status status = load(candidate.name, candidate.is_path);
        if (status.ok()) {
            loaded_.store(true, std::memory_order_release);
            return {};
        }
        names.push_back(candidate.name);
        if (status.code == Code::not_found) continue;
        reasons.push_back(status.message);
        if (worst != Code::symbol_missing) worst = status.code;
    }

    std::string message = std::string(spec_.title) + ": ";
    message +=
        worst == Code::not_found ? "no file found; tried " + joined(names, ", ") : joined(reasons, "; ");
    std::string advice;
    if (!search.override_path.empty())
        advice =
            std::string(spec_.variable) + " names this file; correct it, or unset it to search as usual.";
    else if (worst == Code::symbol_missing)
        advice = std::string("Update it: ") + spec_.advice;
    else
        advice = std::string(spec_.advice) + " Or set " + spec_.variable + " to the path of the library.";
    info_.status = {worst, message, advice};
    return info_.status;
}

void* Library::address(size_t index) const noexcept {
    return loaded() && index < addresses_.size() ? addresses_[index] : nullptr;
}

LibraryInfo Library::info() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return info_;
}

Status Library::absent(size_t index) const {
    const Symbol& symbol = spec_.symbols.at(index);
    return {Code::symbol_missing, info().path + " has no " + symbol_text(symbol),
            std::string("Update the ") + spec_.title + "."};
}

std::vector<Library*> libraries() {
    return {&cuda_library(),     &nvtx_library(),  &onednn_library(), &nvrtc_library(), &cublas_library(),
            &cublaslt_library(), &cudnn_library(), &nccl_library(),   &cupti_library()};
}

}  // namespace xpurt
