// cuda/observe.cpp: one submission under CUPTI, its work joined to the calls of the plan.
//
// Kernel by kernel, each call's launches carry its number. A graph is captured anew while CUPTI watches: the
// nodes that each call adds are noted, and CUPTI tells which node of the launched graph was made from which.
// Where it does not, the graph is one chain: its work in the order in which it began is its nodes in order.
#include <algorithm>
#include <map>
#include <set>

#include "backends/cuda/cupti.h"
#include "backends/cuda/run_state.h"

namespace xpurt::cuda {
namespace {

constexpr int kernel_node = 0, copy_node = 1, fill_node = 2;
constexpr uint64_t whole_graph = uint64_t{1} << 32;

// Nodes by the call that added them, in the order in which they were added.
class Nodes {
  public:
    explicit Nodes(const Driver& driver) : driver_(driver) {}

    // After call `call` was captured on `stream`.
    void added(CUstream stream, int64_t call) {
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
    struct Node {
        CUgraphNode node;
        int64_t call;
    };
    const std::vector<Node>& all() const noexcept { return nodes_; }
    // Calls of those that are work of one kind, in order.
    std::vector<int64_t> calls(int type) const {
        std::vector<int64_t> found;
        for (const Node& each : nodes_) {
            int is = -1;
            if (driver_.cuGraphNodeGetType(each.node, &is) == 0 && is == type) found.push_back(each.call);
        }
        return found;
    }

  private:
    const Driver& driver_;
    std::set<CUgraphNode> known_;
    std::vector<Node> nodes_;
};

int type_of(const Seen& seen) {
    return seen.kind == Seen::kernel ? kernel_node : seen.kind == Seen::copy ? copy_node : fill_node;
}

void in_order(std::vector<Record>& records) {
    std::stable_sort(records.begin(), records.end(),
                     [](const Record& a, const Record& b) { return a.seen.start_ns < b.seen.start_ns; });
}

// Only what has one of this run's marks; what other threads did meanwhile goes.
std::vector<Record> marked(Trace& trace) {
    std::vector<Record> found;
    for (Record& record : trace.records) {
        const auto mark = trace.marks.find(record.correlation);
        if (mark == trace.marks.end()) continue;
        record.seen.call = mark->second == whole_graph ? -1 : static_cast<int64_t>(mark->second) - 1;
        found.push_back(std::move(record));
    }
    in_order(found);
    return found;
}

bool join_nodes(std::vector<Record>& records, const Trace& trace, const std::map<uint64_t, int64_t>& calls) {
    bool all = true;
    for (Record& record : records) {
        const auto from = trace.made_from.find(record.graph_node);
        const auto found = calls.find(from == trace.made_from.end() ? record.graph_node : from->second);
        if (found == calls.end())
            all = false;
        else
            record.seen.call = found->second;
    }
    return all;
}

bool join_order(std::vector<Record>& records, const Nodes& nodes) {
    for (const int type : {kernel_node, copy_node, fill_node}) {
        const std::vector<int64_t> calls = nodes.calls(type);
        std::vector<Record*> of_type;
        for (Record& record : records)
            if (type_of(record.seen) == type) of_type.push_back(&record);
        if (of_type.size() != calls.size()) return false;
        for (size_t i = 0; i < calls.size(); ++i) of_type[i]->seen.call = calls[i];
    }
    return true;
}

}  // namespace

Status CudaState::observed(const CudaRecording& recording, const Bindings& bindings, Plan& plan) {
    Observation& to = *bindings.observation;
    CuptiSession session;
    if (Status status = CuptiSession::begin(session); !status.ok()) {
        to.absent = status.message;
        to.advice = status.advice;
        plan.met = true;
        return plain(recording, bindings, plan);
    }
    to.source = CuptiSession::version();
    const int64_t first = bindings.first_call;
    Nodes nodes(device_->driver);
    Graph graph(*device_, recording);
    Status status{Code::unsupported, "", ""};
    if (plan.met && !plan.declined && recording.calls.size() > 1) {
        int64_t call = first;
        status = graph.capture(own_, bindings.args, [&](const CudaRecording::Call& each) {
            Status queued = launch(each, bindings, plan, own_);
            nodes.added(own_, call++);
            return queued;
        });
    }
    plan.met = true;
    to.graph = status.ok();
    std::map<uint64_t, int64_t> calls;  // by CUPTI's number of a captured node
    if (to.graph) {
        for (const Nodes::Node& each : nodes.all())
            if (const uint64_t number = session.number_of(each.node); number != 0) calls[number] = each.call;
        session.mark(whole_graph);
        status = graph.launch(current_);
    } else {
        status = {};
        for (size_t i = 0; i < recording.calls.size() && status.ok(); ++i) {
            if (bindings.cancelled_by_now()) return {Code::cancelled, "the run was cancelled", ""};
            session.mark(static_cast<uint64_t>(first) + i + 1);
            status = launch(recording.calls[i], bindings, plan, current_);
        }
    }
    session.mark(0);
    if (status.ok())
        status = device_->check(device_->driver.cuStreamSynchronize(current_), "cuStreamSynchronize");
    if (!status.ok()) return status;

    Trace trace = session.end();
    to.dropped += trace.dropped;
    std::vector<Record> records = marked(trace);
    if (!to.graph)
        to.joined = "correlation";
    else if (join_nodes(records, trace, calls))
        to.joined = "graph nodes";
    else
        to.joined = join_order(records, nodes) ? "order" : "graph nodes";
    for (Record& record : records) {
        to.unmatched += record.seen.call < 0;
        to.seen.push_back(std::move(record.seen));
    }
    return {};
}

}  // namespace xpurt::cuda
