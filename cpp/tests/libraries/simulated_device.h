// The device of simulated_driver.cpp: host memory, queues of work, graphs, and a watcher. Queued work runs
// only when it is waited for. Included by that file only.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "simulated_watch.h"

namespace {

using Work = std::function<void()>;
struct SimulatedEvent;
struct SimulatedStream;
struct StreamPosition {  // the position of a recorded event: reached when `count` items of the stream are
                         // done
    SimulatedStream* stream = nullptr;
    uint64_t count = 0;
};
struct QueueItem {
    Work work;
    StreamPosition wait{};
};
std::atomic<uint64_t> node_numbers{0};
std::atomic<uint32_t> launches{0};
simulated::Watcher* watcher = nullptr;  // notified of calls and of completed work

struct SimulatedNode {
    void (*function)(void**, const unsigned*) = nullptr;
    unsigned grid[3] = {1, 1, 1}, block[3] = {1, 1, 1}, shared = 0;
    std::string name;
    simulated::WorkKind kind = simulated::kernel;
    size_t bytes = 0;
    uint64_t number = 0;       // of a graph node
    uint32_t correlation = 0;  // of the call that launched it
    std::vector<uint64_t> params;
    Work other;  // used instead of a kernel
};
struct SimulatedGraph {
    std::vector<SimulatedNode*> nodes;
    ~SimulatedGraph() {
        for (SimulatedNode* node : nodes) delete node;
    }
};
struct SimulatedGraphExec {
    std::map<SimulatedNode*, SimulatedNode> nodes;  // by the captured node
    std::vector<SimulatedNode*> order;
};
struct SimulatedStream {
    std::deque<QueueItem> queue;
    uint64_t put = 0, done = 0;
    SimulatedGraph* capturing = nullptr;
    SimulatedNode* last = nullptr;
    void* context = nullptr;  // of the device that it was created on
};
struct SimulatedEvent {
    StreamPosition mark;
    void* context = nullptr;
};
struct SimulatedKernel {
    void (*function)(void**, const unsigned*);
    int params;
    std::string name;
};
struct SimulatedLibrary {
    void* handle;
    std::map<std::string, SimulatedKernel*> kernels;
};

std::recursive_mutex mutex;
std::set<SimulatedStream*> streams;
auto& destroyed_streams =
    *new std::vector<SimulatedStream*>;  // reachable until the process ends, so not a leak
std::map<uint64_t, size_t> blocks;
struct InjectedFailure {
    int result;
    long after;  // calls that succeed before the failure
};
std::map<std::string, InjectedFailure> failures;
std::map<std::string, int> calls;
SimulatedStream legacy;
size_t limit = size_t{1} << 30, used = 0, high = 0, reserved = 0;
thread_local std::vector<void*> contexts;
constexpr int max_devices = 8, wrong_context = 201;  // CUDA_ERROR_INVALID_CONTEXT
char device_contexts[max_devices];

#define ENTER                                                      \
    const std::lock_guard<std::recursive_mutex> lock(mutex);       \
    ++calls[__func__];                                             \
    if (const auto failing = failures.find(__func__);              \
        failing != failures.end() && failing->second.after-- <= 0) \
    return failing->second.result

// True if work may be queued on a stream in the current context.
bool is_current(void* stream) {
    const void* const own = stream == nullptr ? nullptr : static_cast<SimulatedStream*>(stream)->context;
    return own == nullptr || (!contexts.empty() && own == contexts.back());
}

SimulatedStream& at(void* stream) {
    return stream == nullptr ? legacy : *static_cast<SimulatedStream*>(stream);
}

void drain(SimulatedStream& stream, uint64_t until) {
    while (stream.done < until && !stream.queue.empty()) {
        QueueItem item = std::move(stream.queue.front());
        stream.queue.pop_front();
        if (item.wait.stream != nullptr) drain(*item.wait.stream, item.wait.count);
        if (item.work) item.work();
        ++stream.done;
    }
}

void drain_all() {
    drain(legacy, legacy.put);
    for (SimulatedStream* stream : streams) drain(*stream, stream->put);
}

void run(const SimulatedNode& node) {
    if (watcher != nullptr && node.kind != simulated::nothing)
        watcher->ran({node.kind, node.name.c_str(), node.grid, node.block, node.shared, node.bytes,
                      node.correlation, node.number});
    if (node.other) return node.other();
    std::vector<uint64_t> values = node.params;
    std::vector<void*> params;
    for (uint64_t& value : values) params.push_back(&value);
    node.function(params.data(), node.grid);
}

uint32_t called() {
    const uint32_t correlation = ++launches;
    if (watcher != nullptr) watcher->called(correlation);
    return correlation;
}

void put(SimulatedStream& stream, SimulatedNode node) {
    if (stream.capturing != nullptr) {
        node.number = ++node_numbers;
        stream.last = new SimulatedNode(std::move(node));
        stream.capturing->nodes.push_back(stream.last);
        return;
    }
    if (node.kind != simulated::nothing && node.correlation == 0) node.correlation = called();
    stream.queue.push_back({[node = std::move(node)] { run(node); }});
    ++stream.put;
}

void put_other(SimulatedStream& stream, Work work, simulated::WorkKind kind = simulated::nothing,
               size_t bytes = 0) {
    SimulatedNode node;
    node.other = std::move(work);
    node.kind = kind;
    node.bytes = bytes;
    put(stream, std::move(node));
}

// Instantiate a graph: each of its nodes is cloned from a captured one.
void clone(SimulatedGraphExec& to, const std::vector<SimulatedNode*>& from) {
    to.nodes.clear();
    to.order = from;
    for (SimulatedNode* node : from) {
        SimulatedNode& result = to.nodes.emplace(node, *node).first->second;
        result.number = ++node_numbers;
        if (watcher != nullptr) watcher->cloned(&result, node);
    }
}

template <class Params>
void fill(SimulatedNode& node, const SimulatedKernel& kernel, const Params& from, void** params) {
    node.function = kernel.function;
    node.name = kernel.name;
    node.block[0] = from.blockDimX, node.block[1] = from.blockDimY, node.block[2] = from.blockDimZ;
    node.shared = from.shared;
    node.grid[0] = from.gridDimX, node.grid[1] = from.gridDimY, node.grid[2] = from.gridDimZ;
    node.params.clear();
    for (int i = 0; i < kernel.params; ++i) node.params.push_back(*static_cast<uint64_t*>(params[i]));
}

}  // namespace
