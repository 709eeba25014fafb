// cuda/run_state.h: one context's run on a device: its stream, its graphs and its staging memory.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "backends/cuda/module.h"
#include "backends/cuda/stream.h"
#include "xpurt/cuda.h"

namespace xpurt::cuda {

struct CudaKernel final : PreparedKernel {
    CUkernel kernel = nullptr;
    LaunchParams launch{};
    std::unique_ptr<StreamKernel> library;   // used instead of `kernel`
    std::shared_ptr<const Module> module;    // keeps the code loaded
    std::shared_ptr<KernelReports> reports;  // where the kernel may report errors

    std::string implementation() const override { return library ? library->implementation() : ""; }
    size_t workspace_bytes() const override { return library ? library->workspace_bytes() : 0; }
};

struct CudaRecording final : Recording {
    struct CudaCall {
        const CudaKernel* kernel;
        const KernelCall* call;
        size_t first_arg, workspace_offset;
    };
    std::vector<CudaCall> calls;
    size_t first_arg = 0, args = 0;  // of all calls together, in Submission::args
    bool has_workspace = false;      // of any call; it is in the arena
    std::shared_ptr<KernelReports> reports;
    std::vector<const KernelCall*> reporters;  // calls whose kernels may report errors
};

// A recording as a CUDA graph: captured once and launched repeatedly; kernel arguments are updated when
// addresses change.
class CudaGraph {
  public:
    CudaGraph(Device& device, const CudaRecording& recording) : device_(device), recording_(recording) {}
    ~CudaGraph();
    CudaGraph(const CudaGraph&) = delete;
    CudaGraph& operator=(const CudaGraph&) = delete;

    bool created() const noexcept { return exec_ != nullptr; }
    // Capture what `queue` launches on `stream`, call by call, and instantiate it. On failure, the stream is
    // no longer capturing.
    template <class Queue>
    Status capture(CUstream stream, void* const* args, Queue queue);
    bool fits(void* const* args) const noexcept;
    // Update the kernel arguments in place. Return false if a library's call uses another address: the graph
    // must be captured again.
    Result<bool> update(void* const* args);
    Status launch(CUstream stream) const;

  private:
    void destroy() noexcept;
    Status instantiate(CUgraph graph, std::vector<CUgraphNode>& nodes);

    Device& device_;
    const CudaRecording& recording_;
    CUgraph graph_ = nullptr;
    CUgraphExec exec_ = nullptr;
    std::vector<CUgraphNode> nodes_;  // kernel node of each call; null for library calls and empty calls
    std::vector<void*> args_;         // the addresses in the graph
};

// The id of the capture that a stream is in; 0 if there is none.
uint64_t capture_id(const Driver& driver, CUstream stream) noexcept;

// Allows what the driver forbids in a thread that captures, such as allocating memory.
class RelaxedCapture {
  public:
    explicit RelaxedCapture(const Driver& driver) : driver_(driver) { exchange(); }
    ~RelaxedCapture() { exchange(); }
    RelaxedCapture(const RelaxedCapture&) = delete;
    RelaxedCapture& operator=(const RelaxedCapture&) = delete;

  private:
    void exchange() noexcept {
        if (exchanges_) exchanges_ = driver_.cuThreadExchangeStreamCaptureMode(&mode_) == 0;
    }
    const Driver& driver_;
    int mode_ = capture_relaxed;
    bool exchanges_ = static_cast<bool>(driver_.cuThreadExchangeStreamCaptureMode);
};

class CudaRunState final : public RunState {
  public:
    static Result<std::unique_ptr<RunState>> open(std::shared_ptr<Device> device,
                                                  std::shared_ptr<ReportWatchList> watches);
    ~CudaRunState() override;

