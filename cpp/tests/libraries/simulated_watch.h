// The interface between the simulated driver and the simulated CUPTI. The driver exports `simulated_watch`,
// which takes a watcher, and `simulated_number`, which returns the id of a graph node.
#pragma once

#include <cstddef>
#include <cstdint>

namespace simulated {

enum WorkKind { nothing, kernel, to_device, to_host, within, fill };
struct WatchedWork {
    WorkKind kind;
    const char* name;
    const unsigned *grid, *block;
    unsigned shared;
    size_t bytes;
    uint32_t correlation;
    uint64_t node;  // 0 = not part of a graph
};
struct Watcher {
    void (*called)(uint32_t correlation);        // a call that launches work, on the caller's thread
    void (*ran)(const WatchedWork& work);        // when the work is done
    void (*cloned)(void* node, void* original);  // of graph nodes
};

}  // namespace simulated
