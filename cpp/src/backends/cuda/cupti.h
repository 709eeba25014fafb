// cuda/cupti.h: NVIDIA's tracing library (CUPTI, activity API), loaded at the first observation.
//
// A session is one stretch of watching, of one run: between begin() and end() CUPTI records every kernel,
// copy and fill of the process. Launches are marked with ids (mark()), so that records can be told apart; for
// graphs it is told which of their nodes were made from which. Nothing is registered, and nothing is slower,
// outside of sessions. CUPTI has one client of this kind per process: whoever profiles PyTorch meanwhile may
// lose records.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>

#include "backends/cuda/cupti_records.h"
#include "backends/cuda/driver.h"

namespace xpurt::cuda {

class CuptiSession {
  public:
    // Waits for other sessions. ok, or why there is no record.
    static Status begin(CuptiSession& session);
    CuptiSession() = default;
    ~CuptiSession();
    CuptiSession(const CuptiSession&) = delete;
    CuptiSession& operator=(const CuptiSession&) = delete;

    // The calling thread's launches from now on have this id; 0: none any more.
    void set_external_id(uint64_t id);
    // CUPTI's number of a node; 0 where it knows none.
    uint64_t graph_node_id(CUgraphNode node) const;
    // What was recorded. All work must be done. Ends the session.
    CuptiTrace end();

    static std::string version();  // "CUPTI 13.0"

  private:
    void stop();

    std::unique_lock<std::mutex> lock_;
    void* subscriber_ = nullptr;
    bool has_external_id_ = false;
};

// Memory for records: so many buffers of so many bytes at most; what does not fit is dropped, and counted.
// For tests.
void limit_records(size_t bytes, int buffers);

}  // namespace xpurt::cuda
