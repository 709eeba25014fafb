// cuda/device.h: a CUDA device that is in use: its primary context, its memory, and what it can do.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "backends/cuda/driver.h"
#include "xpurt/memory.h"
#include "xpurt/status.h"

namespace xpurt::cuda {

// One per device and process, never closed: other libraries share its primary context.
class Device {
  public:
    // Opens the device at first use. `library` is cuda_library() but for tests.
    static Result<std::shared_ptr<Device>> open(int index, Library& library = cuda_library());

    const Driver driver;
    const int index;
    CUdevice handle = 0;
    CUcontext context = nullptr;
    int capability = 0;  // 10 * major + minor: 90
    int multiprocessors = 0;
    int max_shared_bytes = 0;  // of a block that asks for it
    std::string name{};

    // Stream-ordered memory: it may be used in the order of `stream` at once. Out of memory is a Status that
    // says how much was asked for, how much is free and how much the pool holds.
    Result<CUdeviceptr> allocate(size_t bytes, CUstream stream);
    void release(CUdeviceptr memory, CUstream stream) noexcept;
    MemoryStatistics statistics();
    int64_t trim();  // gives free memory of the pool back to the system; returns how many bytes

    // Page-locked host memory, through which copies run at the bus's speed. Null when there is none.
    void* allocate_pinned(size_t bytes) noexcept { return pinned_->allocate(bytes); }
    void release_pinned(void* block) noexcept { pinned_->release(block); }
    MemoryPool& pinned() noexcept { return *pinned_; }

    // What is queued on `later` from now on comes after all that `earlier` has. Streams of others may be
    // gone: then the device is waited for.
    void order_after(CUstream later, CUstream earlier) noexcept;

    // For work that belongs to nobody's stream: uploads of weights, blocks handed to callers.
    CUstream home = nullptr;

    Status check(CUresult result, const char* call) const { return status_of(driver, result, call); }
    // For destructors: a failure is logged, unless the process is ending or an earlier error has already lost
    // the context.
    void log_if_failed(CUresult result, const char* call) const noexcept {
        cuda::log_if_failed(driver, result, call);
    }

    Device(const Library& library, int at) : driver(library), index(at) {}

  private:
    Status start();
    uint64_t pool_attribute(PoolAttribute attribute) const noexcept;  // 0 after a failure, which is logged

    CUmemoryPool pool_ = nullptr;
    std::unique_ptr<MemoryPool> pinned_;
    std::mutex follow_mutex_;
    CUevent follow_event_ = nullptr;
    std::mutex counting_;
    int64_t allocations_ = 0, reuses_ = 0, reserved_ = 0;
};

// The device's context is the calling thread's as long as this lives; then what was current before is again.
class ScopedContext {
  public:
    explicit ScopedContext(const Device& device) noexcept;
    ~ScopedContext();
    ScopedContext(const ScopedContext&) = delete;
    ScopedContext& operator=(const ScopedContext&) = delete;

  private:
    const Device* pushed_on_ = nullptr;
};

}  // namespace xpurt::cuda
