// cuda/cupti_records.h: CUPTI's records of what ran, read field by field.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <vector>

#include "xpurt/observation.h"

namespace xpurt::cuda {

// A record as CUPTI gave it, before anything is known of the plan.
struct ActivityRecord {
    DeviceActivity activity;
    uint32_t correlation = 0;  // of the call of the driver or the runtime that it came from
    uint64_t graph_node = 0;   // 0: not from a graph
};

struct CuptiTrace {
    std::vector<ActivityRecord> records;
    std::map<uint32_t, uint64_t> external_ids;  // correlation to the id that was set for it
    std::map<uint64_t, uint64_t> cloned_from;   // graph nodes: the one that ran, to the one that was captured
    int64_t dropped = 0;
};

// Values of cupti_activity.h: kinds of records, and the kind of marks that are ours.
constexpr int kind_copy = 1, kind_fill = 2, kind_driver = 4, kind_runtime = 5, kind_kernel = 10,
              kind_external_id = 39;
constexpr int own_external_ids = 3;  // CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0

// What lies at an address that may not be aligned for it.
template <class T>
T read_unaligned(const uint8_t* record) {
    T value;
    std::memcpy(&value, record, sizeof value);
    return value;
}

// Adds what a record says to the trace; records of other kinds say nothing.
void add_record(CuptiTrace& trace, const uint8_t* record);

}  // namespace xpurt::cuda
