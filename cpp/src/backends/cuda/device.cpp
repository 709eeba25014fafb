// cuda/device.cpp: opening a device, and its memory.
#include "backends/cuda/device.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "xpurt/thread_pool.h"

namespace xpurt::cuda {
namespace {

constexpr size_t keep_pinned_bytes = size_t{256} << 20;

std::string megabytes(int64_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }

}  // namespace

Current::Current(const Device& device) noexcept {
    CUcontext now = nullptr;
    if (device.driver.cuCtxGetCurrent(&now) == 0 && now == device.context) return;
    if (device.driver.cuCtxPushCurrent_v2(device.context) == 0) pushed_ = &device.driver;
}

Current::~Current() {
    CUcontext popped = nullptr;
    if (pushed_ != nullptr) pushed_->cuCtxPopCurrent_v2(&popped);
}

Result<std::shared_ptr<Device>> Device::open(int index, Library& library) {
    static auto* const mutex = new std::mutex;
    static auto* const devices = new std::map<std::pair<Library*, int>, std::shared_ptr<Device>>;
    static const unsigned born = fork_generation();
    if (Status status = library.open(); !status.ok()) return status;
    if (fork_generation() != born)
        return Status{Code::unsupported,
                      "CUDA cannot be used in a process that was forked from one that uses it",
                      "Start processes with multiprocessing's \"spawn\"."};
    const std::lock_guard<std::mutex> lock(*mutex);
    std::shared_ptr<Device>& device = (*devices)[{&library, index}];
    if (device) return device;
    if (Status status = can_run(library); !status.ok()) return status;
    auto made = std::make_shared<Device>(library, index);
    if (Status status = made->start(); !status.ok()) return status;
    device = std::move(made);
    return device;
}

Status Device::start() {
    Status failed;
    const auto ok = [&](CUresult result, const char* call) {
        if (failed.ok()) failed = check(result, call);
        return failed.ok();
    };
    int count = 0;
    if (!ok(driver.cuInit(0), "cuInit") || !ok(driver.cuDeviceGetCount(&count), "cuDeviceGetCount"))
        return failed;
    if (index < 0 || index >= count)
        return {Code::no_device, "there is no cuda:" + std::to_string(index),
                "This machine has " + std::to_string(count) + " CUDA devices, counted from 0."};
    const auto attribute = [&](DeviceAttribute which) {
        int value = 0;
        ok(driver.cuDeviceGetAttribute(&value, which, handle), "cuDeviceGetAttribute");
        return value;
    };
    ok(driver.cuDeviceGet(&handle, index), "cuDeviceGet");
    capability = 10 * attribute(capability_major) + attribute(capability_minor);
    multiprocessors = attribute(multiprocessor_count);
    max_shared_bytes = attribute(max_shared_per_block_optin);
    char text[256] = {};
    if (ok(driver.cuDeviceGetName(text, sizeof text - 1, handle), "cuDeviceGetName")) name = text;
    if (!ok(driver.cuDevicePrimaryCtxRetain(&context, handle), "cuDevicePrimaryCtxRetain")) return failed;

    const Current current(*this);
    CUmemPoolProps props;
    props.location.id = handle;
    uint64_t keep_all = UINT64_MAX;  // what is freed stays in the pool until trim()
    ok(driver.cuMemPoolCreate(&pool_, &props), "cuMemPoolCreate");
    ok(driver.cuMemPoolSetAttribute(pool_, release_threshold, &keep_all), "cuMemPoolSetAttribute");
    ok(driver.cuStreamCreate(&home, stream_non_blocking), "cuStreamCreate");
    ok(driver.cuEventCreate(&mark_, event_no_timing), "cuEventCreate");
    pinned_ = std::make_unique<MemoryPool>(
        keep_pinned_bytes,
        MemorySource{[](void* device, size_t bytes) {
                         const Device& self = *static_cast<Device*>(device);
                         const Current now(self);
                         void* block = nullptr;
                         return self.driver.cuMemHostAlloc(&block, bytes, 0) == 0 ? block : nullptr;
                     },
                     [](void* device, void* block) {
                         const Device& self = *static_cast<Device*>(device);
                         const Current now(self);
                         self.driver.cuMemFreeHost(block);
                     },
                     this});
    return failed;
}

Result<CUdeviceptr> Device::allocate(size_t bytes, CUstream stream) {
    const Current current(*this);
    const size_t size = std::max<size_t>(bytes, 1);
    CUdeviceptr memory = 0;
    CUresult result = driver.cuMemAllocFromPoolAsync(&memory, size, pool_, stream);
    if (result == out_of_memory) {
        // What other streams have freed but not reached yet, and what the pool keeps in pieces that are too
        // small.
        driver.cuCtxSynchronize();
        trim();
        result = driver.cuMemAllocFromPoolAsync(&memory, size, pool_, stream);
    }
    if (result == out_of_memory) {
        size_t free = 0, total = 0;
        driver.cuMemGetInfo_v2(&free, &total);
        const MemoryStatistics held = statistics();
        return Status{
            Code::no_memory,
            "no " + std::to_string(bytes) + " bytes (" + megabytes(static_cast<int64_t>(bytes)) +
                ") on cuda:" + std::to_string(index) + ": " + megabytes(static_cast<int64_t>(free)) + " of " +
                megabytes(static_cast<int64_t>(total)) + " are free, " + megabytes(held.live_bytes) +
                " are in use by this process's programs",
            "Use a smaller batch, fewer contexts, or close sessions; what is loaded goes on working."};
    }
    if (Status status = check(result, "cuMemAllocFromPoolAsync"); !status.ok()) return status;
    uint64_t reserved = 0;
    driver.cuMemPoolGetAttribute(pool_, reserved_current, &reserved);
    const std::lock_guard<std::mutex> lock(counting_);
    (static_cast<int64_t>(reserved) > reserved_ ? allocations_ : reuses_) += 1;
    reserved_ = static_cast<int64_t>(reserved);
    return memory;
}

void Device::release(CUdeviceptr memory, CUstream stream) noexcept {
    if (memory == 0) return;
    const Current current(*this);
    driver.cuMemFreeAsync(memory, stream);
}

void Device::follow(CUstream later, CUstream earlier) noexcept {
    if (later == earlier) return;
    const Current current(*this);
    const std::lock_guard<std::mutex> lock(following_);  // a wait means the mark as it is when it is queued
    if (driver.cuEventRecord(mark_, earlier) != 0 || driver.cuStreamWaitEvent(later, mark_, 0) != 0)
        driver.cuCtxSynchronize();
}

MemoryStatistics Device::statistics() {
    const Current current(*this);
    uint64_t reserved = 0, used = 0, high = 0;
    driver.cuMemPoolGetAttribute(pool_, reserved_current, &reserved);
    driver.cuMemPoolGetAttribute(pool_, used_current, &used);
    driver.cuMemPoolGetAttribute(pool_, used_high, &high);
    const std::lock_guard<std::mutex> lock(counting_);
    MemoryStatistics found;
    found.live_bytes = static_cast<int64_t>(used);
    found.peak_bytes = static_cast<int64_t>(high);
    found.cached_bytes = static_cast<int64_t>(reserved - std::min(used, reserved));
    found.allocations = allocations_;
    found.reuses = reuses_;
    return found;
}

int64_t Device::trim() {
    const Current current(*this);
    uint64_t before = 0, after = 0;
    driver.cuStreamSynchronize(home);  // what was freed in its order is free now
    driver.cuMemPoolGetAttribute(pool_, reserved_current, &before);
    driver.cuMemPoolTrimTo(pool_, 0);
    driver.cuMemPoolGetAttribute(pool_, reserved_current, &after);
    const std::lock_guard<std::mutex> lock(counting_);
    reserved_ = static_cast<int64_t>(after);
    return static_cast<int64_t>(before - std::min(after, before));
}

}  // namespace xpurt::cuda
