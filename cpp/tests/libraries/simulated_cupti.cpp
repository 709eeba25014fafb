// A CUPTI over the simulated driver: the part of the activity API that the core uses, with the record layouts
// of a selected version. It finds the driver among the libraries of the process.
#include <dlfcn.h>
#include <link.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "simulated_watch.h"

namespace {

using Requested = void (*)(uint8_t**, size_t*, size_t*);
using Completed = void (*)(void*, uint32_t, uint8_t*, size_t, size_t);
using Callback = void (*)(void*, int, uint32_t, const void*);

std::recursive_mutex mutex;
std::map<std::string, int> failures;
uint32_t version = 130500;
bool tells_clones = true;
Requested requested = nullptr;
Completed completed = nullptr;
Callback callback = nullptr;
bool resources = false;
std::map<int, bool> enabled;
uint8_t* buffer = nullptr;
size_t room = 0, used = 0, dropped = 0;
uint64_t clock_ns = 1000;
std::set<std::string> names;  // must outlive the records that point to them
thread_local std::vector<uint64_t> ids;
uint64_t (*number_of)(void*) = nullptr;

#define ENTER                                                \
    const std::lock_guard<std::recursive_mutex> lock(mutex); \
    if (const auto failing = failures.find(__func__); failing != failures.end()) return failing->second

// The size of a record by its kind and the version.
size_t size_of(int kind) {
    if (kind == 39) return 24;
    if (kind != 10) return 88 + (kind == 1 && version >= 28 ? 8 : 0);
    return version >= 130500 ? 248 : version >= 130000 ? 216 : version >= 20 ? 208 : 200;
}

void flush() {
    if (buffer == nullptr) return;
    uint8_t* const full = buffer;
    buffer = nullptr;
    completed(nullptr, 0, full, room, used);
    used = 0;
}

template <class Fill>
void record(int kind, Fill fill) {
    if (!enabled[kind]) return;
    const size_t size = size_of(kind);
    if (buffer != nullptr && used + size > room) flush();
    if (buffer == nullptr) {
        size_t max_records = 0;
        requested(&buffer, &room, &max_records);
        used = 0;
    }
    if (buffer == nullptr || used + size > room) {
        ++dropped;
        return;
    }
    uint8_t* const at = buffer + used;
    std::memset(at, 0xee, size);  // unset fields are arbitrary
    const auto put = [at](size_t offset, auto value) { std::memcpy(at + offset, &value, sizeof value); };
    put(0, int32_t{kind});
    fill(put);
    used += size;
}

void called(uint32_t correlation) {
    const std::lock_guard<std::recursive_mutex> lock(mutex);
    if (!ids.empty() && (enabled[4] || enabled[5]))
        record(39, [&](auto put) {
            put(4, int32_t{3});
            put(8, ids.back());
            put(16, correlation);
        });
}

void ran(const simulated::WatchedWork& work) {
    const std::lock_guard<std::recursive_mutex> lock(mutex);
    const uint64_t start = clock_ns, end = clock_ns += 1000;
    if (work.kind == simulated::kernel)
        return record(10, [&](auto put) {
            put(6, uint16_t{40});
            put(16, start);
            put(24, end);
            for (size_t i = 0; i < 3; ++i) {
                put(52 + 4 * i, work.grid[i]);
                put(64 + 4 * i, work.block[i]);
            }
            put(76, int32_t{128});
            put(80, static_cast<int32_t>(work.shared));
            put(84, uint32_t{0});
            put(92, work.correlation);
            put(104, names.emplace(work.name).first->c_str());
            put(144, work.node);
        });
    const bool fill = work.kind == simulated::fill;
    record(fill ? 2 : 1, [&](auto put) {
        if (!fill)
            put(4, uint8_t(work.kind == simulated::to_device ? 1 : work.kind == simulated::to_host ? 2 : 8));
        put(8, uint64_t{work.bytes});
        put(16, start);
        put(24, end);
        put(44, work.correlation);
        put(64, work.node);
    });
}

void cloned(void* node, void* original) {
    const void* const graph[] = {nullptr, nullptr, node, original};  // CUpti_GraphData
    const void* const data[] = {nullptr, nullptr, graph};            // CUpti_ResourceData
    if (callback != nullptr && resources && tells_clones) callback(nullptr, 3, 20, data);
}

simulated::Watcher watcher{called, ran, cloned};

int find_driver(dl_phdr_info* info, size_t, void*) {
    void* const handle = dlopen(info->dlpi_name, RTLD_NOW | RTLD_NOLOAD);
    if (handle == nullptr) return 0;
    auto* const watch = reinterpret_cast<void (*)(simulated::Watcher*)>(dlsym(handle, "simulated_watch"));
    if (watch == nullptr) return 0;
    watch(&watcher);
    number_of = reinterpret_cast<uint64_t (*)(void*)>(dlsym(handle, "simulated_number"));
    return 1;
}

}  // namespace

extern "C" {

// Controls for tests.
void simulated_cupti(uint32_t as, int clones) {
    version = as;
    tells_clones = clones != 0;
}
void simulated_cupti_fail(const char* call, int result) {
    if (result == 0)
        failures.erase(call);
    else
        failures[call] = result;
}

int cuptiGetVersion(uint32_t* version_out) { return *version_out = version, 0; }
int cuptiGetResultString(int result, const char** name) {
    return *name = result == 35   ? "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"
                   : result == 39 ? "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED"
                                  : "CUPTI_ERROR_UNKNOWN",
           0;
}
int cuptiActivityRegisterCallbacks(Requested request, Completed complete) {
    ENTER;
    requested = request, completed = complete;
    return dl_iterate_phdr(find_driver, nullptr) == 1 ? 0 : 15;
}
int cuptiActivityEnable(int kind) {
    ENTER;
    return enabled[kind] = true, 0;
}
int cuptiActivityDisable(int kind) {
    ENTER;
    return enabled[kind] = false, 0;
}
int cuptiActivityFlushAll(uint32_t) {
    ENTER;
    return flush(), 0;
}
int cuptiActivityGetNextRecord(uint8_t* from, size_t valid, uint8_t** at) {
    uint8_t* next = from;
    if (*at != nullptr) {
        int32_t kind = 0;
        std::memcpy(&kind, *at, sizeof kind);
        next = *at + size_of(kind);
    }
    return next >= from + valid ? 12 : (*at = next, 0);
}
int cuptiActivityGetNumDroppedRecords(void*, uint32_t, size_t* count) {
    ENTER;
    *count = dropped;
    return dropped = 0, 0;
}
int cuptiActivityPushExternalCorrelationId(int, uint64_t id) { return ids.push_back(id), 0; }
int cuptiActivityPopExternalCorrelationId(int, uint64_t* id) {
    if (ids.empty()) return 18;
    *id = ids.back();
    return ids.pop_back(), 0;
}
int cuptiSubscribe(void** subscriber, Callback to, void*) {
    ENTER;
    if (callback != nullptr) return 39;
    callback = to;
    return *subscriber = &callback, 0;
}
int cuptiUnsubscribe(void*) {
    ENTER;
    return callback = nullptr, resources = false, 0;
}
int cuptiEnableCallback(uint32_t enable, void*, int domain, uint32_t event) {
    ENTER;
    if (domain == 3 && event == 20) resources = enable != 0;
    return 0;
}
int cuptiGetGraphNodeId(void* node, uint64_t* number) { return *number = number_of(node), 0; }
}
