// cuda/cupti.cpp: CUPTI's function table, record buffers and sessions.
#include "backends/cuda/cupti.h"

#include <cstdlib>
#include <vector>

#include "backends/cuda/libraries/vendor_library.h"
#include "base/log.h"
#include "xpurt/library.h"

namespace xpurt::cuda {
namespace {

using Subscriber = void*;
using BufferRequested = void (*)(uint8_t**, size_t*, size_t*);
using BufferCompleted = void (*)(void*, uint32_t, uint8_t*, size_t, size_t);
using Callback = void (*)(void*, int, uint32_t, const void*);

// name, type
#define XPURT_CUPTI_SYMBOLS(X)                                                      \
    X(cuptiGetVersion, ResultCode(uint32_t*))                                       \
    X(cuptiGetResultString, ResultCode(int, const char**))                          \
    X(cuptiActivityRegisterCallbacks, ResultCode(BufferRequested, BufferCompleted)) \
    X(cuptiActivityEnable, ResultCode(int))                                         \
    X(cuptiActivityDisable, ResultCode(int))                                        \
    X(cuptiActivityFlushAll, ResultCode(uint32_t))                                  \
    X(cuptiActivityGetNextRecord, ResultCode(uint8_t*, size_t, uint8_t**))          \
    X(cuptiActivityGetNumDroppedRecords, ResultCode(CUcontext, uint32_t, size_t*))  \
    X(cuptiActivityPushExternalCorrelationId, ResultCode(int, uint64_t))            \
    X(cuptiActivityPopExternalCorrelationId, ResultCode(int, uint64_t*))            \
    X(cuptiSubscribe, ResultCode(Subscriber*, Callback, void*))                     \
    X(cuptiUnsubscribe, ResultCode(Subscriber))                                     \
    X(cuptiEnableCallback, ResultCode(uint32_t, Subscriber, int, uint32_t))         \
    X(cuptiGetGraphNodeId, ResultCode(CUgraphNode, uint64_t*))

struct CuptiApi {
#define XPURT_MEMBER(name, type) std::add_pointer_t<type> name = nullptr;
    XPURT_CUPTI_SYMBOLS(XPURT_MEMBER)
#undef XPURT_MEMBER

    explicit CuptiApi(const Library& library) {
        size_t index = 0;
#define XPURT_FILL(name, type) name = reinterpret_cast<std::add_pointer_t<type>>(library.address(index++));
        XPURT_CUPTI_SYMBOLS(XPURT_FILL)
#undef XPURT_FILL
    }
};

// Values of cupti_activity.h, cupti_callbacks.h and cupti_result.h.
constexpr uint32_t oldest_version = 19;
constexpr int activity_kinds[] = {kind_kernel, kind_copy,    kind_fill,
                                  kind_driver, kind_runtime, kind_external_id};
constexpr int resources = 3, node_cloned = 20;
constexpr uint32_t flush_forced = 1;
constexpr int not_permitted = 35, no_virtual_device = 33, multiple_subscribers = 39;

struct CuptiResourceData {  // of a resource callback
    void *context, *stream;
    const void* described;  // for graph events: a CuptiGraphData
};
struct CuptiGraphData {
    void *graph, *original_graph;
    CUgraphNode node, original;
};

// The state of the current session. CUPTI's buffer callbacks take no user data, so there is one per process.
struct CuptiCollector {
    std::mutex session, mutex;
    CuptiTrace trace;
    const CuptiApi* functions = nullptr;
    size_t buffer_bytes = size_t{1} << 20;
    int max_buffers = 64, in_use = 0;
    // Never freed: after a forced flush, CUPTI may still complete records of other threads' work in a buffer.
    std::vector<uint8_t*> idle;
};

CuptiCollector& collector() {
    static CuptiCollector& instance =
        *new CuptiCollector;  // never freed: CUPTI may call back at process exit
    return instance;
}

void on_buffer_requested(uint8_t** buffer, size_t* size, size_t* max_records) {
    CuptiCollector& state = collector();
    const std::lock_guard<std::mutex> lock(state.mutex);
    *max_records = 0;
    *buffer = nullptr;
    if (state.in_use < state.max_buffers) {
        if (state.idle.empty()) {
            *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, state.buffer_bytes));
        } else {
            *buffer = state.idle.back();
            state.idle.pop_back();
        }
    }
    *size = *buffer == nullptr ? 0 : state.buffer_bytes;
    if (*buffer != nullptr) ++state.in_use;
}

