// cuda/run_state.cpp: streams, copies and submissions of one context.
#include "backends/cuda/run_state.h"

#include <algorithm>
#include <cstring>

namespace xpurt::cuda {
namespace {

constexpr size_t piece = size_t{4} << 20;  // a large array crosses while its next piece is being staged
constexpr size_t least_staging = size_t{1} << 20;

Status named(const KernelCall& call, Status status) {
    if (!status.ok()) status.message = "kernel " + call.kernel + " (" + call.symbol + "): " + status.message;
    return status;
}

Status cancelled() { return {Code::cancelled, "the run was cancelled", ""}; }

}  // namespace

Result<std::unique_ptr<RunState>> CudaState::open(std::shared_ptr<Device> device,
                                                  std::shared_ptr<Watches> watches) {
    std::unique_ptr<CudaState> state(new CudaState(std::move(device), std::move(watches)));
    const Device& on = *state->device_;
    const Current current(on);
    const CUresult result = on.driver.cuEventCreate(&state->done_, event_no_timing);
    if (Status status = on.check(result, "cuEventCreate"); !status.ok()) return status;
    state->watches_->add(state->watch_, state->done_);
    return std::unique_ptr<RunState>(std::move(state));
}

CudaState::~CudaState() {
    watches_->remove(watch_);
    const Current current(*device_);
    if (in_flight_) device_->driver.cuEventSynchronize(done_);
    if (loose_) device_->driver.cuCtxSynchronize();
    if (own_ != nullptr) device_->driver.cuStreamSynchronize(own_);
    for (auto& [recording, plan] : plans_) device_->release(plan.workspace, device_->home);
    plans_.clear();
    for (const Staging& each : staging_) device_->release_pinned(each.block);
    if (done_ != nullptr) device_->driver.cuEventDestroy_v2(done_);
    if (own_ != nullptr) device_->driver.cuStreamDestroy_v2(own_);
}

// Contexts whose runs all go in their callers' order never need a stream.
Status CudaState::make_own() {
    if (own_ != nullptr) return {};
    const Current current(*device_);
    return device_->check(device_->driver.cuStreamCreate(&own_, stream_non_blocking), "cuStreamCreate");
}

Status CudaState::begin(const Order& order) {
    if (!order.callers)
        if (Status status = make_own(); !status.ok()) return status;
    guarded_ = false;
    if (in_flight_)
        if (Status reported = watch_.look(done_); !reported.ok()) return reported;
    const CUstream next = order.callers ? static_cast<CUstream>(order.stream) : own_;
    if (in_flight_ && next != current_) {
        const Current current(*device_);
        const CUresult result = device_->driver.cuStreamWaitEvent(next, done_, 0);
        if (Status status = device_->check(result, "cuStreamWaitEvent"); !status.ok()) return status;
        in_flight_ = false;
    }
    current_ = next;
    return {};
}

Status CudaState::end() {
    if (!guarded_) {
        loose_ = true;
        return {};
    }
    const Current current(*device_);
    watch_.queued(true);
    const CUresult result = device_->driver.cuEventRecord(done_, current_);
    in_flight_ = result == 0;
    return device_->check(result, "cuEventRecord");
}

Status CudaState::synchronize() {
    const Current current(*device_);
    watch_.queued(false);
    Status status = device_->check(device_->driver.cuStreamSynchronize(current_), "cuStreamSynchronize");
    in_flight_ = false;
    if (status.ok())
        for (const Fetched& each : fetched_) std::memcpy(each.to, each.from, each.bytes);
    fetched_.clear();
    for (Staging& each : staging_) each.used = 0;
    return status.ok() ? watch_.look() : status;
}

// Page-locked memory until the next synchronize; null when there is none.
char* CudaState::staging(size_t bytes) {
    const size_t size = whole_lines(bytes);
    for (Staging& each : staging_)
        if (each.size - each.used >= size) {
            char* const found = each.block + each.used;
            each.used += size;
            return found;
        }
    const size_t made = std::max(size, least_staging);
    auto* const block = static_cast<char*>(device_->allocate_pinned(made));
    if (block != nullptr) staging_.push_back({block, made, size});
    return block;
}

Status CudaState::send(CUdeviceptr to, const void* from, size_t bytes) {
    if (bytes == 0) return {};
    char* const staged = staging(bytes);
    if (staged == nullptr)
        return {Code::no_memory, "no " + std::to_string(bytes) + " bytes of page-locked memory", ""};
    const Current current(*device_);
    for (size_t at = 0; at < bytes; at += piece) {
        const size_t part = std::min(piece, bytes - at);
        std::memcpy(staged + at, static_cast<const char*>(from) + at, part);
        const CUresult result = device_->driver.cuMemcpyHtoDAsync_v2(to + at, staged + at, part, current_);
        if (Status status = device_->check(result, "cuMemcpyHtoDAsync_v2"); !status.ok()) return status;
    }
    return {};
}

Status CudaState::fetch(void* to, CUdeviceptr from, size_t bytes) {
    if (bytes == 0) return {};
    char* const staged = staging(bytes);
    if (staged == nullptr)
        return {Code::no_memory, "no " + std::to_string(bytes) + " bytes of page-locked memory", ""};
    const Current current(*device_);
    const CUresult result = device_->driver.cuMemcpyDtoHAsync_v2(staged, from, bytes, current_);
    if (Status status = device_->check(result, "cuMemcpyDtoHAsync_v2"); !status.ok()) return status;
    fetched_.push_back({to, staged, bytes});
    return {};
}

Result<CudaState::Plan*> CudaState::plan_for(const CudaRecording& recording) {
    const auto found = plans_.find(&recording);
    if (found != plans_.end()) return &found->second;
    Plan plan;
    if (recording.workspace > 0) {
        auto made = device_->allocate(recording.workspace, device_->home);
        if (!made.status.ok()) return made.status;
        device_->driver.cuStreamSynchronize(device_->home);
        plan.workspace = made.value;
    }
    return &plans_.emplace(&recording, std::move(plan)).first->second;
}

Status CudaState::launch(const CudaRecording::Call& call, const Bindings& bindings, const Plan& plan,
                         CUstream stream) const {
    if (call.call->tasks == 0) return {};
    void* const* const args = bindings.args + call.first_arg;
    if (call.kernel->library)
        return named(*call.call,
                     call.kernel->library->launch(
                         args, reinterpret_cast<void*>(static_cast<uintptr_t>(plan.workspace)), stream));
    CUlaunchConfig config = call.kernel->launch.config;
    config.hStream = stream;
    config.attrs = const_cast<CUlaunchAttribute*>(call.kernel->launch.attributes);
    config.numAttrs = call.kernel->launch.attribute_count;
    // A CUkernel stands for the function of the current context.
    const CUresult result =
        device_->driver.cuLaunchKernelEx(&config, reinterpret_cast<CUfunction>(call.kernel->kernel),
                                         pointers(*call.call, args).data(), nullptr);
    return result == 0 ? Status{} : named(*call.call, device_->check(result, "cuLaunchKernelEx"));
}

Status CudaState::submit(const CudaRecording& recording, const Bindings& bindings, std::string& declined,
                         CudaCounters& counters) {
    if (bindings.cancelled_by_now()) return cancelled();
    const Current current(*device_);
    Result<Plan*> found = plan_for(recording);
    if (!found.status.ok()) return found.status;
    Plan& plan = *found.value;
    watch_.expect(recording);
    // What a run in another order must not find in use: the arena, a workspace, the words of reports, a
    // graph.
    guarded_ |= bindings.slots[0] != nullptr || plan.workspace != 0 || recording.reports != nullptr;
    if (bindings.observation != nullptr) return observed(recording, bindings, plan);
    if (bindings.times != nullptr || bindings.ring != nullptr) return timed(recording, bindings, plan);

    // The first run is plain: libraries set themselves up in it, which they cannot while being captured, and
    // a plan that runs once needs no graph.
    const bool first = !plan.met;
    plan.met = true;
    if (first || plan.declined || recording.calls.size() < 2 || nvtx_calls()) {
        ++counters.plain;
        return plain(recording, bindings, plan);
    }
    guarded_ = true;
    const bool made = plan.graph != nullptr;
    if (!made || !plan.graph->fits(bindings.args)) {
        Result<bool> updated = made ? plan.graph->update(bindings.args) : Result<bool>(false);
        if (!updated.status.ok()) return updated.status;
        if (!updated.value)
            if (Status status = make_graph(recording, bindings, plan); !status.ok()) {
                plan.declined = true;
                declined = status.message;
                ++counters.plain;
                return plain(recording, bindings, plan);
            }
        ++(made ? counters.updates : counters.captures);
    }
    ++counters.replays;
    return plan.graph->launch(current_);
}

Status CudaState::make_graph(const CudaRecording& recording, const Bindings& bindings, Plan& plan) {
    if (Status status = make_own(); !status.ok()) return status;
    if (plan.graph == nullptr) plan.graph = std::make_unique<Graph>(*device_, recording);
    Status status = plan.graph->capture(own_, bindings.args, [&](const CudaRecording::Call& call) {
        return launch(call, bindings, plan, own_);
    });
    if (!status.ok()) plan.graph.reset();
    return status;
}

Status CudaState::plain(const CudaRecording& recording, const Bindings& bindings, const Plan& plan) {
    const bool ranges = nvtx_calls();
    for (const CudaRecording::Call& call : recording.calls) {
        if (bindings.cancelled_by_now()) return cancelled();
        const NvtxRange range(ranges, ranges ? text_of(*call.call) : std::string());
        if (Status status = launch(call, bindings, plan, current_); !status.ok()) return status;
    }
    return {};
}

// Kernel by kernel, with a mark of the device's clock between any two; waits for the last.
Status CudaState::timed(const CudaRecording& recording, const Bindings& bindings, const Plan& plan) {
    struct Marks {
        const Driver& driver;
        std::vector<CUevent> events;
        ~Marks() {
            for (const CUevent event : events)
                if (event != nullptr) driver.cuEventDestroy_v2(event);
        }
    } marks{device_->driver, std::vector<CUevent>(recording.calls.size() + 1)};
    const auto mark = [&](size_t at) {
        Status status =
            device_->check(marks.driver.cuEventCreate(&marks.events[at], event_default), "cuEventCreate");
        if (status.ok())
            status = device_->check(marks.driver.cuEventRecord(marks.events[at], current_), "cuEventRecord");
        return status;
    };
    if (Status status = mark(0); !status.ok()) return status;
    for (size_t i = 0; i < recording.calls.size(); ++i) {
        if (bindings.cancelled_by_now()) return cancelled();
        if (Status status = launch(recording.calls[i], bindings, plan, current_); !status.ok()) return status;
        if (Status status = mark(i + 1); !status.ok()) return status;
    }
    const CUevent last = marks.events.back();
    if (Status status = device_->check(marks.driver.cuEventSynchronize(last), "cuEventSynchronize");
        !status.ok())
        return status;
    const int64_t now = now_ns();
    for (size_t i = 0; i < recording.calls.size(); ++i) {
        float took = 0, ago = 0;  // milliseconds
        marks.driver.cuEventElapsedTime(&took, marks.events[i], marks.events[i + 1]);
        marks.driver.cuEventElapsedTime(&ago, marks.events[i], last);
        const auto nanoseconds = [](float ms) { return static_cast<int64_t>(double{ms} * 1e6); };
        if (bindings.times != nullptr) bindings.times[i] = nanoseconds(took);
        if (bindings.ring != nullptr) {
            const int64_t step = bindings.first_call + static_cast<int64_t>(i);
            bindings.ring->record({now - nanoseconds(ago), nanoseconds(took), step,
                                   recording.calls[i].call->tasks, bindings.names[step], thread_id(),
                                   EventKind::complete, 0});
        }
    }
    return {};
}

}  // namespace xpurt::cuda
