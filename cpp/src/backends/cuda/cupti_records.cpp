// cuda/cupti_records.cpp: the layouts of CUPTI's records.
#include "backends/cuda/cupti_records.h"

#include <cxxabi.h>

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

namespace xpurt::cuda {
namespace {

// The common prefixes of CUPTI's records. Almost every toolkit extends the kernel record, but all versions
// from CUDA 12.0 (CUpti_ActivityKernel8) to 13.5 (CUpti_ActivityKernel13) have these fields at these offsets,
// as have all copy and fill records. Checked against the headers of 12.9 and 13.5.
struct KernelRecord {
    int kind;
    uint8_t cache, padding;
    uint16_t registers;
    uint32_t partitioned[2];
    uint64_t start, end, completed;
    uint32_t device, context, stream;
    int32_t grid[3], block[3];
    int32_t static_shared, dynamic_shared;
    uint32_t local_bytes, local_total;
    uint32_t correlation;
    int64_t grid_id;
    const char* name;
    void* reserved;
    uint64_t queued, submitted;
    uint8_t launch[4];
    uint32_t shared_executed;
    uint64_t graph_node;
};
struct CopyRecord {
    int kind;
    uint8_t direction, from, to, flags;
    uint64_t bytes, start, end;
    uint32_t device, context, stream, correlation, runtime_correlation, padding;
    void* reserved;
    uint64_t graph_node;
};
struct FillRecord {
    int kind;
    uint32_t value;
    uint64_t bytes, start, end;
    uint32_t device, context, stream, correlation;
    uint16_t flags, memory;
    uint32_t padding;
    void* reserved;
    uint64_t graph_node;
};
struct ExternalIdRecord {
    int kind, external_kind;
    uint64_t id;
    uint32_t correlation, reserved;
};
static_assert(offsetof(KernelRecord, registers) == 6 && offsetof(KernelRecord, start) == 16 &&
                  offsetof(KernelRecord, grid) == 52 && offsetof(KernelRecord, static_shared) == 76 &&
                  offsetof(KernelRecord, correlation) == 92 && offsetof(KernelRecord, name) == 104 &&
                  offsetof(KernelRecord, graph_node) == 144 && offsetof(CopyRecord, bytes) == 8 &&
                  offsetof(CopyRecord, correlation) == 44 && offsetof(CopyRecord, graph_node) == 64 &&
                  offsetof(FillRecord, correlation) == 44 && offsetof(FillRecord, graph_node) == 64 &&
                  offsetof(ExternalIdRecord, id) == 8 && sizeof(ExternalIdRecord) == 24,
              "as cupti_activity.h has them");

std::string demangled(const char* mangled) {
    if (mangled == nullptr) return "";
    int status = 0;
    const std::unique_ptr<char, decltype(&std::free)> text(
        abi::__cxa_demangle(mangled, nullptr, nullptr, &status), &std::free);
    return status == 0 && text != nullptr ? text.get() : mangled;
}

const char* direction_of(uint8_t kind) {
    switch (kind) {  // CUpti_ActivityMemcpyKind
        case 1:
            return "copy to the device";
        case 2:
            return "copy to the host";
        case 8:
            return "copy on the device";
        default:
            return "copy";
    }
}

void set_times(DeviceActivity& activity, uint64_t start, uint64_t end) {
    activity.start_ns = static_cast<int64_t>(start);
    activity.duration_ns = end > start ? static_cast<int64_t>(end - start) : 0;
}

}  // namespace

void add_record(CuptiTrace& trace, const uint8_t* at) {
    ActivityRecord record;
    DeviceActivity& activity = record.activity;
    switch (read_unaligned<int>(at)) {
        case kind_kernel: {
            const auto raw = read_unaligned<KernelRecord>(at);
            activity.name = demangled(raw.name);
            for (int i = 0; i < 3; ++i) {
                activity.grid[i] = static_cast<uint32_t>(raw.grid[i]);
                activity.block[i] = static_cast<uint32_t>(raw.block[i]);
            }
            activity.registers = raw.registers;
            activity.shared_bytes = int64_t{raw.static_shared} + raw.dynamic_shared;
            activity.local_bytes = raw.local_bytes;
            set_times(activity, raw.start, raw.end);
            record.correlation = raw.correlation;
            record.graph_node = raw.graph_node;
            break;
        }
        case kind_copy: {
            const auto raw = read_unaligned<CopyRecord>(at);
            activity.kind = DeviceActivity::copy;
            activity.name = direction_of(raw.direction);
            activity.bytes = static_cast<int64_t>(raw.bytes);
            set_times(activity, raw.start, raw.end);
            record.correlation = raw.correlation;
            record.graph_node = raw.graph_node;
            break;
        }
        case kind_fill: {
            const auto raw = read_unaligned<FillRecord>(at);
            activity.kind = DeviceActivity::fill;
            activity.name = "fill";
            activity.bytes = static_cast<int64_t>(raw.bytes);
            set_times(activity, raw.start, raw.end);
            record.correlation = raw.correlation;
            record.graph_node = raw.graph_node;
            break;
        }
        case kind_external_id: {
            const auto raw = read_unaligned<ExternalIdRecord>(at);
            if (raw.external_kind == own_external_ids) trace.external_ids[raw.correlation] = raw.id;
            return;
        }
        default:  // driver and runtime calls: enabled only so that launches get external ids
            return;
    }
    trace.records.push_back(std::move(record));
}

}  // namespace xpurt::cuda
