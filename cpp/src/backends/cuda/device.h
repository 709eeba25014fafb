// cuda/device.h: an open CUDA device: its primary context, memory and properties.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backends/cuda/driver.h"
#include "xpurt/memory.h"
#include "xpurt/status.h"

namespace xpurt::cuda {

// A device in use. One per device and process; never closed, since other libraries share its primary context.
class Device {
  public:
    // Open the device, or return the open one. `library` is another library than cuda_library() only in
    // tests.
    static Result<std::shared_ptr<Device>> open(int index, Library& library = cuda_library());

    const Driver driver;
    const int index;
    CUdevice handle = 0;
    CUcontext context = nullptr;
    int capability = 0;  // 10 * major + minor: 90
    int multiprocessors = 0;
    int max_shared_bytes = 0;  // per block, with opt-in
    std::string name{};

    // Allocate memory that may be used on `stream` at once. The error for exhausted memory states how much
    // was requested, is free, and is held by the pool.
    Result<CUdeviceptr> allocate(size_t bytes, CUstream stream);
    void release(CUdeviceptr memory, CUstream stream) noexcept;
    // The same for a block of `bytes`; false, and the memory is not freed, if the stream no longer exists.
    bool try_release(CUdeviceptr memory, size_t bytes, CUstream stream) noexcept;
    MemoryStatistics statistics();
    int64_t trim();  // returns free memory of the pool to the system; the result is in bytes

    // Page-locked host memory, through which copies run at full bus speed. Null when memory is exhausted.
    void* allocate_pinned(size_t bytes) noexcept { return pinned_->allocate(bytes); }
    void release_pinned(void* block) noexcept { pinned_->release(block); }
    MemoryPool& pinned() noexcept { return *pinned_; }

    // Order all later work on `later` after all current work on `earlier`. If `earlier` no longer exists,
    // wait for the device.
    void order_after(CUstream later, CUstream earlier) noexcept;

    // The same for `earlier`, a stream of another device.
    Status order_after_peer(CUstream later, Device& peer, CUstream earlier);
    // True if copies to this device from the peer need no host memory. The first call opens the way.
    Result<bool> reaches_peer(Device& peer);
    // Copy from the peer's memory, after the work of its stream, which waits for the copy.
    Status copy_from_peer(CUdeviceptr to, CUstream stream, Device& peer, CUdeviceptr from,
                          CUstream peer_stream, size_t bytes);

    // For work without a stream of its own: uploads of weights, and blocks that are handed to callers.
    CUstream home = nullptr;

    Status check(CUresult result, const char* call) const { return status_of(driver, result, call); }
    // For destructors: log a failure, unless the process is ending or an earlier error has already lost the
    // context.
    void log_if_failed(CUresult result, const char* call) const noexcept {
        cuda::log_if_failed(driver, result, call);
    }

    Device(const Library& library, int at) : driver(library), index(at) {}

  private:
    Status start();
    Status open_pool_to(const Device& peer);
    uint64_t pool_attribute(PoolAttribute attribute) const noexcept;  // 0 after a failure, which is logged
    bool keep(CUdeviceptr memory, size_t bytes) noexcept;
    CUdeviceptr take_kept(size_t bytes) noexcept;  // 0 if there is none of this size
    void release_kept() noexcept;

    // A small block that was freed in the order of the default stream, which never ends. Its next allocation
    // of this size gets the block without a call of the driver. The oldest is freed if there are too many.
    struct KeptBlock {
        size_t bytes;
        CUdeviceptr memory;
    };
    static constexpr size_t max_kept_bytes = 1 << 20, max_kept_blocks = 16;

    CUmemoryPool pool_ = nullptr;
    std::unique_ptr<MemoryPool> pinned_;
    std::mutex follow_mutex_;
    CUevent follow_event_ = nullptr;
    std::mutex counting_;
    std::vector<KeptBlock> kept_;  // guarded by counting_
    std::mutex peers_mutex_;
    std::map<int, bool> peers_;  // by index: whether copies from it are direct
    int64_t allocations_ = 0, reuses_ = 0, reserved_ = 0;
};

// Makes the device's context current on this thread during its lifetime, then restores the previous one.
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
