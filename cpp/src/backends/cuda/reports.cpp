// cuda/reports.cpp: reading kernels' reports, and taking them away.
#include "backends/cuda/reports.h"

#include <algorithm>
#include <new>
#include <utility>

#include "backends/cuda/run_state.h"

namespace xpurt::cuda {
namespace {

// Whose report it may be: the calls of a run whose kernels can make one.
std::string reporting_calls(const std::vector<const CudaRecording*>& recordings) {
    std::vector<std::string> names;
    for (const CudaRecording* recording : recordings)
        for (const KernelCall* call : recording->reporters) {
            std::string name = text_of(*call);
            if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(std::move(name));
        }
    constexpr size_t max_names = 4;
    std::string text;
    for (size_t i = 0; i < std::min(names.size(), max_names); ++i) text += (i == 0 ? "" : " or ") + names[i];
    if (names.size() > max_names) text += " or one of " + std::to_string(names.size() - max_names) + " more";
    return text;
}

constexpr const char* symbol = "xpurt_report";
constexpr const char* former_symbol = "xpurt_status";  // of programs made before the words lay on the host
constexpr size_t words = 3;

}  // namespace

Result<std::shared_ptr<KernelReports>> KernelReports::open(std::shared_ptr<Device> device,
                                                           CUlibrary library) {
    const Driver& driver = device->driver;
    const ScopedContext current(*device);
    CUdeviceptr flag = 0;
    size_t bytes = 0;
    if (driver.cuLibraryGetGlobal(&flag, &bytes, library, symbol) != 0) {
        if (driver.cuLibraryGetGlobal(&flag, &bytes, library, former_symbol) != 0)
            return std::shared_ptr<KernelReports>();
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
    std::shared_ptr<KernelReports> reports(new KernelReports(device, flag, block));
    const auto address = reinterpret_cast<uint64_t>(block);  // one address space: it is the device's, too
    Status status = device->check(
        driver.cuMemcpyHtoDAsync_v2(flag + sizeof address, &address, sizeof address, device->home),
        "cuMemcpyHtoDAsync_v2");
    if (status.ok()) status = device->check(driver.cuStreamSynchronize(device->home), "cuStreamSynchronize");
    if (!status.ok()) return status;
    return reports;
}

KernelReports::~KernelReports() { device_->release_pinned(words_); }

KernelStatus KernelReports::found() const noexcept {
    KernelStatus found;
    found.kind = static_cast<int64_t>(words_[0].load());
    found.value = static_cast<int64_t>(words_[1].load());
    found.limit = static_cast<int64_t>(words_[2].load());
    return found;
}

uint64_t KernelReports::epoch() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return epoch_;
}

std::string KernelReports::last_message() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return last_message_;
}

Status KernelReports::consume(std::string message) {
    const ScopedContext current(*device_);
    for (size_t i = 0; i < words; ++i) words_[i] = 0;
    Status status = device_->check(device_->driver.cuMemsetD8Async(flag_, 0, sizeof(uint64_t), device_->home),
                                   "cuMemsetD8Async");
    if (status.ok())
        status = device_->check(device_->driver.cuStreamSynchronize(device_->home), "cuStreamSynchronize");
    const std::lock_guard<std::mutex> lock(mutex_);
    last_message_ = std::move(message);
    ++epoch_;  // after the words are gone: a run that begins from now on reports anew
    return status;
}

void ReportWatch::will_launch(const CudaRecording& recording) {
    if (recording.reports == nullptr) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (std::find(recordings_.begin(), recordings_.end(), &recording) == recordings_.end())
        recordings_.push_back(&recording);
    if (std::exchange(expecting_, true)) return;
    reports_ = recording.reports;  // a plan has one module
    epoch_ = reports_->epoch();
}

void ReportWatch::set_queued(bool unawaited) {
    const std::lock_guard<std::mutex> lock(mutex_);
    queued_ = expecting_;
    unawaited_ = unawaited;
}

Status ReportWatch::check() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return read();
}

Status ReportWatch::check(CUevent done) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!queued_ || !unawaited_) return {};
    const ScopedContext current(*device_);
    if (device_->driver.cuEventQuery(done) != 0) return {};
    Status found = read();
    if (!found.ok()) found.message = "a run that was queued failed: " + found.message;
    return found;
}

Status ReportWatch::read() {
    if (!queued_) return {};
    queued_ = expecting_ = unawaited_ = false;
    if (const KernelStatus found = reports_->found(); found.kind != KernelStatus::fine) {
        Status status = status_of(found, reporting_calls(recordings_));
        XPURT_TRY(reports_->consume(status.message));
        return status;
    }
    if (epoch_ == reports_->epoch()) return {};
    return {
        Code::call_failed, "a run beside this one failed: " + reports_->last_message(),
        "This run's kernels share the place of that report, so its own results are not sure: run it again."};
}

void ReportWatchList::add(ReportWatch& watch, CUevent done) {
    const std::lock_guard<std::mutex> lock(mutex_);
    items_.push_back({&watch, done});
}

void ReportWatchList::remove(ReportWatch& watch) {
    const std::lock_guard<std::mutex> lock(mutex_);
    items_.erase(
        std::remove_if(items_.begin(), items_.end(), [&](const Item& item) { return item.watch == &watch; }),
        items_.end());
}

Status ReportWatchList::check() {
    const std::lock_guard<std::mutex> lock(mutex_);
    Status first;
    for (const Item& item : items_)
        if (Status found = item.watch->check(item.done); first.ok()) first = std::move(found);
    return first;
}

}  // namespace xpurt::cuda
