// runtime/collectives.cpp: the registry of communicators, groups of threads, and the library "collectives".
#include "runtime/collectives.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "runtime/operands.h"

namespace xpurt {
namespace {

constexpr struct {
    const char* name;
    Collective value;
} collective_names[] = {{"all_reduce", Collective::all_reduce},
                        {"all_gather", Collective::all_gather},
                        {"reduce_scatter", Collective::reduce_scatter}};

constexpr struct {
    const char* name;
    ElementType value;
    size_t bytes;
} element_types[] = {{"int32", ElementType::int32, 4},     {"int64", ElementType::int64, 8},
                     {"float16", ElementType::float16, 2}, {"bfloat16", ElementType::bfloat16, 2},
                     {"float32", ElementType::float32, 4}, {"float64", ElementType::float64, 8}};

struct CommunicatorRegistry {
    std::mutex mutex;
    std::map<int64_t, std::weak_ptr<Communicator>> communicators;
};

CommunicatorRegistry& communicator_registry() {
    static auto* const instance = new CommunicatorRegistry;
    return *instance;
}

// Conversions of 16-bit floats, for sums in float.
float float_of_bfloat(uint16_t bits) noexcept {
    const uint32_t wide = uint32_t{bits} << 16;
    float value = 0;
    std::memcpy(&value, &wide, sizeof value);
    return value;
}

uint16_t bfloat_of_float(float value) noexcept {
    uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    if (value != value) return static_cast<uint16_t>(bits >> 16 | 0x40);  // a quiet NaN stays one
    return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

float float_of_half(uint16_t half) noexcept {
    const uint32_t sign = uint32_t{half & 0x8000U} << 16;
    uint32_t exponent = half >> 10 & 0x1F, mantissa = half & 0x3FF;
    if (exponent == 0) {
        const float value = static_cast<float>(mantissa) * 0x1p-24F;
        return sign != 0 ? -value : value;
    }
    exponent = exponent == 31 ? 255 : exponent + 112;
    const uint32_t bits = sign | exponent << 23 | mantissa << 13;
    float value = 0;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

uint16_t half_of_float(float value) noexcept {
    uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
    bits &= 0x7FFFFFFF;
    if (bits > 0x7F800000) return static_cast<uint16_t>(sign | 0x7E00);
    if (bits >= 0x47800000) return static_cast<uint16_t>(sign | 0x7C00);
    if (bits < 0x38800000) {  // subnormal: the sum with 0.5 rounds to multiples of 2^-24
        float magnitude = 0;
        std::memcpy(&magnitude, &bits, sizeof magnitude);
        magnitude += 0.5F;
        uint32_t rounded = 0;
        std::memcpy(&rounded, &magnitude, sizeof rounded);
        return static_cast<uint16_t>(sign | (rounded - 0x3F000000));
    }
    bits += 0xC8000FFF + (bits >> 13 & 1);
    return static_cast<uint16_t>(sign | bits >> 13);
}

template <class Element>
Element same(Element value) noexcept {
    return value;
}

// out = the sum of the inputs from element `first`, added by rank in the type Sum, so that all ranks get the
// same bits.
template <class Element, class Sum, Sum (*load)(Element), Element (*store)(Sum)>
void add_all(const std::vector<const void*>& inputs, size_t first, size_t count, void* out) {
    auto* const to = static_cast<Element*>(out);
    for (size_t i = 0; i < count; ++i) {
        Sum sum = load(static_cast<const Element*>(inputs[0])[first + i]);
        for (size_t rank = 1; rank < inputs.size(); ++rank)
            sum += load(static_cast<const Element*>(inputs[rank])[first + i]);
        to[i] = store(sum);
    }
}

void add_inputs(ElementType type, const std::vector<const void*>& inputs, size_t first, size_t count,
                void* out) {
    switch (type) {
        // Unsigned, so that an overflow wraps.
        case ElementType::int32:
            return add_all<uint32_t, uint32_t, same, same>(inputs, first, count, out);
        case ElementType::int64:
            return add_all<uint64_t, uint64_t, same, same>(inputs, first, count, out);
        case ElementType::float16:
            return add_all<uint16_t, float, float_of_half, half_of_float>(inputs, first, count, out);
        case ElementType::bfloat16:
            return add_all<uint16_t, float, float_of_bfloat, bfloat_of_float>(inputs, first, count, out);
        case ElementType::float32:
            return add_all<float, float, same, same>(inputs, first, count, out);
        case ElementType::float64:
            return add_all<double, double, same, same>(inputs, first, count, out);
    }
}

// Threads of one process that exchange host memory through each other's pointers.
class HostGroup {
  public:
    struct Offer {
        Collective collective = Collective::all_reduce;
        ElementType type = ElementType::float32;
        size_t count = 0;
        const void* in = nullptr;
    };

    HostGroup(int size, double timeout_s)
        : offers_(static_cast<size_t>(size)), timeout_(static_cast<int64_t>(timeout_s * 1e6)) {}

    Status run(int rank, const Offer& offer, void* out) {
        offers_[static_cast<size_t>(rank)] = offer;
        XPURT_TRY(wait(rank));
        for (size_t other = 0; other < offers_.size(); ++other) {
            const Offer& theirs = offers_[other];
            if (theirs.collective != offer.collective || theirs.type != offer.type ||
                theirs.count != offer.count) {
                abort("rank " + std::to_string(rank) + " calls " + text(offer) + ", and rank " +
                      std::to_string(other) + " calls " + text(theirs));
                return check();
            }
        }
        std::vector<const void*> inputs;
        for (const Offer& each : offers_) inputs.push_back(each.in);
        const size_t bytes = offer.count * bytes_of(offer.type);
        const size_t parts = offer.collective == Collective::reduce_scatter ? offers_.size() : 1;
        const size_t part = offer.count / parts, first = parts == 1 ? 0 : static_cast<size_t>(rank) * part;
        if (offer.collective == Collective::all_gather) {
            for (size_t other = 0; other < inputs.size(); ++other)
                std::memmove(static_cast<char*>(out) + other * bytes, inputs[other], bytes);
        } else if (out == offer.in) {  // other ranks still read it
            std::vector<char> sum(part * bytes_of(offer.type));
            add_inputs(offer.type, inputs, first, part, sum.data());
            XPURT_TRY(wait(rank));
            std::memcpy(out, sum.data(), sum.size());
            return {};
        } else {
            add_inputs(offer.type, inputs, first, part, out);
        }
        return wait(rank);
    }

    Status check() {
        const std::lock_guard<std::mutex> lock(mutex_);
        return failed_;
    }

    void abort(const std::string& reason) {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (failed_.ok()) failed_ = {Code::call_failed, reason, "Make a new group of ranks."};
        arrived_all_.notify_all();
    }

  private:
    static std::string text(const Offer& offer) {
        return std::string(name_of(offer.collective)) + " of " + std::to_string(offer.count) +
               " elements of " + std::to_string(bytes_of(offer.type)) + " bytes";
    }

    // Wait until every rank is here.
    Status wait(int rank) {
        std::unique_lock<std::mutex> lock(mutex_);
        if (!failed_.ok()) return failed_;
        const uint64_t round = round_;
        if (++arrived_ == offers_.size()) {
            arrived_ = 0;
            ++round_;
            arrived_all_.notify_all();
            return {};
        }
        const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(timeout_);
        arrived_all_.wait_until(lock, until, [&] { return round_ != round || !failed_.ok(); });
        if (failed_.ok() && round_ == round)
            failed_ = {Code::call_failed,
                       "rank " + std::to_string(rank) + " waited " + std::to_string(timeout_ / 1000000) +
                           " s for " + std::to_string(offers_.size() - arrived_) + " of " +
                           std::to_string(offers_.size()) + " ranks",
                       "Run the same program on every rank at the same time."};
        arrived_all_.notify_all();
        return round_ == round ? failed_ : Status{};
    }

    std::vector<Offer> offers_;  // by rank; written before a wait, read after it
    const int64_t timeout_;
    std::mutex mutex_;
    std::condition_variable arrived_all_;
    size_t arrived_ = 0;
    uint64_t round_ = 0;
    Status failed_;
};

class HostCommunicator final : public Communicator {
  public:
    HostCommunicator(std::shared_ptr<HostGroup> group, int rank, int size)
        : Communicator(rank, size), group_(std::move(group)) {}

    std::string implementation(Collective collective) const override {
        return std::string(name_of(collective)) + " of " + std::to_string(size()) + " threads";
    }
    Status run(Collective collective, const void* in, void* out, size_t count, ElementType type,
               void*) override {
        return group_->run(rank(), {collective, type, count, in}, out);
    }
    Status check() override { return group_->check(); }
    void abort(const std::string& reason) noexcept override { group_->abort(reason); }

  private:
    const std::shared_ptr<HostGroup> group_;
};

class HostCollective final : public LibraryKernel {
  public:
    explicit HostCollective(CollectiveCall call) : call_(std::move(call)) {}

    Status execute(void* const* args, void*) const override {
        if (call_.communicator == nullptr) {
            std::memmove(args[1], args[0], call_.bytes());
            return {};
        }
        return call_.communicator->run(call_.collective, args[0], args[1], call_.count, call_.type, nullptr);
    }
    std::string implementation() const override {
        return call_.communicator == nullptr ? "a copy: the group has one rank"
                                             : call_.communicator->implementation(call_.collective);
    }

  private:
    const CollectiveCall call_;
};

class HostCollectives final : public KernelLibrary {
  public:
    std::string version() const override { return xpurt::version(); }
    Result<std::unique_ptr<LibraryKernel>> prepare(const KernelCall& call, int) override {
        XPURT_ASSIGN_OR_RETURN(auto checked, CollectiveCall::of(call, -1));
        return std::unique_ptr<LibraryKernel>(std::make_unique<HostCollective>(std::move(checked)));
    }
};

size_t elements_of(const ArgumentSpec& spec) {
    size_t count = 1;
    for (const int64_t d : spec.shape) count *= static_cast<size_t>(d);
    return count;
}

}  // namespace

bool collective_of(const std::string& name, Collective& collective) noexcept {
    for (const auto& each : collective_names)
        if (name == each.name) return collective = each.value, true;
    return false;
}

const char* name_of(Collective collective) noexcept {
    for (const auto& each : collective_names)
        if (collective == each.value) return each.name;
    return "";
}

bool element_type_of(const std::string& dtype, ElementType& type) noexcept {
    for (const auto& each : element_types)
        if (dtype == each.name) return type = each.value, true;
    return false;
}

size_t bytes_of(ElementType type) noexcept {
    for (const auto& each : element_types)
        if (type == each.value) return each.bytes;
    return 0;
}

Communicator::Communicator(int rank, int size)
    : rank_(rank), size_(size), id_([] {
          static std::atomic<int64_t> next{1};
          return next.fetch_add(1);
      }()) {}

std::shared_ptr<Communicator> find_communicator(int64_t id) {
    CommunicatorRegistry& registry = communicator_registry();
    const std::lock_guard<std::mutex> lock(registry.mutex);
    const auto entry = registry.communicators.find(id);
    return entry == registry.communicators.end() ? nullptr : entry->second.lock();
}

void register_communicator(const std::shared_ptr<Communicator>& communicator) {
    CommunicatorRegistry& registry = communicator_registry();
    const std::lock_guard<std::mutex> lock(registry.mutex);
    for (auto at = registry.communicators.begin(); at != registry.communicators.end();)
        at = at->second.expired() ? registry.communicators.erase(at) : std::next(at);
    registry.communicators[communicator->id()] = communicator;
}

std::vector<std::shared_ptr<Communicator>> host_communicators(int size, double timeout_s) {
    const auto group = std::make_shared<HostGroup>(size, timeout_s);
    std::vector<std::shared_ptr<Communicator>> communicators;
    for (int rank = 0; rank < size; ++rank) {
        communicators.push_back(std::make_shared<HostCommunicator>(group, rank, size));
        register_communicator(communicators.back());
    }
    return communicators;
}

Result<CollectiveCall> CollectiveCall::of(const KernelCall& call, int device) {
    CollectiveCall checked;
    if (!collective_of(call.symbol, checked.collective))
        return Status{Code::unsupported, text_of(call) + ": there is no collective " + call.symbol, ""};
    XPURT_TRY(check_arguments(call, 2));
    const ArgumentSpec &in = call.specs[0], &out = call.specs[1];
    if (in.dtype != out.dtype || !element_type_of(in.dtype, checked.type))
        return inconsistent(call, "it exchanges " + in.dtype + " as " + out.dtype);
    const int64_t ranks = option<int64_t>(call, "ranks", 0);
    checked.count = elements_of(in);
    const size_t size = static_cast<size_t>(std::max<int64_t>(ranks, 1)), results = elements_of(out);
    const bool fits = checked.collective == Collective::all_reduce   ? results == checked.count
                      : checked.collective == Collective::all_gather ? results == checked.count * size
                                                                     : results * size == checked.count;
    if (ranks < 1 || !fits || extent_of(in.shape, in.strides) != static_cast<int64_t>(checked.count) ||
        extent_of(out.shape, out.strides) != static_cast<int64_t>(results))
        return inconsistent(call, "the sizes of its buffers do not fit " + std::to_string(ranks) + " ranks");
    if (ranks == 1) return checked;
    const int64_t id = option<int64_t>(call, "communicator", 0);
    checked.communicator = id == 0 ? nullptr : find_communicator(id);
    if (checked.communicator == nullptr)
        return Status{Code::invalid,
                      text_of(call) + " exchanges tensors with " + std::to_string(ranks) +
                          " ranks, and the executor has no communicator",
                      "Pass communicator= to the Executor."};
    if (checked.communicator->size() != ranks)
        return Status{Code::invalid,
                      text_of(call) + " is compiled for " + std::to_string(ranks) +
                          " ranks, and the communicator has " + std::to_string(checked.communicator->size()),
                      "Compile the model for the communicator's number of ranks."};
    if (checked.communicator->device() != device) {
        const auto place = [](int index) {
            return index < 0 ? std::string("host memory") : "cuda:" + std::to_string(index);
        };
        return Status{Code::invalid,
                      text_of(call) + " runs on " + place(device) + ", and the communicator exchanges " +
                          place(checked.communicator->device()),
                      "Make the communicator for the executor's device."};
    }
    return checked;
}

std::unique_ptr<KernelLibrary> make_collectives() { return std::make_unique<HostCollectives>(); }

}  // namespace xpurt
