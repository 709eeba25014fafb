// cuda/reports.cpp: reading kernels' reports, and taking them away.
#include "backends/cuda/reports.h"

#include <algorithm>
#include <new>
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

constexpr const char* symbol = "xpurt_report";
constexpr const char* former = "xpurt_status";  // of programs made before the words lay on the host
constexpr size_t words = 3;

}  // namespace

Result<std::shared_ptr<Reports>> Reports::open(std::shared_ptr<Device> device, CUlibrary library) {
    const Driver& driver = device->driver;
    const Current current(*device);
    CUdeviceptr met = 0;
    size_t bytes = 0;
    if (driver.cuLibraryGetGlobal(&met, &bytes, library, symbol) != 0) {
        if (driver.cuLibraryGetGlobal(&met, &bytes, library, former) != 0) return std::shared_ptr<Reports>();
        return Status{Code::invalid, "the kernels report what they cannot compute in an older version's way",
                      "Compile the model again."};
    }
    if (bytes != 2 * sizeof(uint64_t))
        return Status{Code::invalid,
                      "the kernels' report has " + std::to_string(bytes) + " bytes instead of 16",
                      "Compile the model again."};
    auto* const block = static_cast<Word*>(device->allocate_pinned(words * sizeof(Word)));
    if (block == nullptr) return Status{Code::no_memory, "no page-locked memory for kernels' reports", ""};
    for (size_t i = 0; i < words; ++i) new (block + i) Word(0);
    std::shared_ptr<Reports> made(new Reports(device, met, block));
    const auto address = reinterpret_cast<uint64_t>(block);  // one address space: it is the device's, too
    Status status = device->check(
        driver.cuMemcpyHtoDAsync_v2(met + sizeof address, &address, sizeof address, device->home),
        "cuMemcpyHtoDAsync_v2");
    if (status.ok()) status = device->check(driver.cuStreamSynchronize(device->home), "cuStreamSynchronize");
    if (!status.ok()) return status;
    return made;
}

Reports::~Reports() { device_->release_pinned(words_); }

KernelStatus Reports::found() const noexcept {
    KernelStatus found;
    found.kind = static_cast<int64_t>(words_[0].load());
    found.value = static_cast<int64_t>(words_[1].load());
    found.limit = static_cast<int64_t>(words_[2].load());
    return found;
}

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
    for (size_t i = 0; i < words; ++i) words_[i] = 0;
    Status status = device_->check(device_->driver.cuMemsetD8Async(met_, 0, sizeof(uint64_t), device_->home),
                                   "cuMemsetD8Async");
    if (status.ok())
        status = device_->check(device_->driver.cuStreamSynchronize(device_->home), "cuStreamSynchronize");
    const std::lock_guard<std::mutex> lock(mutex_);
    last_ = std::move(said);
    ++epoch_;  // after the words are gone: a run that begins from now on reports anew
    return status;
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

void Watch::queued(bool left) {
    const std::lock_guard<std::mutex> lock(mutex_);
    queued_ = expecting_;
    left_ = left;
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
    if (const KernelStatus found = reports_->found(); found.kind != KernelStatus::fine) {
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
