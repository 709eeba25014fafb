// What the simulated driver tells the simulated CUPTI: the driver's library has `simulated_watch`, which
// takes a watcher, and `simulated_number`, which gives a graph node's number.
#pragma once

#include <cstddef>
#include <cstdint>

namespace simulated {

enum Kind { nothing, kernel, to_device, to_host, within, fill };
struct Work {
    Kind kind;
    const char* name;
    const unsigned *grid, *block;
    unsigned shared;
    size_t bytes;
    uint32_t correlation;
    uint64_t node;  // 0: from no graph
};
struct Watcher {
    void (*called)(uint32_t correlation);        // a call that launches something, on the caller's thread
    void (*ran)(const Work& work);               // when it is done
    void (*cloned)(void* node, void* original);  // of graphs
};

}  // namespace simulated
