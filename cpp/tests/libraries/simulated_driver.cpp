// A CUDA driver that needs no device. Its memory is the host's, its kernels are functions of an ELF object,
// and queued work runs only when it is waited for. So missing synchronization gives wrong results, and memory
// that is freed too early is found by the address sanitizer. A mutex serializes its calls.
//
// A kernel `k` of the object is `void k(void** params, const unsigned* grid)`; `k_params` is the number of
// its parameters.
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "simulated_device.h"

namespace {

struct LaunchConfig {
    unsigned gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, shared;
    void* stream;
    void* attrs;
    unsigned count;
};
struct NodeParams {
    void* func;
    unsigned gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, shared;
    void** params;
    void** extra;
    void* kern;
    void* context;
};

}  // namespace

extern "C" {

// Controls for tests: let all calls of a function fail after the next `after` ones (result 0: stop failing),
// and set the size of memory.
void simulated_fail_after(const char* call, int result, long after) {
    const std::lock_guard<std::recursive_mutex> lock(mutex);
    if (result == 0)
        failures.erase(call);
    else
        failures[call] = {result, after};
}
// True if the failure has not occurred yet.
bool simulated_left(const char* call) {
    const std::lock_guard<std::recursive_mutex> lock(mutex);
    const auto entry = failures.find(call);
    return entry != failures.end() && entry->second.after >= 0;
}
void simulated_fail(const char* call, int result) { simulated_fail_after(call, result, 0); }
void simulated_memory(size_t bytes) { limit = bytes; }
int simulated_calls(const char* call) {
    const std::lock_guard<std::recursive_mutex> lock(mutex);
    return calls[call];
}
void simulated_watch(simulated::Watcher* who) { watcher = who; }
uint64_t simulated_number(void* node) { return static_cast<SimulatedNode*>(node)->number; }
int simulated_blocks() { return static_cast<int>(blocks.size()); }

int cuInit(unsigned) { return 0; }
int cuDriverGetVersion(int* version) { return *version = 13000, 0; }
// One device, or as many as the variable says.
int cuDeviceGetCount(int* count) {
    const char* const text = std::getenv("SIMULATED_DEVICES");
    return *count = text == nullptr ? 1 : std::atoi(text), 0;
}
int cuDeviceGet(int* device, int index) { return *device = index, 0; }
int cuDeviceGetName(char* name, int room, int) {
    return std::snprintf(name, size_t(room), "Simulated GPU"), 0;
}
int cuDeviceTotalMem_v2(size_t* bytes, int) { return *bytes = limit, 0; }
int cuDeviceGetAttribute(int* value, int attribute, int) {
    const std::map<int, int> known{{13, 1000}, {16, 2}, {36, 1000}, {75, 9}, {76, 0}, {97, 200 << 10}};
    const auto entry = known.find(attribute);
    return *value = entry == known.end() ? 0 : entry->second, 0;
}
int cuDeviceGetPCIBusId(char* id, int room, int) { return std::strncpy(id, "0000:01:00.0", size_t(room)), 0; }
int cuDeviceGetUuid_v2(unsigned char* uuid, int) { return std::memset(uuid, 7, 16), 0; }
int cuGetErrorName(int result, const char** name) {
    static const std::map<int, const char*> names{{2, "CUDA_ERROR_OUT_OF_MEMORY"},
                                                  {700, "CUDA_ERROR_ILLEGAL_ADDRESS"},
                                                  {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"}};
    const auto entry = names.find(result);
    return *name = entry == names.end() ? "CUDA_ERROR_UNKNOWN" : entry->second, 0;
}
int cuGetErrorString(int, const char** text) { return *text = "simulated", 0; }

int cuDevicePrimaryCtxRetain(void** context, int device) { return *context = &device_contexts[device], 0; }
int cuCtxGetCurrent(void** context) { return *context = contexts.empty() ? nullptr : contexts.back(), 0; }
int cuCtxPushCurrent_v2(void* context) { return contexts.push_back(context), 0; }
int cuCtxPopCurrent_v2(void** context) { return *context = contexts.back(), contexts.pop_back(), 0; }
int cuCtxSynchronize() {
    ENTER;
    return drain_all(), 0;
}

int cuMemGetInfo_v2(size_t* free, size_t* total) { return *free = limit - used, *total = limit, 0; }
int cuMemPoolCreate(void** pool, const void*) { return *pool = contexts.back(), 0; }
int cuDeviceCanAccessPeer(int* can, int, int) {
    return *can = std::getenv("SIMULATED_NO_PEERS") == nullptr, 0;
}
int cuMemPoolSetAccess(void*, const void*, size_t) { return 0; }
int cuMemPoolSetAttribute(void*, int, void*) { return 0; }
int cuMemPoolGetAttribute(void*, int attribute, void* value) {
    const std::lock_guard<std::recursive_mutex> lock(mutex);
    *static_cast<uint64_t*>(value) = attribute == 5 ? reserved : attribute == 7 ? used : high;
    return 0;
}
int cuMemPoolTrimTo(void*, size_t) {
    const std::lock_guard<std::recursive_mutex> lock(mutex);
    return reserved = used, 0;
}
int cuMemAllocFromPoolAsync(uint64_t* address, size_t bytes, void* pool, void* stream) {
    ENTER;
    if (pool != contexts.back() || !is_current(stream)) return wrong_context;
    if (used + bytes > limit) return 2;
    void* const block = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
    std::memset(block, 0xff, (bytes + 255) / 256 * 256);  // so that no code relies on zeros
    *address = reinterpret_cast<uint64_t>(block);
    blocks[*address] = bytes;
    used += bytes;
    if (used > high) high = used;
    if (used > reserved) reserved = used;
    return 0;
}
int cuMemFreeAsync(uint64_t address, void* stream) {
    ENTER;
    const size_t bytes = blocks[address];
    blocks.erase(address);
    put_other(at(stream), [address, bytes] {
        std::free(reinterpret_cast<void*>(address));
        used -= bytes;
    });
    return 0;
}
int cuMemHostAlloc(void** block, size_t bytes, unsigned) {
    ENTER;
    return *block = std::malloc(bytes), 0;
}
int cuMemFreeHost(void* block) { return std::free(block), 0; }
int cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes, void* stream) {
    ENTER;
    put_other(
        at(stream), [=] { std::memcpy(reinterpret_cast<void*>(to), from, bytes); }, simulated::to_device,
        bytes);
    return 0;
}
int cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, void* stream) {
    ENTER;
    put_other(
        at(stream), [=] { std::memcpy(to, reinterpret_cast<void*>(from), bytes); }, simulated::to_host,
        bytes);
    return 0;
}
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void* stream) {
    ENTER;
    put_other(
        at(stream), [=] { std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes); },
        simulated::within, bytes);
    return 0;
}
int cuMemcpyPeerAsync(uint64_t to, void* to_context, uint64_t from, void*, size_t bytes, void* stream) {
    ENTER;
    if (to_context != contexts.back() || !is_current(stream)) return wrong_context;
    put_other(
        at(stream), [=] { std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes); },
        simulated::within, bytes);
    return 0;
}
int cuMemsetD8Async(uint64_t to, unsigned char value, size_t bytes, void* stream) {
    ENTER;
    put_other(
        at(stream), [=] { std::memset(reinterpret_cast<void*>(to), value, bytes); }, simulated::fill, bytes);
    return 0;
}

