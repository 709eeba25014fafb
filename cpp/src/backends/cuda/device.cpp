// cuda/device.cpp: opening a device, and its memory pool.
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

ScopedContext::ScopedContext(const Device& device) noexcept {
    CUcontext current = nullptr;
    if (device.driver.cuCtxGetCurrent(&current) == CUDA_SUCCESS && current == device.context) return;
    const CUresult result = device.driver.cuCtxPushCurrent_v2(device.context);
    if (result == CUDA_SUCCESS) pushed_on_ = &device;
    device.log_if_failed(result, "cuCtxPushCurrent_v2");
}

ScopedContext::~ScopedContext() {
    CUcontext popped = nullptr;
    if (pushed_on_ != nullptr)
        pushed_on_->log_if_failed(pushed_on_->driver.cuCtxPopCurrent_v2(&popped), "cuCtxPopCurrent_v2");
}

Result<std::shared_ptr<Device>> Device::open(int index, Library& library) {
    static auto* const mutex = new std::mutex;
    static auto* const devices = new std::map<std::pair<Library*, int>, std::shared_ptr<Device>>;
    static const unsigned born = fork_generation();
    XPURT_TRY(library.open());
    if (fork_generation() != born)
        return Status{Code::unsupported,
                      "CUDA cannot be used in a process that was forked from one that uses it",
                      "Start processes with multiprocessing's \"spawn\"."};
    const std::lock_guard<std::mutex> lock(*mutex);
    std::shared_ptr<Device>& device = (*devices)[{&library, index}];
    if (device) return device;
    XPURT_TRY(can_run(library));
    auto opened = std::make_shared<Device>(library, index);
    XPURT_TRY(opened->start());
    device = std::move(opened);
    return device;
}

Status Device::start() {
    int count = 0;
    XPURT_TRY(check(driver.cuInit(0), "cuInit"));
    XPURT_TRY(check(driver.cuDeviceGetCount(&count), "cuDeviceGetCount"));
    if (index < 0 || index >= count)
        return {Code::no_device, "there is no cuda:" + std::to_string(index),
                "This machine has " + std::to_string(count) + " CUDA devices, counted from 0."};
    XPURT_TRY(check(driver.cuDeviceGet(&handle, index), "cuDeviceGet"));
    const auto attribute = [&](DeviceAttribute which, int& value) {
        return check(driver.cuDeviceGetAttribute(&value, which, handle), "cuDeviceGetAttribute");
    };
    int major = 0, minor = 0;
    XPURT_TRY(attribute(capability_major, major));
    XPURT_TRY(attribute(capability_minor, minor));
    capability = 10 * major + minor;
    XPURT_TRY(attribute(multiprocessor_count, multiprocessors));
    XPURT_TRY(attribute(max_shared_per_block_optin, max_shared_bytes));
    char text[256] = {};
    XPURT_TRY(check(driver.cuDeviceGetName(text, sizeof text - 1, handle), "cuDeviceGetName"));
    name = text;
    XPURT_TRY(check(driver.cuDevicePrimaryCtxRetain(&context, handle), "cuDevicePrimaryCtxRetain"));

    const ScopedContext current(*this);
    CUmemPoolProps props;
    props.location.id = handle;
    uint64_t keep_all = UINT64_MAX;  // the pool keeps freed memory until trim()
    XPURT_TRY(check(driver.cuMemPoolCreate(&pool_, &props), "cuMemPoolCreate"));
    XPURT_TRY(
        check(driver.cuMemPoolSetAttribute(pool_, release_threshold, &keep_all), "cuMemPoolSetAttribute"));
    XPURT_TRY(check(driver.cuStreamCreate(&home, stream_non_blocking), "cuStreamCreate"));
    XPURT_TRY(check(driver.cuEventCreate(&follow_event_, event_no_timing), "cuEventCreate"));
    kept_.reserve(max_kept_blocks);
    pinned_ = std::make_unique<MemoryPool>(
        keep_pinned_bytes,
        MemorySource{[](void* device, size_t bytes) {
                         const Device& self = *static_cast<Device*>(device);
                         const ScopedContext now(self);
                         void* block = nullptr;
                         return self.driver.cuMemHostAlloc(&block, bytes, 0) == 0 ? block : nullptr;
                     },
                     [](void* device, void* block) {
                         const Device& self = *static_cast<Device*>(device);
                         const ScopedContext now(self);
                         self.log_if_failed(self.driver.cuMemFreeHost(block), "cuMemFreeHost");
                     },
                     this});
    return {};
}

