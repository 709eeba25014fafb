// runtime/executor.cpp: contexts, argument binding and runs.
#include "xpurt/executor.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <new>
#include <optional>
#include <system_error>
#include <thread>

#include "xpurt/memory.h"
#include "xpurt/thread_pool.h"

namespace xpurt {
namespace {

Status invalid(std::string message) {
    return {Code::invalid, std::move(message),
            "Compile the model again; if it persists, report the program."};
}

char* advance(Memory memory, int64_t offset) noexcept {
    // Go through uintptr_t: a handle may not be an address, and then it is never dereferenced.
    return reinterpret_cast<char*>(reinterpret_cast<uintptr_t>(memory) + static_cast<uintptr_t>(offset));
}

// Call work(0 .. count-1), in up to `threads` threads. Where the system grants fewer, those do all of it.
// Throws the first exception of the work, after all threads have ended.
void side_by_side(size_t count, int threads, const std::function<void(size_t)>& work) {
    std::atomic<size_t> next{0};
    std::mutex mutex;
    std::exception_ptr failure;
    const auto take = [&] {
        try {
            for (size_t i = next++; i < count; i = next++) work(i);
        } catch (...) {
            next = count;
            const std::lock_guard<std::mutex> lock(mutex);
            if (!failure) failure = std::current_exception();
        }
    };
    std::vector<std::thread> others;
    try {
        while (others.size() + 1 < std::min(count, static_cast<size_t>(std::max(threads, 1))))
            others.emplace_back(take);
    } catch (const std::exception&) {  // no thread or no memory
        // The threads that started, and this one, take the rest.
    }
    take();
    for (std::thread& other : others) other.join();
    if (failure) std::rethrow_exception(failure);
}

}  // namespace

WeightBindings::WeightBindings(std::vector<Memory> memory, bool exclusive) : memory_(std::move(memory)) {
    static std::atomic<uint64_t> ids{0};
    id_ = ++ids;
    if (exclusive) state_lock_ = std::make_shared<StateLock>();
}

// The memory of one run at a time. All sizes are fixed on creation.
struct Executor::Context {
    Backend& backend;
    ArenaPool* pool = nullptr;
    ArenaPool::Arena* kept = nullptr;  // of the pool, if the context is that of a capture
    Memory arena = nullptr;
    Memory io_staging = nullptr;  // inputs and outputs on the device, for runs over host arrays
    void* scratch = nullptr;
    std::unique_ptr<RunState> state;
    std::vector<Memory> slots;
    std::vector<void*> args;
    uint64_t weights_id = 0;  // whose addresses slots and args hold; 0 = none yet

