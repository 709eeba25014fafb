// xpurt/observation.h: what a device's driver says that it did in one run, call by call of the plan.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace xpurt {

// One piece of work, by the driver's own record.
struct DeviceActivity {
    enum Kind { kernel, copy, fill };
    Kind kind = kernel;
    int64_t call = -1;   // of the plan; -1: of none that is known
    std::string name{};  // as its author wrote it; of a copy or a fill what it is
    uint32_t grid[3] = {0, 0, 0}, block[3] = {0, 0, 0};
    uint32_t registers = 0;                     // of a thread
    int64_t shared_bytes = 0, local_bytes = 0;  // of a block, of a thread
    int64_t bytes = 0;                          // of a copy or a fill
    int64_t start_ns = 0, duration_ns = 0;      // on the device's clock
};

// Handed to one run, and filled by it. Without a record, `absent` says why, and the run is as any other.
struct Observation {
    std::vector<DeviceActivity> activities{};  // in the order in which it began
    bool graph = false;                        // the calls were one graph
    std::string joined{};  // how work was joined to calls: "graph nodes", "correlation", "order"
    std::string source{};  // who saw it: "CUPTI 13.0"
    std::string absent{}, advice{};
    int64_t dropped = 0;    // records that were lost
    int64_t unmatched = 0;  // pieces of work of this run that belong to no known call
};

}  // namespace xpurt
