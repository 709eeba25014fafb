// cuda/graph.cpp: a recording as a CUDA graph.
#include <algorithm>
#include <cstring>

#include "backends/cuda/run_state.h"

namespace xpurt::cuda {

CudaGraph::~CudaGraph() { destroy(); }

void CudaGraph::destroy() noexcept {
    if (exec_ != nullptr)
        device_.log_if_failed(device_.driver.cuGraphExecDestroy(exec_), "cuGraphExecDestroy");
    if (graph_ != nullptr) device_.log_if_failed(device_.driver.cuGraphDestroy(graph_), "cuGraphDestroy");
    exec_ = nullptr;
    graph_ = nullptr;
}

// Take ownership of the graph on success. A graph of the same topology updates the existing executable graph,
// which still identifies its nodes by those of the graph that it was instantiated from.
Status CudaGraph::instantiate(CUgraph graph, std::vector<CUgraphNode>& nodes) {
    const Driver& driver = device_.driver;
    CUgraphExecUpdateResultInfo info;
    if (exec_ != nullptr && driver.cuGraphExecUpdate_v2(exec_, graph, &info) == 0) {
        return device_.check(driver.cuGraphDestroy(graph), "cuGraphDestroy");
    }
    CUgraphExec exec = nullptr;
    XPURT_TRY(
        device_.check(driver.cuGraphInstantiateWithFlags(&exec, graph, 0), "cuGraphInstantiateWithFlags"));
    destroy();
    exec_ = exec;
    graph_ = graph;
    nodes_.swap(nodes);
    return {};
}

bool CudaGraph::fits(void* const* args) const noexcept {
    return std::memcmp(args_.data(), args + recording_.first_arg, args_.size() * sizeof(void*)) == 0;
}

Result<bool> CudaGraph::update(void* const* args) {
    for (size_t i = 0; i < recording_.calls.size(); ++i) {
        const CudaRecording::CudaCall& call = recording_.calls[i];
        void* const* const new_args = args + call.first_arg;
        void** const old_args = args_.data() + (call.first_arg - recording_.first_arg);
        const size_t bytes = call.call->args.size() * sizeof(void*);
        if (call.call->tasks == 0 || std::memcmp(old_args, new_args, bytes) == 0) continue;
        if (nodes_[i] == nullptr) return false;
        const CUlaunchConfig& config = call.kernel->launch.config;
        CUkernelNodeParams params;
        params.kern = call.kernel->kernel;
        params.gridDimX = config.gridDimX, params.gridDimY = config.gridDimY;
        params.gridDimZ = config.gridDimZ;
        params.blockDimX = config.blockDimX, params.blockDimY = config.blockDimY;
        params.blockDimZ = config.blockDimZ;
        params.sharedMemBytes = config.sharedMemBytes;
        XPURT_ASSIGN_OR_RETURN(params.kernelParams,
                               kernel_params(device_, *call.call, call.kernel->launch, new_args));
        const CUresult result = device_.driver.cuGraphExecKernelNodeSetParams_v2(exec_, nodes_[i], &params);
        if (result == CUDA_ERROR_INVALID_VALUE)
            return false;  // the node is not part of the graph: capture again
        XPURT_TRY(device_.check(result, "cuGraphExecKernelNodeSetParams_v2"));
        std::memcpy(old_args, new_args, bytes);
    }
    return true;
}

Status CudaGraph::launch(CUstream stream) const {
    return device_.check(device_.driver.cuGraphLaunch(exec_, stream), "cuGraphLaunch");
}

}  // namespace xpurt::cuda
