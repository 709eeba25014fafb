// cpu/onednn.cpp: oneDNN as a kernel library, opened and looked up on first use.
#include "backends/cpu/onednn.h"

#include <mutex>
#include <utility>

#include "backends/cpu/onednn_kernel.h"

namespace xpurt {
namespace {

LibrarySpec library_spec() {
    return {
        "onednn",
        "oneDNN",
        "XPU_LIBONEDNN",
        {"libdnnl.so.3"},
        {
#define XPURT_ROW(name, ...) {#name, 0, Need::required},
            XPURT_DNNL_FUNCTIONS(XPURT_ROW)
#undef XPURT_ROW
        },
        "pip install 'xpuruntime[onednn]'",
    };
}

class OneDnnLibrary final : public KernelLibrary {
  public:
    std::string version() const override {
        const dnnl::OneDnnApi* const f = api(nullptr);
        if (f == nullptr) return "";
        const dnnl::OneDnnVersion& v = *f->dnnl_version();
        return std::to_string(v.major) + "." + std::to_string(v.minor) + "." + std::to_string(v.patch);
    }

    Result<std::unique_ptr<LibraryKernel>> prepare(const KernelCall& call, int threads) override {
        Status reason;
        const dnnl::OneDnnApi* const f = api(&reason);
        if (f == nullptr) return reason;
        return make_onednn_kernel(*f, call, threads);
    }

  private:
    // The function table, filled by the first call that finds the library.
    static const dnnl::OneDnnApi* api(Status* reason) {
        static std::mutex mutex;
        static dnnl::OneDnnApi* loaded = nullptr;  // never freed: kernels may outlive every static object
        const std::lock_guard<std::mutex> lock(mutex);
        if (loaded != nullptr) return loaded;
        Library& library = onednn_library();
        Status status = library.open({});
        if (status.ok()) {
            auto* const api = new dnnl::OneDnnApi;
            size_t index = 0;
#define XPURT_FILL(name, ...) api->name = reinterpret_cast<decltype(api->name)>(library.address(index++));
            XPURT_DNNL_FUNCTIONS(XPURT_FILL)
#undef XPURT_FILL
            if (api->dnnl_engine_create(&api->engine, dnnl::cpu, 0) == dnnl::success) {
                loaded = api;
                return loaded;
            }
            delete api;
            status = {Code::call_failed, "oneDNN could not create its engine", ""};
        }
        if (reason != nullptr) *reason = status;
        return nullptr;
    }
};

}  // namespace

Library& onednn_library() {
    static Library& library = *new Library(library_spec());
    return library;
}

std::unique_ptr<KernelLibrary> make_onednn() { return std::make_unique<OneDnnLibrary>(); }

}  // namespace xpurt
