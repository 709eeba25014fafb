// cuda/graph.cpp: a recording as a CUDA graph.
#include <algorithm>
#include <cstring>

#include "backends/cuda/run_state.h"

namespace xpurt::cuda {

std::vector<void*>& pointers(const KernelCall& call, void* const* args) {
    thread_local std::vector<void*> list;
    list.clear();
    for (size_t i = 0; i < call.args.size(); ++i) list.push_back(const_cast<void**>(args + i));
    for (const uint64_t& param : call.params) list.push_back(const_cast<uint64_t*>(&param));
    return list;
}

Graph::~Graph() {
    if (exec_ != nullptr) device_.driver.cuGraphExecDestroy(exec_);
    if (graph_ != nullptr) device_.driver.cuGraphDestroy(graph_);
}

// Takes the graph, unless it fails. A graph of the same form is written into the one that there is, which
// goes on knowing its nodes by those that it was made from, not by those that were written into it.
Status Graph::instantiate(CUgraph graph, std::vector<CUgraphNode>& nodes) {
    const Driver& driver = device_.driver;
    CUgraphExecUpdateResultInfo info;
    if (exec_ != nullptr && driver.cuGraphExecUpdate_v2(exec_, graph, &info) == 0) {
        driver.cuGraphDestroy(graph);
        return {};
    }
    CUgraphExec made = nullptr;
    if (Status status =
            device_.check(driver.cuGraphInstantiateWithFlags(&made, graph, 0), "cuGraphInstantiateWithFlags");
        !status.ok())
        return status;
    if (exec_ != nullptr) driver.cuGraphExecDestroy(exec_);
    if (graph_ != nullptr) driver.cuGraphDestroy(graph_);
    exec_ = made;
    graph_ = graph;
    nodes_.swap(nodes);
    return {};
}

bool Graph::fits(void* const* args) const noexcept {
    return std::memcmp(args_.data(), args + recording_.first_arg, args_.size() * sizeof(void*)) == 0;
}

Result<bool> Graph::update(void* const* args) {
    for (size_t i = 0; i < recording_.calls.size(); ++i) {
        const CudaRecording::Call& call = recording_.calls[i];
        void* const* const now = args + call.first_arg;
        void** const then = args_.data() + (call.first_arg - recording_.first_arg);
        const size_t bytes = call.call->args.size() * sizeof(void*);
        if (call.call->tasks == 0 || std::memcmp(then, now, bytes) == 0) continue;
        if (nodes_[i] == nullptr) return false;
        const CUlaunchConfig& config = call.kernel->launch.config;
        CUkernelNodeParams params;
        params.kern = call.kernel->kernel;
        params.gridDimX = config.gridDimX, params.gridDimY = config.gridDimY;
        params.gridDimZ = config.gridDimZ;
        params.blockDimX = config.blockDimX, params.blockDimY = config.blockDimY;
        params.blockDimZ = config.blockDimZ;
        params.sharedMemBytes = config.sharedMemBytes;
        params.kernelParams = pointers(*call.call, now).data();
        const CUresult result = device_.driver.cuGraphExecKernelNodeSetParams_v2(exec_, nodes_[i], &params);
        if (result == invalid_value) return false;  // not a node of it: capture() again
        if (Status status = device_.check(result, "cuGraphExecKernelNodeSetParams_v2"); !status.ok())
            return status;
        std::memcpy(then, now, bytes);
    }
    return true;
}

Status Graph::launch(CUstream stream) const {
    return device_.check(device_.driver.cuGraphLaunch(exec_, stream), "cuGraphLaunch");
}

}  // namespace xpurt::cuda
