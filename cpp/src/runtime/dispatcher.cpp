// runtime/dispatcher.cpp: signatures, and the table of what they became.
#include "xpurt/dispatcher.h"

#include <algorithm>

namespace xpurt {

bool TensorView::dense() const noexcept {
    if (strides == nullptr) return true;
    int64_t expected = 1;
    bool gaps = false;
    for (int32_t d = rank - 1; d >= 0; --d) {
        if (shape[d] == 0) return true;
        gaps |= shape[d] != 1 && strides[d] != expected;
        expected *= shape[d];
    }
    return !gaps;
}

int64_t TensorView::count() const noexcept {
    int64_t count = 1;
    for (int32_t d = 0; d < rank; ++d) count *= shape[d];
    return count;
}

void Signature::add(const TensorView& tensor) noexcept {
    const bool dense = tensor.dense();
    add(uint64_t{tensor.code} | uint64_t{tensor.bits} << 8 | uint64_t{dense} << 16 |
        static_cast<uint64_t>(tensor.rank) << 24 | static_cast<uint64_t>(tensor.device_type) << 32 |
        static_cast<uint64_t>(tensor.device_index) << 48);
    for (int32_t d = 0; d < tensor.rank; ++d) add(static_cast<uint64_t>(tensor.shape[d]));
    if (dense) return;
    // A stride over a single element is never taken: what stands there says nothing.
    for (int32_t d = 0; d < tensor.rank; ++d)
        add(tensor.shape[d] == 1 ? 0 : static_cast<uint64_t>(tensor.strides[d]));
}

uint64_t Signature::hash() const noexcept {
    // Multiply and fold, word by word: equal words in other places give another value.
    uint64_t value = 0x9e3779b97f4a7c15u + size_;
    const size_t size = std::min(size_, most_words);
    for (size_t i = 0; i < size; ++i) {
        value = (value ^ words_[i]) * 0xff51afd7ed558ccdu;
        value ^= value >> 32;
    }
    return value;
}

Status DispatchEntry::run(const TensorView* tensors, Memory output, const Order& order) const {
    constexpr size_t most_inputs = 16;
    if (inputs.size() > most_inputs) return {Code::invalid, "an op has more inputs than fit", ""};
    std::array<Memory, most_inputs> memory;
    for (size_t i = 0; i < inputs.size(); ++i) memory[i] = tensors[inputs[i]].data;
    Executor::Run run;
    run.fixed = fixed;
    run.inputs = memory.data();
    run.outputs = &output;
    run.order = order;
    return executor->run(run);
}

Dispatcher::Order::iterator* Dispatcher::at(const Signature& signature, uint64_t hash) {
    const auto [first, last] = places_.equal_range(hash);
    for (auto place = first; place != last; ++place) {
        const std::vector<uint64_t>& words = place->second->words;
        if (words.size() == signature.size() && std::equal(words.begin(), words.end(), signature.words()))
            return &place->second;
    }
    return nullptr;
}

std::shared_ptr<const DispatchEntry> Dispatcher::find(const Signature& signature, bool counts) {
    const uint64_t hash = signature.hash();
    const std::lock_guard<std::mutex> lock(mutex_);
    Order::iterator* const place = signature.fits() ? at(signature, hash) : nullptr;
    if (place == nullptr) {
        counters_.misses += counts;
        return nullptr;
    }
    counters_.hits += counts;
    if (*place != kept_.begin()) kept_.splice(kept_.begin(), kept_, *place);
    return (*place)->entry;
}

std::shared_ptr<const DispatchEntry> Dispatcher::put(const Signature& signature,
                                                     std::shared_ptr<const DispatchEntry> entry) {
    if (!signature.fits()) return entry;
    const uint64_t hash = signature.hash();
    const std::lock_guard<std::mutex> lock(mutex_);
    if (Order::iterator* const place = at(signature, hash)) {
        std::swap((*place)->entry, entry);
        return entry;
    }
    std::shared_ptr<const DispatchEntry> gone;
    if (kept_.size() >= capacity_) {
        const auto oldest = std::prev(kept_.end());
        const auto [first, last] = places_.equal_range(oldest->hash);
        places_.erase(std::find_if(first, last, [&](const auto& place) { return place.second == oldest; }));
        gone = std::move(oldest->entry);
        kept_.erase(oldest);
        ++counters_.evictions;
    }
    kept_.push_front({{signature.words(), signature.words() + signature.size()}, hash, std::move(entry)});
    places_.emplace(hash, kept_.begin());
    return gone;
}

std::vector<std::shared_ptr<const DispatchEntry>> Dispatcher::clear() {
    std::vector<std::shared_ptr<const DispatchEntry>> gone;
    const std::lock_guard<std::mutex> lock(mutex_);
    for (Kept& each : kept_) gone.push_back(std::move(each.entry));
    kept_.clear();
    places_.clear();
    return gone;
}

DispatchCounters Dispatcher::counters() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    DispatchCounters found = counters_;
    found.entries = static_cast<int64_t>(kept_.size());
    return found;
}

}  // namespace xpurt
