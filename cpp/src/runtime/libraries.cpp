// runtime/libraries.cpp: the registry of kernel libraries.
#include <map>
#include <mutex>

#include "backends/cpu/onednn.h"
#include "runtime/collectives.h"
#include "xpurt/host_kernel.h"
#include "xpurt/kernel.h"

namespace xpurt {
namespace {

struct KernelLibraryRegistry {
    std::mutex mutex;
    std::map<std::string, std::unique_ptr<KernelLibrary>> libraries;
};

KernelLibraryRegistry& registry() {
    static auto* const instance = [] {  // never freed: prepared kernels may outlive every static object
        auto* const libraries = new KernelLibraryRegistry;
        libraries->libraries.emplace("collectives", make_collectives());
        libraries->libraries.emplace("onednn", make_onednn());
        libraries->libraries.emplace("python", make_host_library());
        return libraries;
    }();
    return *instance;
}

}  // namespace

KernelLibrary* find_kernel_library(const std::string& name) {
    const std::lock_guard<std::mutex> lock(registry().mutex);
    const auto entry = registry().libraries.find(name);
    return entry == registry().libraries.end() ? nullptr : entry->second.get();
}

void register_kernel_library(const std::string& name, std::unique_ptr<KernelLibrary> library) {
    const std::lock_guard<std::mutex> lock(registry().mutex);
    registry().libraries.emplace(name, std::move(library));
}

}  // namespace xpurt
