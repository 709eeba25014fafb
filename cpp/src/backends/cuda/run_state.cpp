// cuda/run_state.cpp: streams, copies and submissions of one context.
#include "backends/cuda/run_state.h"

#include <algorithm>
#include <cstring>

namespace xpurt::cuda {
namespace {

constexpr size_t chunk_bytes =
    size_t{4} << 20;  // a large array is copied in chunks, so that staging overlaps with the transfer
constexpr size_t min_staging_bytes = size_t{1} << 20;

Status with_kernel_name(const KernelCall& call, Status status) {
    if (!status.ok()) status.message = "kernel " + call.kernel + " (" + call.symbol + "): " + status.message;
    return status;
}

Status cancelled() { return {Code::cancelled, "the run was cancelled", ""}; }

}  // namespace

uint64_t capture_id(const Driver& driver, CUstream stream) noexcept {
    if (!driver.cuStreamGetCaptureInfo_v2 || stream == nullptr) return 0;
    int status = 0;
    uint64_t id = 0;
    const CUresult result = driver.cuStreamGetCaptureInfo_v2(stream, &status, &id, nullptr, nullptr, nullptr);
    return result == 0 && status == capture_active ? id : 0;
}

Result<std::unique_ptr<RunState>> CudaRunState::open(std::shared_ptr<Device> device,
                                                     std::shared_ptr<ReportWatchList> watches) {
    std::unique_ptr<CudaRunState> state(new CudaRunState(std::move(device), std::move(watches)));
    const Device& on = *state->device_;
    const ScopedContext current(on);
    const RelaxedCapture relaxed(on.driver);
    const CUresult result = on.driver.cuEventCreate(&state->done_event_, event_no_timing);
    XPURT_TRY(on.check(result, "cuEventCreate"));
    state->watch_list_->add(state->watch_, state->done_event_);
    return std::unique_ptr<RunState>(std::move(state));
}

CudaRunState::~CudaRunState() {
    watch_list_->remove(watch_);
    const ScopedContext current(*device_);
    const Driver& driver = device_->driver;
    if (in_flight_) device_->log_if_failed(driver.cuEventSynchronize(done_event_), "cuEventSynchronize");
    if (unmarked_) device_->log_if_failed(driver.cuCtxSynchronize(), "cuCtxSynchronize");
    if (own_stream_ != nullptr)
        device_->log_if_failed(driver.cuStreamSynchronize(own_stream_), "cuStreamSynchronize");
    recording_states_.clear();
    for (const StagingBlock& each : staging_) device_->release_pinned(each.block);
    if (done_event_ != nullptr)
        device_->log_if_failed(driver.cuEventDestroy_v2(done_event_), "cuEventDestroy_v2");
    if (own_stream_ != nullptr)
        device_->log_if_failed(driver.cuStreamDestroy_v2(own_stream_), "cuStreamDestroy_v2");
}

// Created on demand: a context whose runs all use callers' streams needs no stream.
Status CudaRunState::make_own_stream() {
    if (own_stream_ != nullptr) return {};
    const ScopedContext current(*device_);
    return device_->check(device_->driver.cuStreamCreate(&own_stream_, stream_non_blocking),
                          "cuStreamCreate");
}

Status CudaRunState::begin(const StreamOrder& order) {
    captured_ =
        order.on_caller_stream && capture_id(device_->driver, static_cast<CUstream>(order.stream)) != 0;
    if (captured_) {  // the context belongs to this capture, whose calls follow each other
        current_stream_ = static_cast<CUstream>(order.stream);
        return {};
    }
    if (!order.on_caller_stream) XPURT_TRY(make_own_stream());
    exclusive_ = false;
    if (in_flight_) XPURT_TRY(watch_.check(done_event_));
    const CUstream next = order.on_caller_stream ? static_cast<CUstream>(order.stream) : own_stream_;
    if (in_flight_ && next != current_stream_) {
        const ScopedContext current(*device_);
        const CUresult result = device_->driver.cuStreamWaitEvent(next, done_event_, 0);
        XPURT_TRY(device_->check(result, "cuStreamWaitEvent"));
        // The event still marks the earlier work: this run may end before it records another one.
    }
    current_stream_ = next;
    return {};
}

Status CudaRunState::end() {
    if (captured_ || !exclusive_) {
        unmarked_ = true;
        return {};
    }
    const ScopedContext current(*device_);
    watch_.set_queued(true);
    const CUresult result = device_->driver.cuEventRecord(done_event_, current_stream_);
    in_flight_ = result == 0;
    return device_->check(result, "cuEventRecord");
}

Status CudaRunState::synchronize() {
    const ScopedContext current(*device_);
    watch_.set_queued(false);
    Status status =
        device_->check(device_->driver.cuStreamSynchronize(current_stream_), "cuStreamSynchronize");
    in_flight_ = false;
    if (status.ok())
        for (const PendingCopy& each : pending_copies_) std::memcpy(each.to, each.from, each.bytes);
    pending_copies_.clear();
    for (StagingBlock& each : staging_) each.used = 0;
    return status.ok() ? watch_.check() : status;
}

// Return page-locked memory that is valid until the next synchronize; null when memory is exhausted.
char* CudaRunState::staging(size_t bytes) {
    const size_t size = whole_lines(bytes);
    for (StagingBlock& each : staging_)
        if (each.size - each.used >= size) {
            char* const state = each.block + each.used;
            each.used += size;
            return state;
        }
    const size_t created = std::max(size, min_staging_bytes);
    auto* const block = static_cast<char*>(device_->allocate_pinned(created));
    if (block != nullptr) staging_.push_back({block, created, size});
    return block;
}

Status CudaRunState::send(CUdeviceptr to, const void* from, size_t bytes) {
    if (bytes == 0) return {};
    if (device_->pinned().owns(from, bytes)) {  // the run waits for its end, and the array stays until then
        const ScopedContext current(*device_);
        return device_->check(device_->driver.cuMemcpyHtoDAsync_v2(to, from, bytes, current_stream_),
                              "cuMemcpyHtoDAsync_v2");
    }
    char* const staged = staging(bytes);
    if (staged == nullptr)
        return {Code::no_memory, "cannot allocate " + std::to_string(bytes) + " bytes of page-locked memory",
                ""};
    const ScopedContext current(*device_);
    for (size_t at = 0; at < bytes; at += chunk_bytes) {
        const size_t part = std::min(chunk_bytes, bytes - at);
        std::memcpy(staged + at, static_cast<const char*>(from) + at, part);
        const CUresult result =
            device_->driver.cuMemcpyHtoDAsync_v2(to + at, staged + at, part, current_stream_);
        XPURT_TRY(device_->check(result, "cuMemcpyHtoDAsync_v2"));
    }
    return {};
}

Status CudaRunState::fetch(void* to, CUdeviceptr from, size_t bytes) {
    if (bytes == 0) return {};
    if (device_->pinned().owns(to, bytes)) {
        const ScopedContext current(*device_);
        return device_->check(device_->driver.cuMemcpyDtoHAsync_v2(to, from, bytes, current_stream_),
                              "cuMemcpyDtoHAsync_v2");
    }
    char* const staged = staging(bytes);
    if (staged == nullptr)
        return {Code::no_memory, "cannot allocate " + std::to_string(bytes) + " bytes of page-locked memory",
                ""};
    const ScopedContext current(*device_);
    const CUresult result = device_->driver.cuMemcpyDtoHAsync_v2(staged, from, bytes, current_stream_);
    XPURT_TRY(device_->check(result, "cuMemcpyDtoHAsync_v2"));
    pending_copies_.push_back({to, staged, bytes});
    return {};
}

Status CudaRunState::launch(const CudaRecording::CudaCall& call, const Submission& submission,
                            CUstream stream) const {
    if (call.call->tasks == 0) return {};
    void* const* const args = submission.args + call.first_arg;
    if (call.kernel->library) {
        void* const workspace = call.kernel->workspace_bytes() == 0
                                    ? nullptr
                                    : static_cast<char*>(submission.slots[0]) + call.workspace_offset;
        return with_kernel_name(*call.call, call.kernel->library->launch(args, workspace, stream));
    }
    CUlaunchConfig config = call.kernel->launch.config;
    config.hStream = stream;
    config.attrs = const_cast<CUlaunchAttribute*>(call.kernel->launch.attributes);
    config.numAttrs = call.kernel->launch.attribute_count;
    XPURT_ASSIGN_OR_RETURN(void** const params,
                           kernel_params(*device_, *call.call, call.kernel->launch, args));
    // cuLaunchKernelEx accepts a CUkernel in place of a CUfunction.
    const CUresult result = device_->driver.cuLaunchKernelEx(
        &config, reinterpret_cast<CUfunction>(call.kernel->kernel), params, nullptr);
    return result == 0 ? Status{} : with_kernel_name(*call.call, device_->check(result, "cuLaunchKernelEx"));
}

Status CudaRunState::submit(const CudaRecording& recording, const Submission& submission,
                            std::string& declined, CudaCounters& counters) {
    if (submission.is_cancelled()) return cancelled();
    const ScopedContext current(*device_);
    if (captured_ &&
        (submission.observation != nullptr || submission.times != nullptr || submission.ring != nullptr))
        return {Code::unsupported, "a run that the caller captures cannot be timed or observed",
                "Run it outside."};
    RecordingState& plan = recording_states_[&recording];
    if (captured_) {
        ++counters.plain;
        return submit_directly(recording, submission);
    }
    watch_.will_launch(recording);
    // Runs on different streams must not use these at the same time: arena, report words, graph.
    exclusive_ |= submission.slots[0] != nullptr || recording.reports != nullptr;
    if (submission.observation != nullptr) return submit_observed(recording, submission, plan);
    if (submission.times != nullptr || submission.ring != nullptr) return submit_timed(recording, submission);

    // The first run uses single launches: libraries initialize themselves in it, which is not possible during
    // capture, and a plan that runs once needs no graph.
    const bool first = !plan.submitted_before;
    plan.submitted_before = true;
    if (first || plan.declined || recording.calls.size() < 2 || nvtx_calls()) {
        ++counters.plain;
        return submit_directly(recording, submission);
    }
    exclusive_ = true;
    const bool created = plan.graph != nullptr;
    const bool same_arena = plan.graph_arena == workspace_arena(recording, submission);
    if (!created || !same_arena || !plan.graph->fits(submission.args)) {
        XPURT_ASSIGN_OR_RETURN(
            auto updated, created&& same_arena ? plan.graph->update(submission.args) : Result<bool>(false));
        if (!updated)
            if (Status status = make_graph(recording, submission, plan); !status.ok()) {
                plan.declined = true;
                declined = status.message;
                ++counters.plain;
                return submit_directly(recording, submission);
            }
        ++(created ? counters.updates : counters.captures);
    }
    ++counters.replays;
    return plan.graph->launch(current_stream_);
}

Status CudaRunState::make_graph(const CudaRecording& recording, const Submission& submission,
                                RecordingState& plan) {
    XPURT_TRY(make_own_stream());
    if (plan.graph == nullptr) plan.graph = std::make_unique<CudaGraph>(*device_, recording);
    Status status = plan.graph->capture(
        own_stream_, submission.args,
        [&](const CudaRecording::CudaCall& call) { return launch(call, submission, own_stream_); });
    if (!status.ok()) plan.graph.reset();
    plan.graph_arena = workspace_arena(recording, submission);
    return status;
}

Status CudaRunState::submit_directly(const CudaRecording& recording, const Submission& submission) {
    const bool ranges = nvtx_calls();
    for (const CudaRecording::CudaCall& call : recording.calls) {
        if (submission.is_cancelled()) return cancelled();
        const NvtxRange range(ranges, ranges ? text_of(*call.call) : std::string());
        XPURT_TRY(launch(call, submission, current_stream_));
    }
    return {};
}

// Launch call by call with an event between any two, and wait for the last event.
Status CudaRunState::submit_timed(const CudaRecording& recording, const Submission& submission) {
    struct TimingEvents {
        const Device& device;
        std::vector<CUevent> events;
        ~TimingEvents() {
            for (const CUevent event : events)
                if (event != nullptr)
                    device.log_if_failed(device.driver.cuEventDestroy_v2(event), "cuEventDestroy_v2");
        }
    } timing{*device_, std::vector<CUevent>(recording.calls.size() + 1)};
    const auto record_event = [&](size_t at) {
        Status status = device_->check(timing.device.driver.cuEventCreate(&timing.events[at], event_default),
                                       "cuEventCreate");
        if (status.ok())
            status = device_->check(timing.device.driver.cuEventRecord(timing.events[at], current_stream_),
                                    "cuEventRecord");
        return status;
    };
    XPURT_TRY(record_event(0));
    for (size_t i = 0; i < recording.calls.size(); ++i) {
        if (submission.is_cancelled()) return cancelled();
        XPURT_TRY(launch(recording.calls[i], submission, current_stream_));
        XPURT_TRY(record_event(i + 1));
    }
    const CUevent last = timing.events.back();
    XPURT_TRY(device_->check(timing.device.driver.cuEventSynchronize(last), "cuEventSynchronize"));
    const auto elapsed = [&](float* milliseconds, CUevent start, CUevent end) {
        return device_->check(timing.device.driver.cuEventElapsedTime(milliseconds, start, end),
                              "cuEventElapsedTime");
    };
    const int64_t now = now_ns();
    for (size_t i = 0; i < recording.calls.size(); ++i) {
        float duration = 0, until_end = 0;  // milliseconds
        XPURT_TRY(elapsed(&duration, timing.events[i], timing.events[i + 1]));
        XPURT_TRY(elapsed(&until_end, timing.events[i], last));
        const auto nanoseconds = [](float ms) { return static_cast<int64_t>(double{ms} * 1e6); };
        if (submission.times != nullptr) submission.times[i] = nanoseconds(duration);
        if (submission.ring != nullptr) {
            const int64_t step = submission.first_call + static_cast<int64_t>(i);
            submission.ring->record({now - nanoseconds(until_end), nanoseconds(duration), step,
                                     recording.calls[i].call->tasks, submission.names[step], thread_id(),
                                     EventKind::complete, 0});
        }
    }
    return {};
}

}  // namespace xpurt::cuda
