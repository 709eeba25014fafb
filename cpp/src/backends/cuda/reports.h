// cuda/reports.h: what kernels report that they cannot compute: an index outside its dim and the like.
//
// A module whose kernels can meet such values has a global `xpurt_status` of four words: a KernelStatus's
// kind (0: nothing yet), value and limit; the first report stays. Its runs bring the words to the host at
// their end, in the order of their stream, and whoever waits for the run reads them. All runs over a module
// share the words, so a run that was in flight while another's report was taken away fails with it: whether
// it reported too cannot be known any more.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backends/cuda/device.h"
#include "xpurt/kernel.h"

namespace xpurt::cuda {

struct CudaRecording;

// The words of one module.
class Reports {
  public:
    static constexpr const char* symbol = "xpurt_status";
    static constexpr size_t bytes = 4 * sizeof(uint64_t);

    Reports(std::shared_ptr<Device> device, CUdeviceptr words) : words_(words), device_(std::move(device)) {}

    CUdeviceptr words() const noexcept { return words_; }
    // Grows when a report was taken away; with what it said.
    uint64_t epoch() const;
    std::string last() const;
    Status take_away(std::string said);

  private:
    const CUdeviceptr words_;
    const std::shared_ptr<Device> device_;
    mutable std::mutex mutex_;
    uint64_t epoch_ = 0;
    std::string last_;
};

// One context's runs over such a module. Any thread may look.
class Watch {
  public:
    explicit Watch(std::shared_ptr<Device> device) : device_(std::move(device)) {}
    ~Watch();

    // Before a recording is launched.
    void expect(const CudaRecording& recording);
    // After all launches of a run: the words follow in the order of the stream. `left`: nobody waits for it.
    Status queue(CUstream stream, bool left);
    // What was reported, when what was queued is done: the caller waited for it, or `done` says so.
    Status look();
    Status look(CUevent done);

  private:
    Status read();

    const std::shared_ptr<Device> device_;
    std::mutex mutex_;
    std::vector<const CudaRecording*> recordings_;
    std::shared_ptr<Reports> reports_;
    uint64_t epoch_ = 0;          // when the first run that nobody has looked after began
    uint64_t* landed_ = nullptr;  // page-locked
    bool expecting_ = false, queued_ = false, left_ = false;
};

// Those of a backend's contexts.
class Watches {
  public:
    void add(Watch& watch, CUevent done);
    void remove(Watch& watch);
    // The first report of runs that were left and are done.
    Status look();

  private:
    struct Item {
        Watch* watch;
        CUevent done;
    };
    std::mutex mutex_;
    std::vector<Item> items_;
};

}  // namespace xpurt::cuda