    Status begin(const StreamOrder& order);
    Status end();
    Status synchronize();
    Status send(CUdeviceptr to, const void* from, size_t bytes);
    Status fetch(void* to, CUdeviceptr from, size_t bytes);
    // `declined` receives the reason if a graph was tried and failed.
    Status submit(const CudaRecording& recording, const Submission& submission, std::string& declined,
                  CudaCounters& counters);
    CUstream current() const noexcept { return current_stream_; }

  private:
    struct RecordingState {
        std::unique_ptr<CudaGraph> graph;
        bool submitted_before = false;      // it has been submitted before
        bool declined = false;              // capturing failed: use single launches
        const void* graph_arena = nullptr;  // where the graph's nodes have their workspaces, if any
    };
    struct StagingBlock {
        char* block;
        size_t size, used;
    };
    struct PendingCopy {
        void* to;
        const char* from;
        size_t bytes;
    };

    CudaRunState(std::shared_ptr<Device> device, std::shared_ptr<ReportWatchList> watches)
        : device_(std::move(device)), watch_list_(std::move(watches)), watch_(device_) {}
    static const void* workspace_arena(const CudaRecording& recording, const Submission& submission) {
        return recording.has_workspace ? submission.slots[0] : nullptr;
    }
    Status launch(const CudaRecording::CudaCall& call, const Submission& submission, CUstream stream) const;
    Status submit_directly(const CudaRecording& recording, const Submission& submission);
    Status submit_timed(const CudaRecording& recording, const Submission& submission);
    Status submit_observed(const CudaRecording& recording, const Submission& submission,
                           RecordingState& plan);
    Status make_graph(const CudaRecording& recording, const Submission& submission, RecordingState& plan);
    Status make_own_stream();
    char* staging(size_t bytes);

    const std::shared_ptr<Device> device_;
    const std::shared_ptr<ReportWatchList> watch_list_;
    ReportWatch watch_;
    CUstream own_stream_ = nullptr,
             current_stream_ = nullptr;  // own_stream_ is created when a run or a capture needs it
    CUevent done_event_ = nullptr;       // recorded after the last run on a caller's stream
    bool in_flight_ = false;
    bool exclusive_ = false;  // the current run uses memory that only one run at a time may use
    bool captured_ = false;   // the current run becomes part of a graph that the caller captures
    bool unmarked_ = false;   // runs without such memory were queued, and no event marks their end
    std::map<const CudaRecording*, RecordingState> recording_states_;
    std::vector<StagingBlock> staging_;
    std::vector<PendingCopy> pending_copies_;
};

template <class Queue>
Status CudaGraph::capture(CUstream stream, void* const* args, Queue queue) {
    const Driver& driver = device_.driver;
    XPURT_TRY(device_.check(driver.cuStreamBeginCapture_v2(stream, capture_thread_local),
                            "cuStreamBeginCapture_v2"));
    std::vector<CUgraphNode> nodes(recording_.calls.size(), nullptr);
    Status failed;
    for (size_t i = 0; i < recording_.calls.size() && failed.ok(); ++i) {
        failed = queue(recording_.calls[i]);
        if (recording_.calls[i].kernel->kernel == nullptr) continue;
        // The dependency of the stream after a launch is the node of that launch.
        int capturing = 0;
        const CUgraphNode* last = nullptr;
        size_t count = 0;
        if (driver.cuStreamGetCaptureInfo_v2(stream, &capturing, nullptr, nullptr, &last, &count) == 0 &&
            count == 1)
            nodes[i] = *last;
    }
    CUgraph graph = nullptr;
    Status ended = device_.check(driver.cuStreamEndCapture(stream, &graph), "cuStreamEndCapture");
    if (failed.ok()) failed = std::move(ended);
    if (failed.ok()) failed = instantiate(graph, nodes);
    if (!failed.ok()) {
        if (graph != nullptr) device_.log_if_failed(driver.cuGraphDestroy(graph), "cuGraphDestroy");
        return failed;
    }
    args_.assign(args + recording_.first_arg, args + recording_.first_arg + recording_.args);
    return {};
}

}  // namespace xpurt::cuda
