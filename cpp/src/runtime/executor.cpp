// runtime/executor.cpp: contexts, bindings and the run itself.
#include "xpurt/executor.h"

#include <algorithm>
#include <cstdint>
#include <new>

#include "xpurt/memory.h"
#include "xpurt/thread_pool.h"

namespace xpurt {
namespace {

Status invalid(std::string message) {
    return {Code::invalid, std::move(message),
            "Compile the model again; if it persists, report the program."};
}

char* advance(Memory memory, int64_t offset) noexcept {
    // Through an integer: a backend's memory need not be an address, and then nobody follows the result.
    return reinterpret_cast<char*>(reinterpret_cast<uintptr_t>(memory) + static_cast<uintptr_t>(offset));
}

}  // namespace

Fixed::Fixed(std::vector<Memory> memory, bool exclusive) : memory_(std::move(memory)) {
    static std::atomic<uint64_t> ids{0};
    id_ = ++ids;
    if (exclusive) turn_ = std::make_shared<Turn>();
}

// One run's memory. Everything is sized when it is made.
struct Executor::Context {
    Backend& backend;
    Memory arena = nullptr;
    Memory borders = nullptr;  // inputs and outputs of runs over the host's arrays, where those are elsewhere
    void* scratch = nullptr;
    std::unique_ptr<RunState> state;
    std::vector<Memory> slots;
    std::vector<void*> args;
    uint64_t fixed_id = 0;  // whose addresses stand in slots and args; 0: nobody's yet