void on_buffer_completed(void*, uint32_t, uint8_t* buffer, size_t size, size_t valid) {
    CuptiCollector& state = collector();
    const std::lock_guard<std::mutex> lock(state.mutex);
    if (buffer == nullptr) return;
    --state.in_use;
    uint8_t* record = nullptr;
    while (valid > 0 && state.functions != nullptr &&
           state.functions->cuptiActivityGetNextRecord(buffer, valid, &record) == 0)
        add_record(state.trace, record);
    if (size == state.buffer_bytes)
        state.idle.push_back(buffer);
    else
        std::free(buffer);  // a test has set another size
    size_t dropped = 0;
    if (state.functions != nullptr &&
        state.functions->cuptiActivityGetNumDroppedRecords(nullptr, 0, &dropped) == 0)
        state.trace.dropped += static_cast<int64_t>(dropped);
}

void on_resource_event(void*, int domain, uint32_t event, const void* data) {
    if (domain != resources || event != node_cloned || data == nullptr) return;
    const auto resource = read_unaligned<CuptiResourceData>(static_cast<const uint8_t*>(data));
    if (resource.described == nullptr) return;
    const auto graph_data = read_unaligned<CuptiGraphData>(static_cast<const uint8_t*>(resource.described));
    if (graph_data.node == nullptr || graph_data.original == nullptr) return;
    CuptiCollector& state = collector();
    uint64_t node = 0, original = 0;
    if (state.functions->cuptiGetGraphNodeId(graph_data.node, &node) != 0 ||
        state.functions->cuptiGetGraphNodeId(graph_data.original, &original) != 0)
        return;
    const std::lock_guard<std::mutex> lock(state.mutex);
    state.trace.cloned_from[node] = original;
}

std::string version_text(uint32_t version) {
    // Since 13.0: 10000 * major + 100 * minor. Before, toolkits were counted; 19 is CUDA 12.0.
    if (version >= 130000) return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100);
    constexpr const char* counted[] = {"12.0", "12.2", "12.3", "12.4", "12.5",
                                       "12.6", "12.7", "12.8", "12.9", "12.9"};
    return version >= oldest_version && version < oldest_version + 10 ? counted[version - oldest_version]
                                                                      : "version " + std::to_string(version);
}

Status cupti_error(const CuptiApi& f, const char* call, int result) {
    const char* name = nullptr;
    if (f.cuptiGetResultString(result, &name) != 0) name = nullptr;
    const std::string text =
        std::string(call) + " returned " + (name != nullptr ? name : std::to_string(result));
    switch (result) {
        case not_permitted:
            return {Code::call_failed, text,
                    "The driver lets only administrators trace: load its kernel module with "
                    "NVreg_RestrictProfilingToAdminUsers=0, or give the container CAP_SYS_ADMIN."};
        case no_virtual_device:
            return {Code::call_failed, text, "This virtual GPU does not let guests trace."};
        case multiple_subscribers:
            return {Code::call_failed, text, "Another profiler is attached to this process: stop it first."};
        default:
            return {Code::call_failed, text, "Use a CUPTI that is no newer than the driver."};
    }
}

// Log a failure while a session ends: the run is over and its results are valid.
void log_if_failed(const CuptiApi& f, const char* call, int result) {
    if (result != 0) log_failure(cupti_error(f, call, result));
}

}  // namespace

