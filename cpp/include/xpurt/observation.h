// xpurt/observation.h: what the device driver recorded of one run, joined to the calls of the plan.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace xpurt {

// One kernel, copy or fill, from the driver's record.
struct DeviceActivity {
    enum Kind { kernel, copy, fill };
    Kind kind = kernel;
    int64_t call = -1;   // position in the plan; -1 = unknown
    std::string name{};  // demangled name of a kernel; for a copy or a fill, its kind
    uint32_t grid[3] = {0, 0, 0}, block[3] = {0, 0, 0};
    uint32_t registers = 0;                     // per thread
    int64_t shared_bytes = 0, local_bytes = 0;  // per block, per thread
    int64_t bytes = 0;                          // of a copy or a fill
    int64_t start_ns = 0, duration_ns = 0;      // on the device's clock
};

// The record of one run, which fills it. If no record could be made, `absent` says why; the run itself is not
// affected.
struct Observation {
    std::vector<DeviceActivity> activities{};  // ordered by start time
    bool graph = false;                        // true if the calls ran as one graph
    std::string joined{};  // how activities were joined to calls: "graph nodes", "correlation" or "order"
    std::string source{};  // the tool that recorded: "CUPTI 13.0"
    std::string absent{}, advice{};
    int64_t dropped = 0;    // records that were lost
    int64_t unmatched = 0;  // activities of this run that belong to no known call
};

}  // namespace xpurt
