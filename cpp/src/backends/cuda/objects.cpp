// cuda/objects.cpp: memory blocks, streams and events that callers hold.
#include <algorithm>

#include "backends/cuda/device.h"
#include "xpurt/cuda.h"

namespace xpurt {

using namespace cuda;

namespace {

CUstream stream_of(void* handle) { return static_cast<CUstream>(handle); }
CUevent event_of(void* handle) { return static_cast<CUevent>(handle); }

Result<bool> query_result(const Device& device, CUresult result, const char* call) {
    if (result == CUDA_ERROR_NOT_READY) return false;
    XPURT_TRY(device.check(result, call));
    return true;
}

}  // namespace

CudaBlock::~CudaBlock() {
    // A block of one stream is freed in that stream's order, where the next allocation gets it without a wait
    // between streams.
    if (streams_.size() == 1 && device_->try_release(address_, bytes_, stream_of(streams_.front()))) return;
    for (void* const stream : streams_) device_->order_after(device_->home, stream_of(stream));
    device_->release(address_, device_->home);
}

void CudaBlock::used_on(void* stream) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (std::find(streams_.begin(), streams_.end(), stream) == streams_.end()) streams_.push_back(stream);
}

CudaStream::~CudaStream() {
    const ScopedContext current(*device_);
    if (owned_)
        device_->log_if_failed(device_->driver.cuStreamDestroy_v2(stream_of(handle_)), "cuStreamDestroy_v2");
}

Status CudaStream::synchronize() const {
    const ScopedContext current(*device_);
    return device_->check(device_->driver.cuStreamSynchronize(stream_of(handle_)), "cuStreamSynchronize");
}

Result<bool> CudaStream::done() const {
    const ScopedContext current(*device_);
    return query_result(*device_, device_->driver.cuStreamQuery(stream_of(handle_)), "cuStreamQuery");
}

Result<std::unique_ptr<CudaEvent>> CudaEvent::make(std::shared_ptr<Device> device, bool timing) {
    const ScopedContext current(*device);
    CUevent event = nullptr;
    const CUresult result = device->driver.cuEventCreate(&event, timing ? event_default : event_no_timing);
    XPURT_TRY(device->check(result, "cuEventCreate"));
    return std::unique_ptr<CudaEvent>(new CudaEvent(std::move(device), event));
}

CudaEvent::~CudaEvent() {
    const ScopedContext current(*device_);
    device_->log_if_failed(device_->driver.cuEventDestroy_v2(event_of(handle_)), "cuEventDestroy_v2");
}

Status CudaEvent::record(const CudaStream& stream) const {
    const ScopedContext current(*device_);
    return device_->check(device_->driver.cuEventRecord(event_of(handle_), stream_of(stream.handle_)),
                          "cuEventRecord");
}

Status CudaEvent::wait(const CudaStream& stream) const {
    const ScopedContext current(*device_);
    return device_->check(device_->driver.cuStreamWaitEvent(stream_of(stream.handle_), event_of(handle_), 0),
                          "cuStreamWaitEvent");
}

Status CudaEvent::synchronize() const {
    const ScopedContext current(*device_);
    return device_->check(device_->driver.cuEventSynchronize(event_of(handle_)), "cuEventSynchronize");
}

Result<bool> CudaEvent::done() const {
    const ScopedContext current(*device_);
    return query_result(*device_, device_->driver.cuEventQuery(event_of(handle_)), "cuEventQuery");
}

Result<float> CudaEvent::since(const CudaEvent& start) const {
    const ScopedContext current(*device_);
    float milliseconds = 0;
    const CUresult result =
        device_->driver.cuEventElapsedTime(&milliseconds, event_of(start.handle_), event_of(handle_));
    XPURT_TRY(device_->check(result, "cuEventElapsedTime"));
    return milliseconds;
}

}  // namespace xpurt
