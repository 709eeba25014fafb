// cuda/stream.cpp: the registry of vendors' libraries on CUDA.
#include "backends/cuda/stream.h"

#include <map>
#include <mutex>

#include "backends/cuda/libraries/vendor_library.h"

namespace xpurt::cuda {
namespace {

struct StreamLibraryRegistry {
    std::mutex mutex;
    std::map<std::string, std::unique_ptr<StreamLibrary>> libraries;
};

StreamLibraryRegistry& registry() {
    static auto* const instance = [] {  // never freed: prepared kernels may outlive static objects
        auto* const libraries = new StreamLibraryRegistry;
        libraries->libraries.emplace("cublas", make_cublas());
        libraries->libraries.emplace("cublasLt", make_cublaslt());
        libraries->libraries.emplace("cudnn", make_cudnn());
        libraries->libraries.emplace("nccl", make_nccl());
        libraries->libraries.emplace("python", make_host_stream_library());
        return libraries;
    }();
    return *instance;
}

}  // namespace

StreamLibrary* find_stream_library(const std::string& name) {
    const std::lock_guard<std::mutex> lock(registry().mutex);
    const auto entry = registry().libraries.find(name);
    return entry == registry().libraries.end() ? nullptr : entry->second.get();
}

void register_stream_library(const std::string& name, std::unique_ptr<StreamLibrary> library) {
    const std::lock_guard<std::mutex> lock(registry().mutex);
    registry().libraries.emplace(name, std::move(library));
}

}  // namespace xpurt::cuda
