// cuda/observe.cpp: a submission under CUPTI, with its activities joined to the calls of the plan.
//
// Single launches are tagged with the number of their call. A graph is captured again during the session: the
// nodes that each call adds are recorded, and CUPTI reports which node of the launched graph was cloned from
// which. If CUPTI does not report that, activities in order of their start times are matched with nodes in
// order, since the graph is one chain.
#include <algorithm>
#include <map>
#include <set>

#include "backends/cuda/cupti.h"
#include "backends/cuda/run_state.h"

namespace xpurt::cuda {
namespace {

constexpr int kernel_node = 0, copy_node = 1, fill_node = 2;
constexpr uint64_t whole_graph = uint64_t{1} << 32;

// The captured nodes and the calls that added them, in order.
class CapturedNodes {
  public:
    explicit CapturedNodes(const Driver& driver) : driver_(driver) {}

    // Record the nodes that call `call` added to the capture on `stream`.
    void add(CUstream stream, int64_t call) {
        int capturing = 0;
        CUgraph graph = nullptr;
        const CUgraphNode* last = nullptr;
        size_t ends = 0, count = 0;
        if (driver_.cuStreamGetCaptureInfo_v2(stream, &capturing, nullptr, &graph, &last, &ends) != 0 ||
            graph == nullptr || driver_.cuGraphGetNodes(graph, nullptr, &count) != 0)
            return;
        std::vector<CUgraphNode> all(count);
        if (driver_.cuGraphGetNodes(graph, all.data(), &count) != 0) return;
        for (const CUgraphNode node : all)
            if (known_.insert(node).second) nodes_.push_back({node, call});
    }
    struct CapturedNode {
        CUgraphNode node;
        int64_t call;
    };
    const std::vector<CapturedNode>& all() const noexcept { return nodes_; }
    // The calls of the nodes of one type, in order.
    std::vector<int64_t> calls(int type) const {
        std::vector<int64_t> result;
        for (const CapturedNode& each : nodes_) {
            int is = -1;
            if (driver_.cuGraphNodeGetType(each.node, &is) == 0 && is == type) result.push_back(each.call);
        }
        return result;
    }

  private:
    const Driver& driver_;
    std::set<CUgraphNode> known_;
    std::vector<CapturedNode> nodes_;
};

int type_of(const DeviceActivity& activity) {
    return activity.kind == DeviceActivity::kernel ? kernel_node
           : activity.kind == DeviceActivity::copy ? copy_node
                                                   : fill_node;
}

void in_order(std::vector<ActivityRecord>& records) {
    std::stable_sort(records.begin(), records.end(), [](const ActivityRecord& a, const ActivityRecord& b) {
        return a.activity.start_ns < b.activity.start_ns;
    });
}

// Return the records with external ids of this run, without those of other threads.
std::vector<ActivityRecord> own_records(CuptiTrace& trace) {
    std::vector<ActivityRecord> result;
    for (ActivityRecord& record : trace.records) {
        const auto set_external_id = trace.external_ids.find(record.correlation);
        if (set_external_id == trace.external_ids.end()) continue;
        record.activity.call =
            set_external_id->second == whole_graph ? -1 : static_cast<int64_t>(set_external_id->second) - 1;
        result.push_back(std::move(record));
    }
    in_order(result);
    return result;
}

bool join_by_graph_node(std::vector<ActivityRecord>& records, const CuptiTrace& trace,
                        const std::map<uint64_t, int64_t>& calls) {
    bool all = true;
    for (ActivityRecord& record : records) {
        const auto from = trace.cloned_from.find(record.graph_node);
        const auto result = calls.find(from == trace.cloned_from.end() ? record.graph_node : from->second);
        if (result == calls.end())
            all = false;
        else
            record.activity.call = result->second;
    }
    return all;
}

bool join_by_order(std::vector<ActivityRecord>& records, const CapturedNodes& nodes) {
    for (const int type : {kernel_node, copy_node, fill_node}) {
        const std::vector<int64_t> calls = nodes.calls(type);
        std::vector<ActivityRecord*> of_type;
        for (ActivityRecord& record : records)
            if (type_of(record.activity) == type) of_type.push_back(&record);
        if (of_type.size() != calls.size()) return false;
        for (size_t i = 0; i < calls.size(); ++i) of_type[i]->activity.call = calls[i];
    }
    return true;
}

}  // namespace

Status CudaRunState::submit_observed(const CudaRecording& recording, const Submission& submission,
                                     RecordingState& plan) {
    Observation& observation = *submission.observation;
    CuptiSession session;
    if (Status status = CuptiSession::begin(session); !status.ok()) {
        observation.absent = status.message;
        observation.advice = status.advice;
        plan.submitted_before = true;
        return submit_directly(recording, submission);
    }
    observation.source = CuptiSession::version();
    const int64_t first = submission.first_call;
    CapturedNodes nodes(device_->driver);
    CudaGraph graph(*device_, recording);
    Status status{Code::unsupported, "", ""};
    if (plan.submitted_before && !plan.declined && recording.calls.size() > 1) {
        int64_t call = first;
        status = graph.capture(own_stream_, submission.args, [&](const CudaRecording::CudaCall& each) {
            Status queued = launch(each, submission, own_stream_);
            nodes.add(own_stream_, call++);
            return queued;
        });
    }
    plan.submitted_before = true;
    observation.graph = status.ok();
    std::map<uint64_t, int64_t> calls;  // call by CUPTI's id of its captured node
    if (observation.graph) {
        for (const CapturedNodes::CapturedNode& each : nodes.all())
            if (const uint64_t number = session.graph_node_id(each.node); number != 0)
                calls[number] = each.call;
        session.set_external_id(whole_graph);
        status = graph.launch(current_stream_);
    } else {
        status = {};
        for (size_t i = 0; i < recording.calls.size() && status.ok(); ++i) {
            if (submission.is_cancelled()) return {Code::cancelled, "the run was cancelled", ""};
            session.set_external_id(static_cast<uint64_t>(first) + i + 1);
            status = launch(recording.calls[i], submission, current_stream_);
        }
    }
    session.set_external_id(0);
    if (status.ok())
        status = device_->check(device_->driver.cuStreamSynchronize(current_stream_), "cuStreamSynchronize");
    if (!status.ok()) return status;

    CuptiTrace trace = session.end();
    observation.dropped += trace.dropped;
    std::vector<ActivityRecord> records = own_records(trace);
    if (!observation.graph)
        observation.joined = "correlation";
    else if (join_by_graph_node(records, trace, calls))
        observation.joined = "graph nodes";
    else
        observation.joined = join_by_order(records, nodes) ? "order" : "graph nodes";
    for (ActivityRecord& record : records) {
        observation.unmatched += record.activity.call < 0;
        observation.activities.push_back(std::move(record.activity));
    }
    return {};
}

}  // namespace xpurt::cuda
