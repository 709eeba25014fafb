// cuda/reports.cpp: reading kernels' reports, and taking them away.
#include "backends/cuda/reports.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "backends/cuda/run_state.h"

namespace xpurt::cuda {
namespace {

// Whose report it may be: the calls of a run whose kernels can make one.
std::string who(const std::vector<const CudaRecording*>& recordings) {
    std::vector<std::string> names;
    for (const CudaRecording* recording : recordings)
        for (const KernelCall* call : recording->reporters) {
            std::string name = text_of(*call);
            if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(std::move(name));
        }
    constexpr size_t most = 4;
    std::string text;
    for (size_t i = 0; i < std::min(names.size(), most); ++i) text += (i == 0 ? "" : " or ") + names[i];
    if (names.size() > most) text += " or one of " + std::to_string(names.size() - most) + " more";
    return text;
}

}  // namespace

uint64_t Reports::epoch() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return epoch_;
}

std::string Reports::last() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return last_;
}

Status Reports::take_away(std::string said) {
    const Current current(*device_);
    Status status =
        device_->check(device_->driver.cuMemsetD8Async(words_, 0, bytes, device_->home), "cuMemsetD8Async");
    if (status.ok())
        status = device_->check(device_->driver.cuStreamSynchronize(device_->home), "cuStreamSynchronize");
    const std::lock_guard<std::mutex> lock(mutex_);
    last_ = std::move(said);
    ++epoch_;  // after the words are gone: a run that begins from now on reports anew
    return status;
}

Watch::~Watch() {
    if (landed_ != nullptr) device_->release_pinned(landed_);
}

void Watch::expect(const CudaRecording& recording) {
    if (recording.reports == nullptr) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (std::find(recordings_.begin(), recordings_.end(), &recording) == recordings_.end())
        recordings_.push_back(&recording);
    if (std::exchange(expecting_, true)) return;
    reports_ = recording.reports;  // a plan has one module
    epoch_ = reports_->epoch();
}

Status Watch::queue(CUstream stream, bool left) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!expecting_) return {};
    if (landed_ == nullptr) landed_ = static_cast<uint64_t*>(device_->allocate_pinned(Reports::bytes));
    if (landed_ == nullptr) return {Code::no_memory, "no page-locked memory for kernels' reports", ""};
    const Current current(*device_);
    const CUresult result =
        device_->driver.cuMemcpyDtoHAsync_v2(landed_, reports_->words(), Reports::bytes, stream);
    queued_ = result == 0;
    left_ = left;
    return device_->check(result, "cuMemcpyDtoHAsync_v2");
}

Status Watch::look() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return read();
}

Status Watch::look(CUevent done) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!queued_ || !left_) return {};
    const Current current(*device_);
    if (device_->driver.cuEventQuery(done) != 0) return {};
    Status found = read();
    if (!found.ok()) found.message = "a run that was queued failed: " + found.message;
    return found;
}

Status Watch::read() {
    if (!queued_) return {};
    queued_ = expecting_ = left_ = false;
    if (landed_[0] != KernelStatus::fine) {
        KernelStatus found;
        found.kind = static_cast<int64_t>(landed_[0]);
        found.value = static_cast<int64_t>(landed_[1]);
        found.limit = static_cast<int64_t>(landed_[2]);
        Status status = status_of(found, who(recordings_));
        if (Status gone = reports_->take_away(status.message); !gone.ok()) return gone;
        return status;
    }
    if (epoch_ == reports_->epoch()) return {};
    return {
        Code::call_failed, "a run beside this one failed: " + reports_->last(),
        "This run's kernels share the place of that report, so its own results are not sure: run it again."};
}

void Watches::add(Watch& watch, CUevent done) {
    const std::lock_guard<std::mutex> lock(mutex_);
    items_.push_back({&watch, done});
}

void Watches::remove(Watch& watch) {
    const std::lock_guard<std::mutex> lock(mutex_);
    items_.erase(
        std::remove_if(items_.begin(), items_.end(), [&](const Item& item) { return item.watch == &watch; }),
        items_.end());
}

Status Watches::look() {
    const std::lock_guard<std::mutex> lock(mutex_);
    Status first;
    for (const Item& item : items_)
        if (Status found = item.watch->look(item.done); first.ok()) first = std::move(found);
    return first;
}

}  // namespace xpurt::cuda
