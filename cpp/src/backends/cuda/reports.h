// cuda/reports.h: errors that kernels report, such as an index out of range.
//
// A module whose kernels can report errors has a global `xpurt_report` of two words: a flag, and the address
// of three words (kind, value and limit of a KernelStatus). The three words are in page-locked host memory,
// so that a run without errors copies nothing. The thread that waits for a run reads them. The first report
// is kept. All runs over a module share the words: if one run's report is consumed while another run is in
// flight, the other run fails as well, since its own report may be lost.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backends/cuda/device.h"
#include "xpurt/kernel.h"

namespace xpurt::cuda {

struct CudaRecording;

// The report words of one module, which stays loaded as long as this object.
class KernelReports {
  public:
    // Return null if the kernels of `library` report nothing.
    static Result<std::shared_ptr<KernelReports>> open(std::shared_ptr<Device> device, CUlibrary library);
    ~KernelReports();

    // The current report; its kind is `fine` if there is none.
    KernelStatus current() const noexcept;
    // The number of reports that were consumed so far, and the message of the last one.
    uint64_t epoch() const;
    std::string last_message() const;
    Status consume(std::string message);

  private:
    using Word = std::atomic<uint64_t>;
    static_assert(sizeof(Word) == sizeof(uint64_t) && Word::is_always_lock_free, "kernels write them");

    KernelReports(std::shared_ptr<Device> device, CUdeviceptr flag, Word* words)
        : device_(std::move(device)), flag_(flag), words_(words) {}

    const std::shared_ptr<Device> device_;
    const CUdeviceptr flag_;  // the flag in the module's global
    Word* const words_;       // kind, value, limit
    mutable std::mutex mutex_;
    uint64_t epoch_ = 0;
    std::string last_message_;
};

// Checks one context's runs for reports. Thread-safe.
class ReportWatch {
  public:
    explicit ReportWatch(std::shared_ptr<Device> device) : device_(std::move(device)) {}

    // Call before a recording is launched.
    void will_launch(const CudaRecording& recording);
    // Call after all launches of a run. `unawaited`: the run was queued on a caller's stream.
    void set_queued(bool unawaited);
    // Return the report of the work that was queued, once it is complete: when the caller has waited, or when
    // `done` has completed.
    Status check();
    Status check(CUevent done);

  private:
    Status read();

    const std::shared_ptr<Device> device_;
    std::mutex mutex_;
    std::vector<const CudaRecording*> recordings_;
    std::shared_ptr<KernelReports> reports_;
    uint64_t epoch_ = 0;  // value of reports_->epoch() when the first unchecked run started
    bool expecting_ = false, queued_ = false, unawaited_ = false;
};

// The watches of all contexts of a backend.
class ReportWatchList {
  public:
    void add(ReportWatch& watch, CUevent done);
    void remove(ReportWatch& watch);
    // The first report of completed runs on callers' streams.
    Status check();

  private:
    struct WatchItem {
        ReportWatch* watch;
        CUevent done;
    };
    std::mutex mutex_;
    std::vector<WatchItem> items_;
};

}  // namespace xpurt::cuda