Result<CUdeviceptr> Device::allocate(size_t bytes, CUstream stream) {
    const size_t size = std::max<size_t>(bytes, 1);
    if (stream == nullptr)
        if (const CUdeviceptr kept = take_kept(size)) return kept;
    const ScopedContext current(*this);
    CUdeviceptr memory = 0;
    CUresult result = driver.cuMemAllocFromPoolAsync(&memory, size, pool_, stream);
    if (result == CUDA_ERROR_OUT_OF_MEMORY) {
        // Retry after a synchronization, which completes pending frees, and a trim, which resolves
        // fragmentation.
        XPURT_TRY(check(driver.cuCtxSynchronize(), "cuCtxSynchronize"));
        trim();
        result = driver.cuMemAllocFromPoolAsync(&memory, size, pool_, stream);
    }
    if (result == CUDA_ERROR_OUT_OF_MEMORY) {
        size_t free = 0, total = 0;
        XPURT_TRY(check(driver.cuMemGetInfo_v2(&free, &total), "cuMemGetInfo_v2"));
        const MemoryStatistics pool = statistics();
        return Status{
            Code::no_memory,
            "cannot allocate " + std::to_string(bytes) + " bytes (" + megabytes(static_cast<int64_t>(bytes)) +
                ") on cuda:" + std::to_string(index) + ": " + megabytes(static_cast<int64_t>(free)) + " of " +
                megabytes(static_cast<int64_t>(total)) + " are free, " + megabytes(pool.live_bytes) +
                " are in use by this process's programs",
            "Use a smaller batch or fewer contexts, or close sessions. Loaded programs keep working."};
    }
    XPURT_TRY(check(result, "cuMemAllocFromPoolAsync"));
    const uint64_t reserved = pool_attribute(reserved_current);
    const std::lock_guard<std::mutex> lock(counting_);
    (static_cast<int64_t>(reserved) > reserved_ ? allocations_ : reuses_) += 1;
    reserved_ = static_cast<int64_t>(reserved);
    return memory;
}

void Device::release(CUdeviceptr memory, CUstream stream) noexcept {
    if (memory == 0) return;
    const ScopedContext current(*this);
    log_if_failed(driver.cuMemFreeAsync(memory, stream), "cuMemFreeAsync");
}

bool Device::try_release(CUdeviceptr memory, size_t bytes, CUstream stream) noexcept {
    if (memory == 0 || (stream == nullptr && keep(memory, std::max<size_t>(bytes, 1)))) return true;
    const ScopedContext current(*this);
    return driver.cuMemFreeAsync(memory, stream) == CUDA_SUCCESS;
}

bool Device::keep(CUdeviceptr memory, size_t bytes) noexcept {
    if (bytes > max_kept_bytes) return false;
    CUdeviceptr oldest = 0;
    {
        const std::lock_guard<std::mutex> lock(counting_);
        if (kept_.size() >= max_kept_blocks) {
            oldest = kept_.front().memory;
            kept_.erase(kept_.begin());
        }
        kept_.push_back({bytes, memory});  // of the capacity that start() reserved
    }
    release(oldest, nullptr);
    return true;
}

CUdeviceptr Device::take_kept(size_t bytes) noexcept {
    const std::lock_guard<std::mutex> lock(counting_);
    const auto found = std::find_if(kept_.rbegin(), kept_.rend(),
                                    [bytes](const KeptBlock& each) { return each.bytes == bytes; });
    if (found == kept_.rend()) return 0;
    const CUdeviceptr memory = found->memory;
    kept_.erase(std::next(found).base());
    reuses_ += 1;
    return memory;
}

void Device::release_kept() noexcept {
    const std::lock_guard<std::mutex> lock(counting_);
    for (const KeptBlock& each : kept_)
        log_if_failed(driver.cuMemFreeAsync(each.memory, nullptr), "cuMemFreeAsync");
    kept_.clear();
}