    explicit Context(Backend& owner) : backend(owner) {}
    ~Context() {
        state.reset();
        backend.release(arena);
        backend.release(borders);
        MemoryPool::host().release(scratch);
    }
};

Executor::Executor(std::shared_ptr<Backend> backend, Plan plan, int contexts)
    : backend_(std::move(backend)),
      plan_(std::move(plan)),
      slots_(std::make_unique<Slot[]>(static_cast<size_t>(std::max(contexts, 1)))),
      slot_count_(std::max(contexts, 1)) {}

Executor::~Executor() { close(); }

Result<std::unique_ptr<Executor>> Executor::create(std::shared_ptr<Backend> backend, Plan plan,
                                                   int contexts) {
    std::unique_ptr<Executor> executor(new Executor(std::move(backend), std::move(plan), contexts));
    if (Status status = executor->prepare(); !status.ok()) return status;
    return executor;
}

Status Executor::prepare() {
    const auto fits = [&](const Place& place) {
        return place.slot >= 0 && place.slot < plan_.slots() && place.offset >= 0;
    };
    for (const KernelCall& call : plan_.calls) {
        first_arg_.push_back(arg_count_);
        if (call.tasks < 0 || call.grain < 1 || call.scratch_bytes < 0 || call.inputs < 0 ||
            static_cast<size_t>(call.inputs) > call.args.size())
            return invalid("call of " + call.kernel + " has counts that make no sense");
        for (const Place& place : call.args) {
            if (!fits(place)) return invalid("call of " + call.kernel + " names memory outside the plan");
            if (place.slot > 0 && place.slot < plan_.first_fixed()) patches_.push_back({arg_count_, place});
            ++arg_count_;
        }
        if (call.scratch_bytes > 0)
            scratch_stride_ = std::max(
                scratch_stride_, sizeof(KernelStatus) + whole_lines(static_cast<size_t>(call.scratch_bytes)));
    }
    for (const Plan::Handover& handover : plan_.handovers)
        if (!fits(handover.from) || handover.output < 0 || handover.output >= plan_.outputs ||
            handover.bytes < 0)
            return invalid("a handover names memory outside the plan");

    for (const int64_t bytes : plan_.border_bytes) {
        border_offsets_.push_back(border_total_);
        border_total_ += (static_cast<size_t>(bytes) + 255) / 256 * 256;
    }
    Status refused;
    for (const KernelCall& call : plan_.calls) {
        auto prepared = backend_->prepare(call, call.apart ? call.apart : plan_.module);
        if (!prepared.status.ok()) {
            if (call.library.empty()) return prepared.status;
            if (refused.ok()) refused = prepared.status;
            refused.refusals.push_back({call.position, prepared.status.message, prepared.status.advice});
        }
        prepared_.push_back(std::move(prepared.value));
    }
    if (!refused.ok()) return refused;
    const size_t total = plan_.calls.size();
    const size_t batch = plan_.batch > 0 ? static_cast<size_t>(plan_.batch) : std::max<size_t>(total, 1);
    for (size_t first = 0; first < total; first += batch) {
        std::vector<RecordedCall> calls;
        for (size_t i = first; i < std::min(first + batch, total); ++i)
            calls.push_back({prepared_[i].get(), &plan_.calls[i], first_arg_[i]});
        auto recording = backend_->record(calls);
        if (!recording.status.ok()) return recording.status;
        recordings_.push_back(std::move(recording.value));
    }
    return {};
}

bool Executor::take(Slot& slot) noexcept {
    const unsigned mine = fork_generation() + 1;
    unsigned held = slot.owner.load(std::memory_order_relaxed);
    return held != mine && slot.owner.compare_exchange_strong(held, mine);
}

Executor::Slot* Executor::try_acquire() noexcept {
    for (int i = 0; i < slot_count_; ++i)
        if (take(slots_[i])) return &slots_[i];
    return nullptr;
}

Executor::Slot& Executor::acquire() {
    if (Slot* slot = try_acquire()) return *slot;
    std::unique_lock<std::mutex> lock(waiting_mutex_);
    waiting_.fetch_add(1);
    Slot* slot = nullptr;
    freed_.wait(lock, [&] { return (slot = try_acquire()) != nullptr; });
    waiting_.fetch_sub(1);
    return *slot;
}

void Executor::release(Slot& slot) noexcept {
    slot.owner.store(0);
    if (waiting_.load() == 0) return;
    { const std::lock_guard<std::mutex> lock(waiting_mutex_); }
    freed_.notify_all();
}

Status Executor::make(Slot& slot) {
    auto context = std::make_unique<Context>(*backend_);
    if (plan_.arena_bytes > 0) {
        auto arena = backend_->allocate(static_cast<size_t>(plan_.arena_bytes));
        if (!arena.status.ok()) return arena.status;
        context->arena = arena.value;
        allocations_.fetch_add(1, std::memory_order_relaxed);
    }
    if (scratch_stride_ > 0) {
        const size_t bytes = scratch_stride_ * static_cast<size_t>(backend_->threads());
        context->scratch = MemoryPool::host().allocate(bytes);
        if (context->scratch == nullptr)
            return {Code::no_memory, "no " + std::to_string(bytes) + " bytes of scratch memory", ""};
        for (size_t at = 0; at < bytes; at += scratch_stride_)
            new (static_cast<char*>(context->scratch) + at) KernelStatus{};
        allocations_.fetch_add(1, std::memory_order_relaxed);
    }
    if (backend_->queues()) {
        auto state = backend_->open();
        if (!state.status.ok()) return state.status;
        context->state = std::move(state.value);
    }
    context->slots.resize(static_cast<size_t>(plan_.slots()));
    context->slots[0] = context->arena;
    context->args.resize(arg_count_);
    slot.context = std::move(context);
    contexts_.fetch_add(1, std::memory_order_relaxed);
    return {};
}

Status Executor::run(const Run& run) {
    struct Held {
        Executor& executor;
        Slot& slot;
        ~Held() { executor.release(slot); }
    };
    if (run.fixed->memory().size() != static_cast<size_t>(plan_.fixed))
        return invalid("the plan reads " + std::to_string(plan_.fixed) + " weights and states, " +
                       std::to_string(run.fixed->memory().size()) + " are bound");
    if (Status status = check_overlap(run); !status.ok()) return status;
    std::unique_lock<std::mutex> lock;
    if (Fixed::Turn* const turn = run.fixed->turn(); turn != nullptr) {
        lock = std::unique_lock<std::mutex>(turn->mutex);
        const bool follows = run.order.callers && run.order.stream == turn->stream;
        if (turn->in_flight && !follows)
            if (Status status = backend_->synchronize(nullptr); !status.ok()) return status;
        turn->in_flight = run.order.callers;
        turn->stream = run.order.stream;
    }
    const Held held{*this, acquire()};
    if (closed_.load())
        return {Code::cancelled, "the executor of " + plan_.name + " is closed", "Make a new one."};
    if (!held.slot.context)
        if (Status status = make(held.slot); !status.ok()) return status;
    return run_in(*held.slot.context, run);
}

// Kernels read inputs while they write outputs, so an output has memory of its own.
Status Executor::check_overlap(const Run& run) const {
    struct Range {
        uintptr_t begin, end;
        size_t border;
    };
    const size_t inputs = static_cast<size_t>(plan_.inputs),
                 total = inputs + static_cast<size_t>(plan_.outputs);
    if (plan_.border_bytes.size() != total || !(run.host || backend_->has_addresses())) return {};
    thread_local std::vector<Range> ranges;
    ranges.clear();
    for (size_t i = 0; i < total; ++i) {
        const auto begin = reinterpret_cast<uintptr_t>(i < inputs ? run.inputs[i] : run.outputs[i - inputs]);
        if (plan_.border_bytes[i] > 0)
            ranges.push_back({begin, begin + static_cast<uintptr_t>(plan_.border_bytes[i]), i});
    }
    std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
    const auto name = [&](size_t i) {
        return i < inputs ? "input " + std::to_string(i) : "output " + std::to_string(i - inputs);
    };
    const Range *input = nullptr, *output = nullptr;  // that reach furthest so far
    for (const Range& range : ranges) {
        const bool is_output = range.border >= inputs;
        const Range* other = output != nullptr && output->end > range.begin              ? output
                             : is_output && input != nullptr && input->end > range.begin ? input
                                                                                         : nullptr;
        if (other != nullptr)
            return {Code::overlapping,
                    name(is_output ? range.border : other->border) + " shares memory with " +
                        name(is_output ? other->border : range.border),
                    "Give every output memory of its own."};
        const Range*& furthest = is_output ? output : input;
        if (furthest == nullptr || range.end > furthest->end) furthest = &range;
    }
    return {};
}

Status Executor::run_in(Context& context, const Run& run) {
    const NvtxRange range(nvtx_active(), plan_.name);
    Status status;
    if (context.state == nullptr) {
        status = submit(context, run);
    } else {
        RunState& state = *context.state;
        if (status = backend_->begin(state, run.order); !status.ok()) return status;
        status = submit(context, run);
        // Even after a failure: what was queued before it still uses the context.
        Status ended = run.order.callers ? backend_->end(state) : backend_->synchronize(&state);
        if (status.ok()) status = std::move(ended);
    }
    if (status.ok()) runs_.fetch_add(1, std::memory_order_relaxed);
    return status;
}

Status Executor::make_borders(Context& context) {
    if (border_offsets_.size() != static_cast<size_t>(plan_.inputs + plan_.outputs))
        return invalid("the plan does not say how large its inputs and outputs are");
    if (border_total_ == 0) return {};
    auto block = backend_->allocate(border_total_);
    if (!block.status.ok()) return block.status;
    context.borders = block.value;
    allocations_.fetch_add(1, std::memory_order_relaxed);
    return {};
}

Status Executor::submit(Context& context, const Run& run) {
    Memory* const borders = context.slots.data() + plan_.first_input();
    const size_t inputs = static_cast<size_t>(plan_.inputs), outputs = static_cast<size_t>(plan_.outputs);
    if (run.host) {
        if (context.borders == nullptr)
            if (Status status = make_borders(context); !status.ok()) return status;
        for (size_t i = 0; i < inputs + outputs; ++i)
            borders[i] = advance(context.borders, static_cast<int64_t>(border_offsets_[i]));
        for (size_t i = 0; i < inputs; ++i) {
            const size_t bytes = static_cast<size_t>(plan_.border_bytes[i]);
            if (Status status =
                    backend_->send(context.borders, border_offsets_[i], run.inputs[i], bytes, *context.state);
                !status.ok())
                return status;
            sent_.fetch_add(plan_.border_bytes[i], std::memory_order_relaxed);
        }
    } else {
        std::copy_n(run.inputs, inputs, borders);
        std::copy_n(run.outputs, outputs, borders + inputs);
    }
    if (context.fixed_id != run.fixed->id()) {
        std::copy(run.fixed->memory().begin(), run.fixed->memory().end(),
                  context.slots.begin() + plan_.first_fixed());
        size_t arg = 0;
        for (const KernelCall& call : plan_.calls)
            for (const Place& place : call.args)
                context.args[arg++] = advance(context.slots[static_cast<size_t>(place.slot)], place.offset);
        context.fixed_id = run.fixed->id();
    } else {
        for (const Patch& patch : patches_)
            context.args[patch.arg] =
                advance(context.slots[static_cast<size_t>(patch.place.slot)], patch.place.offset);
    }

    Bindings bindings;
    bindings.slots = context.slots.data();
    bindings.slot_count = context.slots.size();
    bindings.args = context.args.data();
    bindings.scratch = context.scratch == nullptr ? nullptr : advance(context.scratch, sizeof(KernelStatus));
    bindings.scratch_stride = scratch_stride_;
    bindings.cancelled = &cancelled_;
    bindings.cancel_seen = cancelled_.load(std::memory_order_relaxed);
    bindings.stop = run.stop;
    bindings.times = run.times;
    bindings.ring = run.ring;
    bindings.observation = run.observation;
    bindings.state = context.state.get();
    if (run.ring != nullptr) bindings.names = names_for(*run.ring);

    if (run.observation != nullptr && !backend_->observes())
        run.observation->absent = std::string(backend_->name()) + " has no driver that keeps a record";
    const int64_t batch = plan_.batch > 0 ? plan_.batch : static_cast<int64_t>(plan_.calls.size());
    for (const auto& recording : recordings_) {
        if (Status status = backend_->submit(*recording, bindings); !status.ok()) return status;
        bindings.first_call += batch;
        if (bindings.times != nullptr) bindings.times += batch;
    }
    for (const Plan::Handover& handover : plan_.handovers) {
        const Memory to = context.slots[static_cast<size_t>(plan_.first_output() + handover.output)];
        const Memory from = context.slots[static_cast<size_t>(handover.from.slot)];
        if (Status status = backend_->copy(to, 0, from, static_cast<size_t>(handover.from.offset),
                                           static_cast<size_t>(handover.bytes), context.state.get());
            !status.ok())
            return status;
        copies_.fetch_add(1, std::memory_order_relaxed);
    }
    if (run.host)
        for (size_t i = 0; i < outputs; ++i) {
            const size_t bytes = static_cast<size_t>(plan_.border_bytes[inputs + i]);
            if (Status status = backend_->fetch(run.outputs[i], context.borders, border_offsets_[inputs + i],
                                                bytes, *context.state);
                !status.ok())
                return status;
            fetched_.fetch_add(plan_.border_bytes[inputs + i], std::memory_order_relaxed);
        }
    if (context.state == nullptr)
        if (Status status = backend_->synchronize(nullptr); !status.ok()) return status;
    return {};
}

std::vector<std::string> Executor::implementations() const {
    std::vector<std::string> found;
    for (const auto& prepared : prepared_) found.push_back(prepared->implementation());
    return found;
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
    const auto forget = [&](Slot& slot) {
        if (slot.context) contexts_.fetch_sub(1, std::memory_order_relaxed);
        slot.context.reset();
    };
    int busy = 0;
    for (int i = 0; i < slot_count_; ++i)  // each is kept until all are here
        take(slots_[i]) ? forget(slots_[i]) : void(++busy);
    for (; busy > 0; --busy) forget(acquire());
    for (int i = 0; i < slot_count_; ++i) release(slots_[i]);
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
