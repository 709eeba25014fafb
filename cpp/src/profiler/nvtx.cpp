// profiler/nvtx.cpp: NVIDIA Tools Extension, if its library is installed.
#include "xpurt/profiler.h"

namespace xpurt {
namespace {

enum Function { push_a, pop, mark_a };

constexpr int no_listener = -2;  // NVTX_NO_PUSH_POP_TRACKING

// Set by nvtx_open only; the library is never unloaded.
std::atomic<const Library*> active{nullptr};
std::atomic<bool> each_call{false};

template <class F>
F* function(const Library* library, Function which) noexcept {
    return reinterpret_cast<F*>(library->address(which));
}

}  // namespace

Library& nvtx_library() {
    // The first two names are NVTX 3 (CUDA 12.9 and 13), the third the older toolkits' library. The C
    // functions are the same.
    static Library& library = *new Library({
        "nvtx",
        "NVIDIA Tools Extension (NVTX)",
        "XPU_LIBNVTX",
        {"libnvtx3interop.so.1", "libnvtx3interop.so", "libnvToolsExt.so.1"},
        {{"nvtxRangePushA", 0, Need::required},
         {"nvtxRangePop", 0, Need::required},
         {"nvtxMarkA", 0, Need::required}},
        "pip install nvidia-nvtx",
    });
    return library;
}

Status nvtx_open(const Search& search) {
    Status status = nvtx_library().open(search);
    if (status.ok()) active.store(&nvtx_library(), std::memory_order_release);
    return status;
}

bool nvtx_active() noexcept { return active.load(std::memory_order_acquire) != nullptr; }

void nvtx_each_call(bool on) noexcept { each_call.store(on, std::memory_order_relaxed); }

bool nvtx_calls() noexcept { return nvtx_active() && each_call.load(std::memory_order_relaxed); }

int nvtx_push(const char* name) noexcept {
    const Library* library = active.load(std::memory_order_acquire);
    return library != nullptr ? function<int(const char*)>(library, push_a)(name) : no_listener;
}

int nvtx_pop() noexcept {
    const Library* library = active.load(std::memory_order_acquire);
    return library != nullptr ? function<int()>(library, pop)() : no_listener;
}

void nvtx_mark(const char* name) noexcept {
    const Library* library = active.load(std::memory_order_acquire);
    if (library != nullptr) function<void(const char*)>(library, mark_a)(name);
}

}  // namespace xpurt
