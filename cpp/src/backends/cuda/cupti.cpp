// cuda/cupti.cpp: CUPTI's table, its buffers, and its records read field by field.
#include "backends/cuda/cupti.h"

#include <cxxabi.h>

#include <cstdlib>
#include <cstring>
#include <memory>

#include "backends/cuda/libraries/vendor.h"
#include "xpurt/library.h"

namespace xpurt::cuda {
namespace {

using Subscriber = void*;
using BufferRequested = void (*)(uint8_t**, size_t*, size_t*);
using BufferCompleted = void (*)(void*, uint32_t, uint8_t*, size_t, size_t);
using Callback = void (*)(void*, int, uint32_t, const void*);

// name, CUPTI's version that introduced it, type. Its versions count toolkits: 19 is that of CUDA 12.0.
#define XPURT_CUPTI_SYMBOLS(X)                                               \
    X(cuptiGetVersion, int(uint32_t*))                                       \
    X(cuptiGetResultString, int(int, const char**))                          \
    X(cuptiActivityRegisterCallbacks, int(BufferRequested, BufferCompleted)) \
    X(cuptiActivityEnable, int(int))                                         \
    X(cuptiActivityDisable, int(int))                                        \
    X(cuptiActivityFlushAll, int(uint32_t))                                  \
    X(cuptiActivityGetNextRecord, int(uint8_t*, size_t, uint8_t**))          \
    X(cuptiActivityGetNumDroppedRecords, int(CUcontext, uint32_t, size_t*))  \
    X(cuptiActivityPushExternalCorrelationId, int(int, uint64_t))            \
    X(cuptiActivityPopExternalCorrelationId, int(int, uint64_t*))            \
    X(cuptiSubscribe, int(Subscriber*, Callback, void*))                     \
    X(cuptiUnsubscribe, int(Subscriber))                                     \
    X(cuptiEnableCallback, int(uint32_t, Subscriber, int, uint32_t))         \
    X(cuptiGetGraphNodeId, int(CUgraphNode, uint64_t*))

struct Functions {
#define XPURT_MEMBER(name, type) std::add_pointer_t<type> name = nullptr;
    XPURT_CUPTI_SYMBOLS(XPURT_MEMBER)
#undef XPURT_MEMBER