void Device::order_after(CUstream later, CUstream earlier) noexcept {
    if (later == earlier) return;
    const ScopedContext current(*this);
    const std::lock_guard<std::mutex> lock(
        follow_mutex_);  // the wait refers to the event's state at the time of the call
    if (driver.cuEventRecord(follow_event_, earlier) != CUDA_SUCCESS ||
        driver.cuStreamWaitEvent(later, follow_event_, 0) != CUDA_SUCCESS)
        log_if_failed(driver.cuCtxSynchronize(), "cuCtxSynchronize");
}

Status Device::order_after_peer(CUstream later, Device& peer, CUstream earlier) {
    const std::lock_guard<std::mutex> lock(peer.follow_mutex_);
    {
        const ScopedContext current(peer);
        XPURT_TRY(peer.check(peer.driver.cuEventRecord(peer.follow_event_, earlier), "cuEventRecord"));
    }
    const ScopedContext current(*this);
    return check(driver.cuStreamWaitEvent(later, peer.follow_event_, 0), "cuStreamWaitEvent");
}

// Let the peer read and write the memory of this device's pool.
Status Device::open_pool_to(const Device& peer) {
    CUmemAccessDesc access;
    access.location.id = peer.handle;
    const ScopedContext current(*this);
    return check(driver.cuMemPoolSetAccess(pool_, &access, 1), "cuMemPoolSetAccess");
}

Result<bool> Device::reaches_peer(Device& peer) {
    if (&peer == this) return true;
    const std::lock_guard<std::mutex> lock(peers_mutex_);
    const auto known = peers_.find(peer.index);
    if (known != peers_.end()) return known->second;
    bool direct = driver.cuDeviceCanAccessPeer && driver.cuMemPoolSetAccess && driver.cuMemcpyPeerAsync;
    for (const Device* const from : {this, &peer}) {
        int can = 0;
        if (direct)
            XPURT_TRY(
                check(driver.cuDeviceCanAccessPeer(&can, from->handle, from == this ? peer.handle : handle),
                      "cuDeviceCanAccessPeer"));
        direct = direct && can != 0;
    }
    if (direct) {
        XPURT_TRY(open_pool_to(peer));
        XPURT_TRY(peer.open_pool_to(*this));
    }
    peers_[peer.index] = direct;
    return direct;
}

Status Device::copy_from_peer(CUdeviceptr to, CUstream stream, Device& peer, CUdeviceptr from,
                              CUstream peer_stream, size_t bytes) {
    XPURT_TRY(order_after_peer(stream, peer, peer_stream));
    {
        const ScopedContext current(*this);
        XPURT_TRY(check(driver.cuMemcpyPeerAsync(to, context, from, peer.context, bytes, stream),
                        "cuMemcpyPeerAsync"));
    }
    return peer.order_after_peer(peer_stream, *this, stream);
}

uint64_t Device::pool_attribute(PoolAttribute attribute) const noexcept {
    uint64_t value = 0;
    log_if_failed(driver.cuMemPoolGetAttribute(pool_, attribute, &value), "cuMemPoolGetAttribute");
    return value;
}

MemoryStatistics Device::statistics() {
    const ScopedContext current(*this);
    const uint64_t reserved = pool_attribute(reserved_current), high = pool_attribute(used_high);
    uint64_t used = pool_attribute(used_current);
    const std::lock_guard<std::mutex> lock(counting_);
    MemoryStatistics statistics;
    size_t kept = 0;
    for (const KeptBlock& each : kept_) kept += each.bytes;  // peak_bytes counts them, too
    used -= std::min<uint64_t>(used, kept);
    statistics.live_bytes = static_cast<int64_t>(used);
    statistics.peak_bytes = static_cast<int64_t>(high);
    statistics.cached_bytes = static_cast<int64_t>(reserved - std::min(used, reserved));
    statistics.allocations = allocations_;
    statistics.reuses = reuses_;
    return statistics;
}

int64_t Device::trim() {
    const ScopedContext current(*this);
    release_kept();
    // Blocks that were freed in the order of any stream are free after this.
    log_if_failed(driver.cuCtxSynchronize(), "cuCtxSynchronize");
    const uint64_t before = pool_attribute(reserved_current);
    log_if_failed(driver.cuMemPoolTrimTo(pool_, 0), "cuMemPoolTrimTo");
    const uint64_t after = pool_attribute(reserved_current);
    const std::lock_guard<std::mutex> lock(counting_);
    reserved_ = static_cast<int64_t>(after);
    return static_cast<int64_t>(before - std::min(after, before));
}

}  // namespace xpurt::cuda
