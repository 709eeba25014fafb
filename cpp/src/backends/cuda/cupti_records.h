// cuda/cupti_records.h: parsing of CUPTI's activity records.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <vector>

#include "xpurt/observation.h"

namespace xpurt::cuda {

// An activity before it is joined to a call of the plan.
struct ActivityRecord {
    DeviceActivity activity;
    uint32_t correlation = 0;  // of the driver or runtime call that launched it
    uint64_t graph_node = 0;   // 0 = not part of a graph
};

struct CuptiTrace {
    std::vector<ActivityRecord> records;
    std::map<uint32_t, uint64_t> external_ids;  // correlation id to external id
    std::map<uint64_t, uint64_t>
        cloned_from;  // graph node that ran, to the captured node that it was cloned from
    int64_t dropped = 0;
};

// Values from cupti_activity.h: the kinds of records, and the kind of external ids that we use.
constexpr int kind_copy = 1, kind_fill = 2, kind_driver = 4, kind_runtime = 5, kind_kernel = 10,
              kind_external_id = 39;
constexpr int own_external_ids = 3;  // CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0

// Read a value from an address that may not be aligned for it.
template <class T>
T read_unaligned(const uint8_t* record) {
    T value;
    std::memcpy(&value, record, sizeof value);
    return value;
}

// Add a record to the trace. Records of other kinds are ignored.
void add_record(CuptiTrace& trace, const uint8_t* record);

}  // namespace xpurt::cuda
