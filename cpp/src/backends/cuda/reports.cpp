// cuda/reports.cpp: reading and consuming the errors that kernels report.
#include "backends/cuda/reports.h"

#include <algorithm>
#include <new>
#include <utility>

#include "backends/cuda/run_state.h"

namespace xpurt::cuda {
namespace {

// Name the calls that may have made the report.
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
constexpr const char* former_symbol =
    "xpurt_status";  // in programs from before the words were in host memory
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
        return Status{Code::invalid, "the kernels report errors in the format of an older version",
                      "Compile the model again."};
    }
    if (bytes != 2 * sizeof(uint64_t))
        return Status{Code::invalid,
                      "the kernels' report has " + std::to_string(bytes) + " bytes instead of 16",
                      "Compile the model again."};
    auto* const block = static_cast<Word*>(device->allocate_pinned(words * sizeof(Word)));
    if (block == nullptr)
        return Status{Code::no_memory, "cannot allocate page-locked memory for kernel reports", ""};
    for (size_t i = 0; i < words; ++i) new (block + i) Word(0);
    std::shared_ptr<KernelReports> reports(new KernelReports(device, flag, block));
    const auto address =
        reinterpret_cast<uint64_t>(block);  // unified addressing: the device uses the same address
    Status status = device->check(
        driver.cuMemcpyHtoDAsync_v2(flag + sizeof address, &address, sizeof address, device->home),
        "cuMemcpyHtoDAsync_v2");
    if (status.ok()) status = device->check(driver.cuStreamSynchronize(device->home), "cuStreamSynchronize");
    if (!status.ok()) return status;
    return reports;
}

KernelReports::~KernelReports() { device_->release_pinned(words_); }

KernelStatus KernelReports::current() const noexcept {
    KernelStatus status;
    status.kind = static_cast<int64_t>(words_[0].load());
    status.value = static_cast<int64_t>(words_[1].load());
    status.limit = static_cast<int64_t>(words_[2].load());
    return status;
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
    ++epoch_;  // after the words are cleared: a run that starts now reports anew
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
    Status status = read();
    if (!status.ok()) status.message = "a queued run failed: " + status.message;
    return status;
}

Status ReportWatch::read() {
    if (!queued_) return {};
    queued_ = expecting_ = unawaited_ = false;
    if (const KernelStatus report = reports_->current(); report.kind != KernelStatus::fine) {
        Status status = status_of(report, reporting_calls(recordings_));
        XPURT_TRY(reports_->consume(status.message));
        return status;
    }
    if (epoch_ == reports_->epoch()) return {};
    return {Code::call_failed, "a concurrent run failed: " + reports_->last_message(),
            "Both runs report to the same memory, so this run may have failed as well: run it again."};
}

void ReportWatchList::add(ReportWatch& watch, CUevent done) {
    const std::lock_guard<std::mutex> lock(mutex_);
    items_.push_back({&watch, done});
}

void ReportWatchList::remove(ReportWatch& watch) {
    const std::lock_guard<std::mutex> lock(mutex_);
    items_.erase(std::remove_if(items_.begin(), items_.end(),
                                [&](const WatchItem& item) { return item.watch == &watch; }),
                 items_.end());
}

Status ReportWatchList::check() {
    const std::lock_guard<std::mutex> lock(mutex_);
    Status first;
    for (const WatchItem& item : items_)
        if (Status status = item.watch->check(item.done); first.ok()) first = std::move(status);
    return first;
}

}  // namespace xpurt::cuda
