// cuda/reports.h: what kernels report that they cannot compute: an index outside its dim and the like.
//
// A module whose kernels can meet such values has a global `xpurt_report` of two words: whether one was met,
// and where a KernelStatus's kind (0: nothing yet), value and limit go: page-locked memory, so that a run
// with nothing to report moves nothing. Whoever waits for a run reads them; the first report stays. All runs
// over a module share the words, so a run that was in flight while another's report was taken away fails with
// it: whether it reported too cannot be known any more.
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

// The words of one module, which is loaded as long as they are here.
class KernelReports {
  public:
    // Null where the kernels of `library` report nothing.
    static Result<std::shared_ptr<KernelReports>> open(std::shared_ptr<Device> device, CUlibrary library);
    ~KernelReports();

    // What was reported; none: fine.
    KernelStatus found() const noexcept;
    // Grows when a report was taken away; with what it said.
    uint64_t epoch() const;
    std::string last_message() const;
    Status consume(std::string message);

  private:
    using Word = std::atomic<uint64_t>;
    static_assert(sizeof(Word) == sizeof(uint64_t) && Word::is_always_lock_free, "kernels write them");

    KernelReports(std::shared_ptr<Device> device, CUdeviceptr flag, Word* words)
        : device_(std::move(device)), flag_(flag), words_(words) {}

    const std::shared_ptr<Device> device_;
    const CUdeviceptr flag_;  // the module's global
    Word* const words_;       // kind, value, limit
    mutable std::mutex mutex_;
    uint64_t epoch_ = 0;
    std::string last_message_;
};

// One context's runs over such a module. Any thread may look.
class ReportWatch {
  public:
    explicit ReportWatch(std::shared_ptr<Device> device) : device_(std::move(device)) {}

    // Before a recording is launched.
    void will_launch(const CudaRecording& recording);
    // After all launches of a run. `left`: nobody waits for it.
    void set_queued(bool unawaited);
    // What was reported, when what was queued is done: the caller waited for it, or `done` says so.
    Status check();
    Status check(CUevent done);

  private:
    Status read();

    const std::shared_ptr<Device> device_;
    std::mutex mutex_;
    std::vector<const CudaRecording*> recordings_;
    std::shared_ptr<KernelReports> reports_;
    uint64_t epoch_ = 0;  // when the first run that nobody has looked after began
    bool expecting_ = false, queued_ = false, unawaited_ = false;
};

// Those of a backend's contexts.
class ReportWatchList {
  public:
    void add(ReportWatch& watch, CUevent done);
    void remove(ReportWatch& watch);
    // The first report of runs that were left and are done.
    Status check();

  private:
    struct Item {
        ReportWatch* watch;
        CUevent done;
    };
    std::mutex mutex_;
    std::vector<Item> items_;
};

}  // namespace xpurt::cuda