int cuStreamCreate(void** stream, unsigned) {
    ENTER;
    auto* const result = new SimulatedStream;
    result->context = contexts.back();
    streams.insert(result);
    return *stream = result, 0;
}
int cuStreamDestroy_v2(void* stream) {
    ENTER;
    drain(at(stream), at(stream).put);
    streams.erase(static_cast<SimulatedStream*>(stream));
    destroyed_streams.push_back(
        static_cast<SimulatedStream*>(stream));  // waits and events may still refer to it
    return 0;
}
int cuStreamSynchronize(void* stream) {
    ENTER;
    return drain(at(stream), at(stream).put), 0;
}
int cuStreamQuery(void* stream) {
    ENTER;
    return at(stream).queue.empty() ? 0 : 600;
}
int cuStreamWaitEvent(void* stream, void* event, unsigned) {
    ENTER;
    const StreamPosition mark = static_cast<SimulatedEvent*>(event)->mark;
    if (mark.stream == nullptr || mark.stream->done >= mark.count) return 0;
    at(stream).queue.push_back({nullptr, mark});
    ++at(stream).put;
    return 0;
}
int cuStreamBeginCapture_v2(void* stream, int) {
    ENTER;
    return at(stream).capturing = new SimulatedGraph, at(stream).last = nullptr, 0;
}
int cuStreamEndCapture(void* stream, void** graph) {
    *graph = at(stream).capturing;
    at(stream).capturing = nullptr;
    ENTER;
    return 0;
}
int cuStreamIsCapturing(void* stream, int* status) { return *status = at(stream).capturing != nullptr, 0; }
int cuStreamGetCaptureInfo_v2(void* stream, int* status, uint64_t* id, void** graph, void* const** last,
                              size_t* count) {
    ENTER;
    if (id != nullptr) *id = reinterpret_cast<uintptr_t>(at(stream).capturing);
    if (graph != nullptr) *graph = at(stream).capturing;
    *status = at(stream).capturing != nullptr;
    if (last != nullptr) *last = reinterpret_cast<void* const*>(&at(stream).last);
    if (count != nullptr) *count = at(stream).last != nullptr;
    return 0;
}
int cuThreadExchangeStreamCaptureMode(int* mode) {
    static thread_local int current = 0;
    std::swap(current, *mode);
    return 0;
}

