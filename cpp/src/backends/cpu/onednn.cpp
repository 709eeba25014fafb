// cpu/onednn.cpp: oneDNN as a library of kernels: found and opened once, its table filled at the first use.
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

class OneDnn final : public KernelLibrary {
  public:
    std::string version() const override {
        const dnnl::Functions* const f = functions(nullptr);
        if (f == nullptr) return "";
        const dnnl::Version& v = *f->dnnl_version();
        return std::to_string(v.major) + "." + std::to_string(v.minor) + "." + std::to_string(v.patch);
    }

    Result<std::unique_ptr<LibraryKernel>> prepare(const KernelCall& call, int threads) override {
        Status why;
        const dnnl::Functions* const f = functions(&why);
        if (f == nullptr) return why;
        return make_onednn_kernel(*f, call, threads);
    }

  private:
    // The table, filled at the first use that finds the library.
    static const dnnl::Functions* functions(Status* why) {
        static std::mutex mutex;
        static dnnl::Functions* filled = nullptr;  // never freed: kernels may outlive every static object
        const std::lock_guard<std::mutex> lock(mutex);
        if (filled != nullptr) return filled;
        Library& library = onednn_library();
        Status status = library.open({});
        if (status.ok()) {
            auto* const made = new dnnl::Functions;
            size_t index = 0;
#define XPURT_FILL(name, ...) made->name = reinterpret_cast<decltype(made->name)>(library.address(index++));
            XPURT_DNNL_FUNCTIONS(XPURT_FILL)
#undef XPURT_FILL
            if (made->dnnl_engine_create(&made->engine, dnnl::cpu, 0) == dnnl::success) {
                filled = made;
                return filled;
            }
            delete made;
            status = {Code::call_failed, "oneDNN could not make its engine", ""};
        }
        if (why != nullptr) *why = status;
        return nullptr;
    }
};

}  // namespace

Library& onednn_library() {
    static Library& library = *new Library(library_spec());
    return library;
}

std::unique_ptr<KernelLibrary> make_onednn() { return std::make_unique<OneDnn>(); }

}  // namespace xpurt
