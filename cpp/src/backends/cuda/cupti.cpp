// cuda/cupti.cpp: CUPTI's table, its buffers, and sessions.
#include "backends/cuda/cupti.h"

#include <cstdlib>
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
constexpr int kinds[] = {kind_kernel, kind_copy, kind_fill, kind_driver, kind_runtime, kind_mark};
constexpr int resources = 3, node_cloned = 20;
constexpr uint32_t flush_forced = 1;
constexpr int not_permitted = 35, no_virtual_device = 33, taken = 39;

struct ResourceData {  // of a callback about resources
    void *context, *stream;
    const void* described;  // of graphs: a GraphData
};
struct GraphData {
    void *graph, *original_graph;
    CUgraphNode node, original;
};

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

void completed(void*, uint32_t, uint8_t* buffer, size_t, size_t valid) {
    const std::unique_ptr<uint8_t, FreeBuffer> held(buffer);
    Collector& all = collector();
    const std::lock_guard<std::mutex> lock(all.mutex);
    if (buffer != nullptr) --all.buffers;
    if (all.functions == nullptr || buffer == nullptr) return;
    uint8_t* record = nullptr;
    while (valid > 0 && all.functions->cuptiActivityGetNextRecord(buffer, valid, &record) == 0)
        add_record(all.trace, record);
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