int cuEventCreate(void** event, unsigned) {
    ENTER;
    *event = new SimulatedEvent;
    static_cast<SimulatedEvent*>(*event)->context = contexts.back();
    return 0;
}
int cuEventDestroy_v2(void* event) { return delete static_cast<SimulatedEvent*>(event), 0; }
int cuEventRecord(void* event, void* stream) {
    ENTER;
    if (static_cast<SimulatedEvent*>(event)->context != contexts.back() || !is_current(stream))
        return wrong_context;
    static_cast<SimulatedEvent*>(event)->mark = {&at(stream), at(stream).put};
    return 0;
}
int cuEventQuery(void* event) {
    ENTER;
    const StreamPosition& mark = static_cast<SimulatedEvent*>(event)->mark;
    return mark.stream == nullptr || mark.stream->done >= mark.count ? 0 : 600;
}
int cuEventSynchronize(void* event) {
    ENTER;
    const StreamPosition& mark = static_cast<SimulatedEvent*>(event)->mark;
    if (mark.stream != nullptr) drain(*mark.stream, mark.count);
    return 0;
}
int cuEventElapsedTime(float* milliseconds, void* start, void* end) {
    *milliseconds = static_cast<float>(static_cast<SimulatedEvent*>(end)->mark.count -
                                       static_cast<SimulatedEvent*>(start)->mark.count) /
                    1000;  // one microsecond per item
    return 0;
}

int cuLibraryLoadData(void** library, const void* data, int*, void**, unsigned, int*, void**, unsigned) {
    ENTER;
    // The size of the object, from its section table, which is at its end.
    const auto* const bytes = static_cast<const unsigned char*>(data);
    uint64_t table = 0;
    uint16_t entry = 0, count = 0;
    std::memcpy(&table, bytes + 40, 8);
    std::memcpy(&entry, bytes + 58, 2);
    std::memcpy(&count, bytes + 60, 2);
    const int file = memfd_create("simulated", 0);
    const size_t size = table + size_t{entry} * count;
    if (write(file, data, size) != static_cast<ssize_t>(size)) return 200;
    void* const handle = dlopen(("/proc/self/fd/" + std::to_string(file)).c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) return 200;
    return *library = new SimulatedLibrary{handle, {}}, 0;
}
int cuLibraryUnload(void* library) {
    auto* const result = static_cast<SimulatedLibrary*>(library);
    for (auto& [name, kernel] : result->kernels) delete kernel;
    return delete result, 0;  // the object stays mapped, since the name of its file may be reused
}
int cuLibraryGetKernel(void** kernel, void* library, const char* name) {
    ENTER;
    auto* const from = static_cast<SimulatedLibrary*>(library);
    auto* const function = reinterpret_cast<void (*)(void**, const unsigned*)>(dlsym(from->handle, name));
    const auto* const params =
        static_cast<const int*>(dlsym(from->handle, (std::string(name) + "_params").c_str()));
    if (function == nullptr || params == nullptr) return 500;
    SimulatedKernel*& result = from->kernels[name];
    if (result == nullptr) result = new SimulatedKernel{function, *params, name};
    return *kernel = result, 0;
}
int cuLibraryGetGlobal(uint64_t* address, size_t* bytes, void* library, const char* name) {
    ENTER;
    void* const entry = dlsym(static_cast<SimulatedLibrary*>(library)->handle, name);
    const auto* const size = static_cast<const size_t*>(
        dlsym(static_cast<SimulatedLibrary*>(library)->handle, (std::string(name) + "_bytes").c_str()));
    if (entry == nullptr || size == nullptr) return 500;
    return *address = reinterpret_cast<uint64_t>(entry), *bytes = *size, 0;
}
int cuKernelGetAttribute(int* value, int, void*, int) { return *value = 0, 0; }
int cuKernelSetAttribute(int, int, void*, int) { return 0; }
// A map has the address, and then what it was made of.
int cuTensorMapEncodeTiled(uint64_t* map, int dtype, unsigned rank, void* address, const uint64_t* sizes,
                           const uint64_t* strides, const unsigned* tile, const unsigned* steps,
                           int interleave, int swizzle, int l2, int fill) {
    ENTER;
    if (rank != 2 || reinterpret_cast<uintptr_t>(address) % 16 != 0 || strides[0] % 16 != 0) return 1;
    const uint64_t words[] = {
        reinterpret_cast<uint64_t>(address), sizes[0], sizes[1], strides[0], tile[0], tile[1]};
    std::memcpy(map, words, sizeof words);
    return dtype == 1 && steps[0] == 1 && interleave == 0 && swizzle == 3 && l2 == 2 && fill == 0 ? 0 : 1;
}
int cuLaunchKernelEx(const LaunchConfig* config, void* kernel, void** params, void**) {
    ENTER;
    if (!is_current(config->stream)) return wrong_context;
    SimulatedNode node;
    fill(node, *static_cast<SimulatedKernel*>(kernel), *config, params);
    return put(at(config->stream), std::move(node)), 0;
}