    explicit Functions(const Library& library) {
        size_t index = 0;
#define XPURT_FILL(name, type) name = reinterpret_cast<std::add_pointer_t<type>>(library.address(index++));
        XPURT_CUPTI_SYMBOLS(XPURT_FILL)
#undef XPURT_FILL
    }
};

// Values of cupti_activity.h, cupti_callbacks.h and cupti_result.h.
constexpr uint32_t oldest = 19;
constexpr int kind_copy = 1, kind_fill = 2, kind_driver = 4, kind_runtime = 5, kind_kernel = 10,
              kind_mark = 39;
constexpr int kinds[] = {kind_kernel, kind_copy, kind_fill, kind_driver, kind_runtime, kind_mark};
constexpr int own_marks = 3;  // CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0
constexpr int resources = 3, node_cloned = 20;
constexpr uint32_t flush_forced = 1;
constexpr int not_permitted = 35, no_virtual_device = 33, taken = 39;

// The heads of CUPTI's records. It has a new layout of a kernel's record with almost every toolkit, and says
// by its version which one it writes; all from CUDA 12.0's (CUpti_ActivityKernel8) to 13.5's (Kernel13) have
// these fields at these places, as do all of a copy's and a fill's. Held against the headers of 12.9
// and 13.5.
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
struct MarkRecord {
    int kind, marks;
    uint64_t id;
    uint32_t correlation, reserved;
};
struct ResourceData {  // of a callback about resources
    void *context, *stream;
    const void* described;  // of graphs: a GraphData
};
struct GraphData {
    void *graph, *original_graph;
    CUgraphNode node, original;
};
static_assert(offsetof(KernelRecord, registers) == 6 && offsetof(KernelRecord, start) == 16 &&
                  offsetof(KernelRecord, grid) == 52 && offsetof(KernelRecord, static_shared) == 76 &&
                  offsetof(KernelRecord, correlation) == 92 && offsetof(KernelRecord, name) == 104 &&
                  offsetof(KernelRecord, graph_node) == 144 && offsetof(CopyRecord, bytes) == 8 &&
                  offsetof(CopyRecord, correlation) == 44 && offsetof(CopyRecord, graph_node) == 64 &&
                  offsetof(FillRecord, correlation) == 44 && offsetof(FillRecord, graph_node) == 64 &&
                  offsetof(MarkRecord, id) == 8 && sizeof(MarkRecord) == 24,
              "as cupti_activity.h has them");

struct FreeBuffer {
    void operator()(uint8_t* p) const noexcept { std::free(p); }
};

// CUPTI's callbacks have no word of their client's, so there is one of these.
struct Collector {
    std::mutex session, mutex;
    Trace trace;
    const Functions* functions = nullptr;
    size_t buffer_bytes = size_t{1} << 20;
    int most_buffers = 64, buffers = 0;
};

Collector& collector() {
    static Collector& made = *new Collector;  // CUPTI may call at the process's end
    return made;
}

void requested(uint8_t** buffer, size_t* size, size_t* most_records) {
    Collector& all = collector();
    const std::lock_guard<std::mutex> lock(all.mutex);
    const bool room = all.buffers < all.most_buffers;
    *most_records = 0;
    *size = room ? all.buffer_bytes : 0;
    *buffer = room ? static_cast<uint8_t*>(std::aligned_alloc(8, all.buffer_bytes)) : nullptr;
    if (*buffer != nullptr) ++all.buffers;
}

std::string written(const char* mangled) {
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

template <class T>
T head_of(const uint8_t* record) {
    T made;
    std::memcpy(&made, record, sizeof made);
    return made;
}

void time_of(Seen& seen, uint64_t start, uint64_t end) {
    seen.start_ns = static_cast<int64_t>(start);
    seen.duration_ns = end > start ? static_cast<int64_t>(end - start) : 0;
}

void take(Trace& trace, const uint8_t* at) {
    Record record;
    Seen& seen = record.seen;
    switch (head_of<int>(at)) {
        case kind_kernel: {
            const auto found = head_of<KernelRecord>(at);
            seen.name = written(found.name);
            for (int i = 0; i < 3; ++i) {
                seen.grid[i] = static_cast<uint32_t>(found.grid[i]);
                seen.block[i] = static_cast<uint32_t>(found.block[i]);
            }
            seen.registers = found.registers;
            seen.shared_bytes = int64_t{found.static_shared} + found.dynamic_shared;
            seen.local_bytes = found.local_bytes;
            time_of(seen, found.start, found.end);
            record.correlation = found.correlation;
            record.graph_node = found.graph_node;
            break;
        }
        case kind_copy: {
            const auto found = head_of<CopyRecord>(at);
            seen.kind = Seen::copy;
            seen.name = direction_of(found.direction);
            seen.bytes = static_cast<int64_t>(found.bytes);
            time_of(seen, found.start, found.end);
            record.correlation = found.correlation;
            record.graph_node = found.graph_node;
            break;
        }
        case kind_fill: {
            const auto found = head_of<FillRecord>(at);
            seen.kind = Seen::fill;
            seen.name = "fill";
            seen.bytes = static_cast<int64_t>(found.bytes);
            time_of(seen, found.start, found.end);
            record.correlation = found.correlation;
            record.graph_node = found.graph_node;
            break;
        }
        case kind_mark: {
            const auto found = head_of<MarkRecord>(at);
            if (found.marks == own_marks) trace.marks[found.correlation] = found.id;
            return;
        }
        default:  // calls of the driver and the runtime: there so that launches get their marks
            return;
    }
    trace.records.push_back(std::move(record));
}

void completed(void*, uint32_t, uint8_t* buffer, size_t, size_t valid) {
    const std::unique_ptr<uint8_t, FreeBuffer> held(buffer);
    Collector& all = collector();
    const std::lock_guard<std::mutex> lock(all.mutex);
    if (buffer != nullptr) --all.buffers;
    if (all.functions == nullptr || buffer == nullptr) return;
    uint8_t* record = nullptr;
    while (valid > 0 && all.functions->cuptiActivityGetNextRecord(buffer, valid, &record) == 0)
        take(all.trace, record);
    size_t dropped = 0;
    if (all.functions->cuptiActivityGetNumDroppedRecords(nullptr, 0, &dropped) == 0)
        all.trace.dropped += static_cast<int64_t>(dropped);
}

void told(void*, int domain, uint32_t event, const void* data) {
    if (domain != resources || event != node_cloned || data == nullptr) return;
    const auto resource = head_of<ResourceData>(static_cast<const uint8_t*>(data));
    if (resource.described == nullptr) return;
    const auto found = head_of<GraphData>(static_cast<const uint8_t*>(resource.described));
    if (found.node == nullptr || found.original == nullptr) return;
    Collector& all = collector();
    uint64_t node = 0, original = 0;
    if (all.functions->cuptiGetGraphNodeId(found.node, &node) != 0 ||
        all.functions->cuptiGetGraphNodeId(found.original, &original) != 0)
        return;
    const std::lock_guard<std::mutex> lock(all.mutex);
    all.trace.made_from[node] = original;
}

std::string version_text(uint32_t version) {
    // From 13.0 on 10000 times the major; before, toolkits were counted.
    if (version >= 130000) return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100);
    constexpr const char* counted[] = {"12.0", "12.2", "12.3", "12.4", "12.5",
                                       "12.6", "12.7", "12.8", "12.9", "12.9"};
    return version >= oldest && version < oldest + 10 ? counted[version - oldest]
                                                      : "of version " + std::to_string(version);
}

Status refused(const Functions& f, const char* call, int result) {
    const char* name = nullptr;
    f.cuptiGetResultString(result, &name);
    const std::string text =
        std::string(call) + " returned " + (name != nullptr ? name : std::to_string(result));
    switch (result) {
        case not_permitted:
            return {Code::call_failed, text,
                    "The driver lets only administrators trace: load its kernel module with "
                    "NVreg_RestrictProfilingToAdminUsers=0, or give the container CAP_SYS_ADMIN."};
        case no_virtual_device:
            return {Code::call_failed, text, "This virtual GPU does not let guests trace."};
        case taken:
            return {Code::call_failed, text, "Another profiler watches this process: end it first."};
        default:
            return {Code::call_failed, text, "Use a CUPTI that is no newer than the driver."};
    }
}

}  // namespace

Status CuptiSession::begin(CuptiSession& session) {
    Status status;
    const Functions* const f = functions_of<Functions>(cupti_library(), &status);
    if (f == nullptr) return status;
    uint32_t version = 0;
    if (const int result = f->cuptiGetVersion(&version); result != 0)
        return refused(*f, "cuptiGetVersion", result);
    if (version < oldest)
        return {Code::unsupported,
                cupti_library().info().path + " is CUPTI " + version_text(version) +
                    "; 12.0 is the oldest that is read",
                "Update it."};
    Collector& all = collector();
    session.lock_ = std::unique_lock<std::mutex>(all.session);
    {
        const std::lock_guard<std::mutex> lock(all.mutex);
        all.functions = f;
        all.trace = {};
    }
    int result = f->cuptiActivityRegisterCallbacks(requested, completed);
    const char* call = "cuptiActivityRegisterCallbacks";
    for (const int kind : kinds)
        if (result == 0) {
            result = f->cuptiActivityEnable(kind);
            call = "cuptiActivityEnable";
        }
    if (result != 0) {
        session.stop();
        return refused(*f, call, result);
    }
    // Without a subscriber (a profiler may have the one that there is) graphs are joined in another way.
    if (f->cuptiSubscribe(&session.subscriber_, told, nullptr) != 0)
        session.subscriber_ = nullptr;
    else
        f->cuptiEnableCallback(1, session.subscriber_, resources, node_cloned);
    return {};
}

CuptiSession::~CuptiSession() { stop(); }

void CuptiSession::stop() {
    if (!lock_.owns_lock()) return;
    mark(0);
    Collector& all = collector();
    for (const int kind : kinds) all.functions->cuptiActivityDisable(kind);
    if (subscriber_ != nullptr) all.functions->cuptiUnsubscribe(subscriber_);
    subscriber_ = nullptr;
    lock_.unlock();
}

void CuptiSession::mark(uint64_t id) {
    const Functions& f = *collector().functions;
    uint64_t before = 0;
    if (marked_) f.cuptiActivityPopExternalCorrelationId(own_marks, &before);
    marked_ = id != 0 && f.cuptiActivityPushExternalCorrelationId(own_marks, id) == 0;
}

uint64_t CuptiSession::number_of(CUgraphNode node) const {
    uint64_t number = 0;
    return collector().functions->cuptiGetGraphNodeId(node, &number) == 0 ? number : 0;
}

Trace CuptiSession::end() {
    Collector& all = collector();
    mark(0);
    all.functions->cuptiActivityFlushAll(flush_forced);
    Trace made;
    {
        const std::lock_guard<std::mutex> lock(all.mutex);
        std::swap(made, all.trace);
    }
    size_t dropped = 0;
    if (all.functions->cuptiActivityGetNumDroppedRecords(nullptr, 0, &dropped) == 0)
        made.dropped += static_cast<int64_t>(dropped);
    stop();
    return made;
}

std::string CuptiSession::version() {
    Status why;
    const Functions* const f = functions_of<Functions>(cupti_library(), &why);
    uint32_t version = 0;
    return f != nullptr && f->cuptiGetVersion(&version) == 0 ? "CUPTI " + version_text(version) : "CUPTI";
}

void limit_records(size_t bytes, int buffers) {
    Collector& all = collector();
    const std::lock_guard<std::mutex> lock(all.mutex);
    all.buffer_bytes = bytes;
    all.most_buffers = buffers;
}

}  // namespace xpurt::cuda

namespace xpurt {

Library& cupti_library() {
    using namespace cuda;
    static Library& library = *new Library({
        "cupti",
        "NVIDIA CUPTI",
        "XPU_LIBCUPTI",
        {"libcupti.so.13", "libcupti.so.12", "libcupti.so"},
        {
#define XPURT_ROW(name, type) {#name, 11000, Need::required},
            XPURT_CUPTI_SYMBOLS(XPURT_ROW)
#undef XPURT_ROW
        },
        "pip install nvidia-cuda-cupti brings it, and so do CUDA's toolkit and PyTorch's CUDA packages.",
    });
    return library;
}

}  // namespace xpurt