Status CuptiSession::begin(CuptiSession& session) {
    Status status;
    const CuptiApi* const f = load_api<CuptiApi>(cupti_library(), &status);
    if (f == nullptr) return status;
    uint32_t version = 0;
    if (const int result = f->cuptiGetVersion(&version); result != 0)
        return cupti_error(*f, "cuptiGetVersion", result);
    if (version < oldest_version)
        return {Code::unsupported,
                cupti_library().info().path + " is CUPTI " + version_text(version) +
                    "; the oldest supported version is 12.0",
                "Update it."};
    CuptiCollector& state = collector();
    session.lock_ = std::unique_lock<std::mutex>(state.session);
    {
        const std::lock_guard<std::mutex> lock(state.mutex);
        state.functions = f;
        state.trace = {};
    }
    int result = f->cuptiActivityRegisterCallbacks(on_buffer_requested, on_buffer_completed);
    const char* call = "cuptiActivityRegisterCallbacks";
    for (const int kind : activity_kinds)
        if (result == 0) {
            result = f->cuptiActivityEnable(kind);
            call = "cuptiActivityEnable";
        }
    if (result != 0) {
        session.stop();
        return cupti_error(*f, call, result);
    }
    // Another profiler may have the only subscriber; graphs are then joined by order.
    if (f->cuptiSubscribe(&session.subscriber_, on_resource_event, nullptr) != 0) {
        session.subscriber_ = nullptr;
    } else if (f->cuptiEnableCallback(1, session.subscriber_, resources, node_cloned) != 0) {
        log_if_failed(*f, "cuptiUnsubscribe", f->cuptiUnsubscribe(session.subscriber_));
        session.subscriber_ = nullptr;
    }
    return {};
}

CuptiSession::~CuptiSession() { stop(); }

void CuptiSession::stop() {
    if (!lock_.owns_lock()) return;
    set_external_id(0);
    CuptiCollector& state = collector();
    const CuptiApi& f = *state.functions;
    for (const int kind : activity_kinds)
        log_if_failed(f, "cuptiActivityDisable", f.cuptiActivityDisable(kind));
    if (subscriber_ != nullptr) log_if_failed(f, "cuptiUnsubscribe", f.cuptiUnsubscribe(subscriber_));
    subscriber_ = nullptr;
    lock_.unlock();
}

void CuptiSession::set_external_id(uint64_t id) {
    const CuptiApi& f = *collector().functions;
    uint64_t previous = 0;
    if (has_external_id_)
        log_if_failed(f, "cuptiActivityPopExternalCorrelationId",
                      f.cuptiActivityPopExternalCorrelationId(own_external_ids, &previous));
    has_external_id_ = id != 0 && f.cuptiActivityPushExternalCorrelationId(own_external_ids, id) == 0;
}

uint64_t CuptiSession::graph_node_id(CUgraphNode node) const {
    uint64_t number = 0;
    return collector().functions->cuptiGetGraphNodeId(node, &number) == 0 ? number : 0;
}

CuptiTrace CuptiSession::end() {
    CuptiCollector& state = collector();
    set_external_id(0);
    const auto flush = [&](uint32_t how) {
        log_if_failed(*state.functions, "cuptiActivityFlushAll", state.functions->cuptiActivityFlushAll(how));
        const std::lock_guard<std::mutex> lock(state.mutex);
        return state.in_use;
    };
    // Buffers with records of work that other threads have not completed are left; they have ours, too.
    if (flush(0) > 0) flush(flush_forced);
    CuptiTrace trace;
    {
        const std::lock_guard<std::mutex> lock(state.mutex);
        std::swap(trace, state.trace);
    }
    size_t dropped = 0;
    if (state.functions->cuptiActivityGetNumDroppedRecords(nullptr, 0, &dropped) == 0)
        trace.dropped += static_cast<int64_t>(dropped);
    stop();
    return trace;
}

std::string CuptiSession::version() {
    Status reason;
    const CuptiApi* const f = load_api<CuptiApi>(cupti_library(), &reason);
    uint32_t version = 0;
    return f != nullptr && f->cuptiGetVersion(&version) == 0 ? "CUPTI " + version_text(version) : "CUPTI";
}

void limit_records(size_t bytes, int buffers) {
    CuptiCollector& state = collector();
    const std::lock_guard<std::mutex> lock(state.mutex);
    state.buffer_bytes = bytes;
    state.max_buffers = buffers;
    for (uint8_t* const buffer : state.idle) std::free(buffer);  // of another size
    state.idle.clear();
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