    Context(Backend& owner, ArenaPool* arenas) : backend(owner), pool(arenas) {}
    ~Context() {
        state.reset();
        if (kept != nullptr) pool->release(*kept);
        backend.release(arena);
        backend.release(io_staging);
        MemoryPool::host().release(scratch);
    }
};

Executor::Executor(std::shared_ptr<Backend> backend, Plan plan, int contexts,
                   std::shared_ptr<ArenaPool> arenas)
    : backend_(std::move(backend)),
      arenas_(std::move(arenas)),
      plan_(std::move(plan)),
      slots_(std::make_unique<ContextSlot[]>(static_cast<size_t>(std::max(contexts, 1)))),
      slot_count_(std::max(contexts, 1)) {}

Executor::~Executor() { close(); }

Result<std::unique_ptr<Executor>> Executor::create(std::shared_ptr<Backend> backend, Plan plan, int contexts,
                                                   std::shared_ptr<ArenaPool> arenas) {
    std::unique_ptr<Executor> executor(
        new Executor(std::move(backend), std::move(plan), contexts, std::move(arenas)));
    XPURT_TRY(executor->prepare());
    return executor;
}

Status Executor::prepare() {
    const auto fits = [&](const BufferRef& ref) {
        return ref.slot >= 0 && ref.slot < plan_.slots() && ref.offset >= 0;
    };
    for (const KernelCall& call : plan_.calls) {
        first_arg_.push_back(arg_count_);
        if (call.tasks < 0 || call.grain < 1 || call.scratch_bytes < 0 || call.inputs < 0 ||
            static_cast<size_t>(call.inputs) > call.args.size())
            return invalid("call of " + call.kernel + " has invalid counts");
        for (const BufferRef& ref : call.args) {
            if (!fits(ref)) return invalid("call of " + call.kernel + " names memory outside the plan");
            if (ref.slot == 0) arena_patches_.push_back({arg_count_, ref});
            if (ref.slot > 0 && ref.slot < plan_.first_weight()) patches_.push_back({arg_count_, ref});
            ++arg_count_;
        }
        if (call.scratch_bytes > 0)
            scratch_stride_ = std::max(
                scratch_stride_, sizeof(KernelStatus) + whole_lines(static_cast<size_t>(call.scratch_bytes)));
    }
    for (const Plan::OutputCopy& output_copy : plan_.output_copies)
        if (!fits(output_copy.from) || output_copy.output < 0 || output_copy.output >= plan_.outputs ||
            output_copy.bytes < 0)
            return invalid("an output copy names memory outside the plan");

    for (const int64_t bytes : plan_.io_bytes) {
        io_offsets_.push_back(io_staging_bytes_);
        io_staging_bytes_ += whole_blocks(static_cast<size_t>(bytes));
    }
    if (plan_.arena_bytes < 0) return invalid("its arena has a negative size");
    for (const Plan::ArenaPart& part : plan_.arena_parts)
        if (part.offset < 0 || part.bytes < 0 || part.offset > plan_.arena_bytes - part.bytes)
            return invalid("a part of the arena lies outside of it");
    XPURT_TRY(prepare_calls());
    arena_bytes_ = whole_blocks(static_cast<size_t>(plan_.arena_bytes));
    const size_t total = plan_.calls.size();
    const size_t batch = plan_.batch > 0 ? static_cast<size_t>(plan_.batch) : std::max<size_t>(total, 1);
    for (size_t first = 0; first < total; first += batch) {
        std::vector<RecordedCall> calls;
        for (size_t i = first; i < std::min(first + batch, total); ++i)
            calls.push_back({prepared_[i].get(), &plan_.calls[i], first_arg_[i], place_workspace(i)});
        XPURT_ASSIGN_OR_RETURN(auto recording, backend_->record(calls));
        recordings_.push_back(std::move(recording));
    }
    return {};
}

// Return the lowest place in the arena where a call's workspace overlaps nothing that lives during the call.
size_t Executor::place_workspace(size_t call) {
    const size_t bytes = prepared_[call]->workspace_bytes();
    if (bytes == 0) return 0;
    std::vector<std::pair<size_t, size_t>> taken;  // begin and end
    for (const Plan::ArenaPart& part : plan_.arena_parts)
        if (part.first <= static_cast<int64_t>(call) && static_cast<int64_t>(call) <= part.last)
            taken.emplace_back(part.offset, part.offset + part.bytes);
    if (plan_.arena_parts.empty()) taken.emplace_back(0, plan_.arena_bytes);
    std::sort(taken.begin(), taken.end());
    size_t offset = 0;
    for (const auto& [begin, end] : taken) {
        if (offset + bytes <= begin) break;
        offset = std::max(offset, whole_blocks(end));
    }
    arena_bytes_ = std::max(arena_bytes_, offset + bytes);
    return offset;
}

// Prepare the calls: those of libraries in several threads if the backend takes them.
Status Executor::prepare_calls() {
    std::vector<std::optional<Result<std::unique_ptr<PreparedKernel>>>> prepared(plan_.calls.size());
    const auto prepare_one = [&](size_t i) {
        const KernelCall& call = plan_.calls[i];
        prepared[i] = backend_->prepare(call, call.own_module ? call.own_module : plan_.module);
    };
    std::vector<size_t> of_libraries;
    for (size_t i = 0; i < prepared.size(); ++i) {
        if (plan_.calls[i].library.empty())
            prepare_one(i);
        else
            of_libraries.push_back(i);
    }
    side_by_side(of_libraries.size(), backend_->preparing_threads(),
                 [&](size_t i) { prepare_one(of_libraries[i]); });
    Status refused;
    for (size_t i = 0; i < prepared.size(); ++i) {
        const KernelCall& call = plan_.calls[i];
        const Status& status = prepared[i]->status;
        if (!status.ok()) {
            if (call.library.empty()) return status;
            if (refused.ok()) refused = status;
            refused.refusals.push_back({call.position, status.message, status.advice});
        }
        prepared_.push_back(std::move(prepared[i]->value));
    }
    return refused;
}

bool Executor::try_lock(ContextSlot& slot) noexcept {
    const unsigned owner_id = fork_generation() + 1;
    unsigned owner = slot.owner.load(std::memory_order_relaxed);
    return owner != owner_id && slot.owner.compare_exchange_strong(owner, owner_id);
}

Executor::ContextSlot* Executor::try_acquire() noexcept {
    for (int i = 0; i < slot_count_; ++i)
        if (try_lock(slots_[i])) return &slots_[i];
    return nullptr;
}

Executor::ContextSlot& Executor::acquire() {
    if (ContextSlot* slot = try_acquire()) return *slot;
    std::unique_lock<std::mutex> lock(waiting_mutex_);
    waiting_.fetch_add(1);
    ContextSlot* slot = nullptr;
    freed_.wait(lock, [&] { return (slot = try_acquire()) != nullptr; });
    waiting_.fetch_sub(1);
    return *slot;
}

void Executor::release(ContextSlot& slot) noexcept {
    slot.owner.store(0);
    if (waiting_.load() == 0) return;
    { const std::lock_guard<std::mutex> lock(waiting_mutex_); }
    freed_.notify_all();
}

Result<std::unique_ptr<Executor::Context>> Executor::make_context() {
    auto context = std::make_unique<Context>(*backend_, arenas_.get());
    if (scratch_stride_ > 0) {
        const size_t bytes = scratch_stride_ * static_cast<size_t>(backend_->threads());
        context->scratch = MemoryPool::host().allocate(bytes);
        if (context->scratch == nullptr)
            return Status{Code::no_memory,
                          "cannot allocate " + std::to_string(bytes) + " bytes of scratch memory", ""};
        for (size_t at = 0; at < bytes; at += scratch_stride_)
            new (static_cast<char*>(context->scratch) + at) KernelStatus{};
        allocations_.fetch_add(1, std::memory_order_relaxed);
    }
    if (backend_->is_asynchronous()) {
        XPURT_ASSIGN_OR_RETURN(auto state, backend_->open());
        context->state = std::move(state);
    }
    context->slots.resize(static_cast<size_t>(plan_.slots()));
    context->args.resize(arg_count_);
    contexts_.fetch_add(1, std::memory_order_relaxed);
    return context;
}

Status Executor::run(const Run& run) {
    struct SlotGuard {
        Executor& executor;
        ContextSlot& slot;
        ~SlotGuard() { executor.release(slot); }
    };
    if (run.weights->memory().size() != static_cast<size_t>(plan_.weights))
        return invalid("the plan reads " + std::to_string(plan_.weights) + " weights and states, " +
                       std::to_string(run.weights->memory().size()) + " are bound");
    XPURT_TRY(check_overlap(run));
    std::unique_lock<std::mutex> lock;
    if (WeightBindings::StateLock* const state_lock = run.weights->state_lock(); state_lock != nullptr) {
        lock = std::unique_lock<std::mutex>(state_lock->mutex);
        const bool follows = run.order.on_caller_stream && run.order.stream == state_lock->stream;
        if (state_lock->in_flight && !follows) XPURT_TRY(backend_->synchronize(nullptr));
        state_lock->in_flight = run.order.on_caller_stream;
        state_lock->stream = run.order.stream;
    }
    if (run.order.on_caller_stream)
        if (const uint64_t capture = backend_->capture_of(run.order); capture != 0)
            return run_captured(capture, run);
    const SlotGuard guard{*this, acquire()};
    if (closed_.load()) return closed();
    if (!guard.slot.context) {
        XPURT_ASSIGN_OR_RETURN(guard.slot.context, make_context());
    }
    return run_over(*guard.slot.context, run, false);
}

// Run over an arena: the caller's, one of the pool, or the context's own.
Status Executor::run_over(Context& context, const Run& run, bool keep) {
    const size_t bytes = run_bytes(run.host);
    if (arenas_ == nullptr || run.arena != nullptr || bytes == 0) {
        XPURT_TRY(make_arena(context, run));
        return run_in(context, run, nullptr);
    }
    Run with_arena = run;
    if (context.kept != nullptr) {
        with_arena.arena = context.kept->memory;
        return run_in(context, with_arena, nullptr);
    }
    bool allocated = false;
    const ArenaPool::Request request{
        bytes, &context, keep, &cancelled_, cancelled_.load(std::memory_order_relaxed), run.stop};
    XPURT_ASSIGN_OR_RETURN(auto* const arena, arenas_->take(request, allocated));
    if (allocated) allocations_.fetch_add(1, std::memory_order_relaxed);
    if (keep) context.kept = arena;
    with_arena.arena = arena->memory;
    bool followed = false;
    Status status = run_in(context, with_arena, arena, &followed);
    if (!followed) {
        arenas_->give_back_unused(*arena);
        return status;
    }
    // A run that failed may not have recorded its end, so that the context does not order its next run.
    Status given = arenas_->give_back(*arena, context.state.get(), status.ok() ? &context : nullptr,
                                      run.order.on_caller_stream && !keep);
    return status.ok() ? given : status;
}

// Allocate the context's arena, unless the caller provides one.
Status Executor::make_arena(Context& context, const Run& run) {
    if (run.arena != nullptr || context.arena != nullptr || arena_bytes_ == 0) return {};
    XPURT_ASSIGN_OR_RETURN(auto arena, backend_->allocate(arena_bytes_));
    context.arena = arena;
    allocations_.fetch_add(1, std::memory_order_relaxed);
    return {};
}

// Run as part of a graph that the caller captures. Calls of one capture follow each other, so they share a
// context.
Status Executor::run_captured(uint64_t capture, const Run& run) {
    const std::lock_guard<std::mutex> lock(captured_mutex_);
    if (closed_.load()) return closed();
    std::unique_ptr<Context>& context = captured_[capture];
    if (!context) {
        XPURT_ASSIGN_OR_RETURN(context, make_context());
    }
    return run_over(*context, run, true);
}

Status Executor::closed() const {
    return {Code::cancelled, "the executor of " + plan_.name + " is closed", "Make a new one."};
}

// Kernels read inputs while they write outputs, so an output must not share memory with either.
Status Executor::check_overlap(const Run& run) const {
    struct Range {
        uintptr_t begin, end;
        size_t io_index;
    };
    const size_t inputs = static_cast<size_t>(plan_.inputs),
                 total = inputs + static_cast<size_t>(plan_.outputs);
    if (plan_.io_bytes.size() != total || !(run.host || backend_->has_addresses())) return {};
    thread_local std::vector<Range> ranges;
    ranges.clear();
    for (size_t i = 0; i < total; ++i) {
        const auto begin = reinterpret_cast<uintptr_t>(i < inputs ? run.inputs[i] : run.outputs[i - inputs]);
        if (plan_.io_bytes[i] > 0)
            ranges.push_back({begin, begin + static_cast<uintptr_t>(plan_.io_bytes[i]), i});
    }
    std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
    const auto name = [&](size_t i) {
        return i < inputs ? "input " + std::to_string(i) : "output " + std::to_string(i - inputs);
    };
    const Range *input = nullptr, *output = nullptr;  // the ranges that extend furthest so far
    for (const Range& range : ranges) {
        const bool is_output = range.io_index >= inputs;
        const Range* other = output != nullptr && output->end > range.begin              ? output
                             : is_output && input != nullptr && input->end > range.begin ? input
                                                                                         : nullptr;
        if (other != nullptr)
            return {Code::overlapping,
                    name(is_output ? range.io_index : other->io_index) + " shares memory with " +
                        name(is_output ? other->io_index : range.io_index),
                    "Give every output memory of its own."};
        const Range*& furthest = is_output ? output : input;
        if (furthest == nullptr || range.end > furthest->end) furthest = &range;
    }
    return {};
}

// Run over memory that is bound. `followed`, if not null: set once the work of the run follows the work that
// used the pooled arena before.
Status Executor::run_in(Context& context, const Run& run, ArenaPool::Arena* pooled, bool* followed) {
    const NvtxRange range(nvtx_active(), plan_.name);
    Status status;
    if (context.state == nullptr) {
        if (followed != nullptr) *followed = true;
        status = submit(context, run, pooled != nullptr);
    } else {
        RunState& state = *context.state;
        if (status = backend_->begin(state, run.order); !status.ok()) return status;
        if (pooled != nullptr) status = arenas_->follow(*pooled, &state, &context);
        if (followed != nullptr) *followed = status.ok();
        if (status.ok()) status = submit(context, run, pooled != nullptr);
        // Also after a failure: work that was queued before it still uses the context.
        Status ended = run.order.on_caller_stream ? backend_->end(state) : backend_->synchronize(&state);
        if (status.ok()) status = std::move(ended);
    }
    if (status.ok()) runs_.fetch_add(1, std::memory_order_relaxed);
    return status;
}

Status Executor::make_io_staging(Context& context) {
    if (io_staging_bytes_ == 0) return {};
    XPURT_ASSIGN_OR_RETURN(auto block, backend_->allocate(io_staging_bytes_));
    context.io_staging = block;
    allocations_.fetch_add(1, std::memory_order_relaxed);
    return {};
}

Status Executor::submit(Context& context, const Run& run, bool pooled) {
    Memory* const io_slots = context.slots.data() + plan_.first_input();
    const size_t inputs = static_cast<size_t>(plan_.inputs), outputs = static_cast<size_t>(plan_.outputs);
    Memory io_staging = nullptr;
    if (run.host) {
        if (io_offsets_.size() != inputs + outputs)
            return invalid("the plan does not state the sizes of its inputs and outputs");
        if (!pooled && context.io_staging == nullptr) XPURT_TRY(make_io_staging(context));
        io_staging = pooled ? advance(run.arena, static_cast<int64_t>(staging_offset())) : context.io_staging;
        for (size_t i = 0; i < inputs + outputs; ++i)
            io_slots[i] = advance(io_staging, static_cast<int64_t>(io_offsets_[i]));
        for (size_t i = 0; i < inputs; ++i) {
            const size_t bytes = static_cast<size_t>(plan_.io_bytes[i]);
            XPURT_TRY(backend_->send(io_staging, io_offsets_[i], run.inputs[i], bytes, *context.state));
            sent_.fetch_add(plan_.io_bytes[i], std::memory_order_relaxed);
        }
    } else {
        std::copy_n(run.inputs, inputs, io_slots);
        std::copy_n(run.outputs, outputs, io_slots + inputs);
    }
    const Memory arena = run.arena != nullptr ? run.arena : context.arena;
    const bool moved = context.slots[0] != arena;
    context.slots[0] = arena;
    if (context.weights_id != run.weights->id()) {
        std::copy(run.weights->memory().begin(), run.weights->memory().end(),
                  context.slots.begin() + plan_.first_weight());
        size_t arg = 0;
        for (const KernelCall& call : plan_.calls)
            for (const BufferRef& ref : call.args)
                context.args[arg++] = advance(context.slots[static_cast<size_t>(ref.slot)], ref.offset);
        context.weights_id = run.weights->id();
    } else {
        for (const ArgumentPatch& patch : patches_)
            context.args[patch.arg] =
                advance(context.slots[static_cast<size_t>(patch.ref.slot)], patch.ref.offset);
        if (moved)
            for (const ArgumentPatch& patch : arena_patches_)
                context.args[patch.arg] = advance(arena, patch.ref.offset);
    }

    Submission submission;
    submission.slots = context.slots.data();
    submission.slot_count = context.slots.size();
    submission.args = context.args.data();
    submission.scratch =
        context.scratch == nullptr ? nullptr : advance(context.scratch, sizeof(KernelStatus));
    submission.scratch_stride = scratch_stride_;
    submission.cancelled = &cancelled_;
    submission.cancel_seen = cancelled_.load(std::memory_order_relaxed);
    submission.stop = run.stop;
    submission.times = run.times;
    submission.ring = run.ring;
    submission.observation = run.observation;
    submission.state = context.state.get();
    if (run.ring != nullptr) submission.names = names_for(*run.ring);

    if (run.observation != nullptr && !backend_->supports_observation())
        run.observation->absent = std::string(backend_->name()) + " does not record activities";
    const int64_t batch = plan_.batch > 0 ? plan_.batch : static_cast<int64_t>(plan_.calls.size());
    for (const auto& recording : recordings_) {
        XPURT_TRY(backend_->submit(*recording, submission));
        submission.first_call += batch;
        if (submission.times != nullptr) submission.times += batch;
    }
    for (const Plan::OutputCopy& output_copy : plan_.output_copies) {
        const Memory to = context.slots[static_cast<size_t>(plan_.first_output() + output_copy.output)];
        const Memory from = context.slots[static_cast<size_t>(output_copy.from.slot)];
        XPURT_TRY(backend_->copy(to, 0, from, static_cast<size_t>(output_copy.from.offset),
                                 static_cast<size_t>(output_copy.bytes), context.state.get()));
        copies_.fetch_add(1, std::memory_order_relaxed);
    }
    if (run.host)
        for (size_t i = 0; i < outputs; ++i) {
            const size_t bytes = static_cast<size_t>(plan_.io_bytes[inputs + i]);
            XPURT_TRY(
                backend_->fetch(run.outputs[i], io_staging, io_offsets_[inputs + i], bytes, *context.state));
            fetched_.fetch_add(plan_.io_bytes[inputs + i], std::memory_order_relaxed);
        }
    if (context.state == nullptr) XPURT_TRY(backend_->synchronize(nullptr));
    return {};
}

std::vector<CalledCode> Executor::called_code() const {
    std::vector<CalledCode> code;
    for (const auto& recording : recordings_)
        for (CalledCode& call : recording->called_code()) code.push_back(std::move(call));
    return code;
}

std::vector<std::string> Executor::implementations() const {
    std::vector<std::string> names;
    for (const auto& prepared : prepared_) names.push_back(prepared->implementation());
    return names;
}

const uint32_t* Executor::names_for(EventRing& ring) {
    const std::lock_guard<std::mutex> lock(ring_mutex_);
    if (named_ring_ != &ring) {
        names_.clear();
        for (const KernelCall& call : plan_.calls) names_.push_back(ring.intern(call.kernel));
        named_ring_ = &ring;
    }
    return names_.data();
}

void Executor::close() {
    const std::lock_guard<std::mutex> lock(closing_);
    closed_.store(true);
    cancel();
    const auto forget = [&](ContextSlot& slot) {
        if (slot.context) contexts_.fetch_sub(1, std::memory_order_relaxed);
        slot.context.reset();
    };
    int busy = 0;
    for (int i = 0; i < slot_count_; ++i)  // keep each context until all are acquired
        try_lock(slots_[i]) ? forget(slots_[i]) : void(++busy);
    for (; busy > 0; --busy) forget(acquire());
    for (int i = 0; i < slot_count_; ++i) release(slots_[i]);
    const std::lock_guard<std::mutex> captures(captured_mutex_);
    contexts_.fetch_sub(static_cast<int64_t>(captured_.size()), std::memory_order_relaxed);
    captured_.clear();
}

Counters Executor::counters() const noexcept {
    Counters counters;
    counters.runs = runs_.load();
    counters.dispatches = counters.runs * static_cast<int64_t>(plan_.calls.size());
    counters.prepared = static_cast<int64_t>(prepared_.size());
    counters.allocations = allocations_.load();
    counters.copies = copies_.load();
    counters.contexts = contexts_.load();
    counters.sent = sent_.load();
    counters.fetched = fetched_.load();
    return counters;
}

}  // namespace xpurt
