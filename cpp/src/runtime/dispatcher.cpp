// runtime/dispatcher.cpp: signatures and the cache of compiled ops.
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
    // The stride of a dim of extent 1 is never used, so its value must not distinguish signatures.
    for (int32_t d = 0; d < tensor.rank; ++d)
        add(tensor.shape[d] == 1 ? 0 : static_cast<uint64_t>(tensor.strides[d]));
}

uint64_t Signature::hash() const noexcept {
    // Multiply and fold word by word, so that the order of the words matters.
    uint64_t value = 0x9e3779b97f4a7c15u + size_;
    const size_t size = std::min(size_, max_words);
    for (size_t i = 0; i < size; ++i) {
        value = (value ^ words_[i]) * 0xff51afd7ed558ccdu;
        value ^= value >> 32;
    }
    return value;
}

Status DispatchEntry::run(const TensorView* tensors, Memory output, const StreamOrder& order) const {
    constexpr size_t max_inputs = 16;
    if (inputs.size() > max_inputs) return {Code::invalid, "an op has more than 16 inputs", ""};
    std::array<Memory, max_inputs> memory;
    for (size_t i = 0; i < inputs.size(); ++i) memory[i] = tensors[inputs[i]].data;
    Executor::Run run;
    run.weights = weights;
    run.inputs = memory.data();
    run.outputs = &output;
    run.order = order;
    return executor->run(run);
}

Dispatcher::LruList::iterator* Dispatcher::lookup(const Signature& signature, uint64_t hash) {
    const auto [first, last] = by_hash_.equal_range(hash);
    for (auto position = first; position != last; ++position) {
        const std::vector<uint64_t>& words = position->second->words;
        if (words.size() == signature.size() && std::equal(words.begin(), words.end(), signature.words()))
            return &position->second;
    }
    return nullptr;
}

std::shared_ptr<const DispatchEntry> Dispatcher::find(const Signature& signature, bool counts) {
    const uint64_t hash = signature.hash();
    const std::lock_guard<std::mutex> lock(mutex_);
    LruList::iterator* const position = signature.fits() ? lookup(signature, hash) : nullptr;
    if (position == nullptr) {
        counters_.misses += counts;
        return nullptr;
    }
    counters_.hits += counts;
    if (*position != lru_.begin()) lru_.splice(lru_.begin(), lru_, *position);
    return (*position)->entry;
}

std::shared_ptr<const DispatchEntry> Dispatcher::put(const Signature& signature,
                                                     std::shared_ptr<const DispatchEntry> entry) {
    if (!signature.fits()) return entry;
    const uint64_t hash = signature.hash();
    const std::lock_guard<std::mutex> lock(mutex_);
    if (LruList::iterator* const position = lookup(signature, hash)) {
        std::swap((*position)->entry, entry);
        return entry;
    }
    std::shared_ptr<const DispatchEntry> evicted;
    if (lru_.size() >= capacity_) {
        const auto oldest = std::prev(lru_.end());
        const auto [first, last] = by_hash_.equal_range(oldest->hash);
        by_hash_.erase(
            std::find_if(first, last, [&](const auto& position) { return position.second == oldest; }));
        evicted = std::move(oldest->entry);
        lru_.erase(oldest);
        ++counters_.evictions;
    }
    lru_.push_front({{signature.words(), signature.words() + signature.size()}, hash, std::move(entry)});
    by_hash_.emplace(hash, lru_.begin());
    return evicted;
}

std::vector<std::shared_ptr<const DispatchEntry>> Dispatcher::clear() {
    std::vector<std::shared_ptr<const DispatchEntry>> evicted;
    const std::lock_guard<std::mutex> lock(mutex_);
    for (LruEntry& each : lru_) evicted.push_back(std::move(each.entry));
    lru_.clear();
    by_hash_.clear();
    return evicted;
}

DispatchCounters Dispatcher::counters() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    DispatchCounters counters = counters_;
    counters.entries = static_cast<int64_t>(lru_.size());
    return counters;
}

}  // namespace xpurt