int cuGraphInstantiateWithFlags(void** exec, void* graph, unsigned long long) {
    ENTER;
    auto* const result = new SimulatedGraphExec;
    clone(*result, static_cast<SimulatedGraph*>(graph)->nodes);
    return *exec = result, 0;
}
int cuGraphLaunch(void* exec, void* stream) {
    ENTER;
    if (!is_current(stream)) return wrong_context;
    const SimulatedGraphExec& from = *static_cast<SimulatedGraphExec*>(exec);
    const uint32_t correlation = called();
    for (SimulatedNode* node : from.order) {
        SimulatedNode launched = from.nodes.at(node);
        launched.correlation = correlation;
        put(at(stream), std::move(launched));
    }
    return 0;
}
int cuGraphGetNodes(void* graph, void** nodes, size_t* count) {
    const auto& all = static_cast<SimulatedGraph*>(graph)->nodes;
    for (size_t i = 0; nodes != nullptr && i < all.size(); ++i) nodes[i] = all[i];
    return *count = all.size(), 0;
}
int cuGraphNodeGetType(void* node, int* type) {
    const simulated::WorkKind kind = static_cast<SimulatedNode*>(node)->kind;
    return *type = kind == simulated::kernel ? 0 : kind == simulated::fill ? 2 : 1, 0;
}
int cuGraphDestroy(void* graph) { return delete static_cast<SimulatedGraph*>(graph), 0; }
int cuGraphExecDestroy(void* exec) { return delete static_cast<SimulatedGraphExec*>(exec), 0; }
int cuGraphExecUpdate_v2(void* exec, void* graph, void*) {
    ENTER;
    auto& to = *static_cast<SimulatedGraphExec*>(exec);
    const auto& from = static_cast<SimulatedGraph*>(graph)->nodes;
    if (from.size() != to.order.size()) return 910;
    for (size_t i = 0; i < from.size();
         ++i) {  // the nodes keep the ids of the graph that they were instantiated from
        SimulatedNode& node = to.nodes.at(to.order[i]);
        const uint64_t number = node.number;
        node = *from[i];
        node.number = number;
    }
    return 0;
}
int cuGraphExecKernelNodeSetParams_v2(void* exec, void* node, const NodeParams* params) {
    ENTER;
    auto& nodes = static_cast<SimulatedGraphExec*>(exec)->nodes;
    const auto at = nodes.find(static_cast<SimulatedNode*>(node));
    if (at == nodes.end()) return 1;
    SimulatedNode& entry = at->second;
    fill(entry, *static_cast<SimulatedKernel*>(params->kern), *params, params->params);
    return 0;
}
}
