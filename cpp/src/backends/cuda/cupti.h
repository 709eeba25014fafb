// cuda/cupti.h: NVIDIA's tracing library (CUPTI, activity API), loaded by the first observation.
//
// A session traces one run: between begin() and end(), CUPTI records every kernel, copy and fill of the
// process. Launches are tagged with external correlation ids (set_external_id), so that their records can be
// identified. For graphs, CUPTI reports which node of the launched graph was cloned from which captured node.
// Outside of sessions nothing is registered, so nothing is slowed down. A process has one CUPTI client of
// this kind: another profiler may lose records during a session.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>

#include "backends/cuda/cupti_records.h"
#include "backends/cuda/driver.h"

namespace xpurt::cuda {

class CuptiSession {
  public:
    // Start a session, after any other session has ended. Return ok, or why no record can be made.
    static Status begin(CuptiSession& session);
    CuptiSession() = default;
    ~CuptiSession();
    CuptiSession(const CuptiSession&) = delete;
    CuptiSession& operator=(const CuptiSession&) = delete;

    // Tag the calling thread's launches with this id from now on; 0 ends the tagging.
    void set_external_id(uint64_t id);
    // CUPTI's id of a graph node; 0 if it has none.
    uint64_t graph_node_id(CUgraphNode node) const;
    // End the session and return its records. All work must be complete.
    CuptiTrace end();

    static std::string version();  // "CUPTI 13.0"

  private:
    void stop();

    std::unique_lock<std::mutex> lock_;
    void* subscriber_ = nullptr;
    bool has_external_id_ = false;
};

// For tests: limit the memory for records. Records beyond it are dropped and counted.
void limit_records(size_t bytes, int buffers);

}  // namespace xpurt::cuda
