// xpurt/dispatcher.h: single ops on anybody's tensors. What a call looks like (op, attributes, policy, each
// tensor's type, shape, strides and device) is its signature; the first call of a signature is compiled
// elsewhere and put here, every later one is a look-up and a launch.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "xpurt/executor.h"

namespace xpurt {

// A tensor as its owner shows it, in DLPack's terms. Strides count elements; the arrays belong to the owner.
struct TensorView {
    void* data = nullptr;
    const int64_t* shape = nullptr;
    const int64_t* strides = nullptr;
    int32_t rank = 0;
    uint8_t code = 0, bits = 0;  // DLPack's type
    int32_t device_type = 1, device_index = 0;

    bool dense() const noexcept;     // row-major, without gaps
    int64_t count() const noexcept;  // elements
    int64_t bytes() const noexcept { return (count() * bits + 7) / 8; }
};

// Words that say what a call looks like. Of fixed size, so that building one allocates nothing.
class Signature {
  public:
    static constexpr size_t max_words = 128;

    void add(uint64_t word) noexcept {
        if (size_ < max_words) words_[size_] = word;
        ++size_;
    }
    void add(const TensorView& tensor) noexcept;
    void add_absent() noexcept { add(~uint64_t{0}); }  // an operand that was left out

    bool fits() const noexcept { return size_ <= max_words; }  // else it is too long to be known
    const uint64_t* words() const noexcept { return words_.data(); }
    size_t size() const noexcept { return size_; }
    uint64_t hash() const noexcept;

  private:
    std::array<uint64_t, max_words> words_;
    size_t size_ = 0;
};

// What a signature became: an executor of a plan without weights or states, and which of the call's tensors
// are its inputs. Entries are shared, so that one that is forgotten lives until its last run is over.
struct DispatchEntry {
    Executor* executor = nullptr;
    const WeightBindings* weights = nullptr;
    std::vector<int32_t> inputs{};        // by input of the plan: index among the call's tensors
    std::shared_ptr<const void> owner{};  // keeps both alive

    // Computes into `output`. No allocation, nothing looked up; with the caller's order nobody waits.
    Status run(const TensorView* tensors, Memory output, const StreamOrder& order) const;
};

struct DispatchCounters {
    int64_t hits = 0, misses = 0;
    int64_t evictions = 0;  // entries that made room for others
    int64_t entries = 0;    // that are kept now
};

// The entries by signature, as many as `capacity`; the one that was not used for the longest makes room. Any
// thread.
class Dispatcher {
  public:
    explicit Dispatcher(size_t capacity) : capacity_(capacity == 0 ? 1 : capacity) {}

    // The entry, or null. A call counts as a hit or a miss; whoever only looks says so.
    std::shared_ptr<const DispatchEntry> find(const Signature& signature, bool counts = true);
    // Keeps an entry; gives what it replaces or what makes room for it, to be let go of by the caller.
    std::shared_ptr<const DispatchEntry> put(const Signature& signature,
                                             std::shared_ptr<const DispatchEntry> entry);
    // Forgets all; gives them back likewise.
    std::vector<std::shared_ptr<const DispatchEntry>> clear();
    DispatchCounters counters() const;

  private:
    struct LruEntry {
        std::vector<uint64_t> words;
        uint64_t hash;
        std::shared_ptr<const DispatchEntry> entry;
    };
    using LruList = std::list<LruEntry>;
    LruList::iterator* lookup(const Signature& signature, uint64_t hash);

    const size_t capacity_;
    mutable std::mutex mutex_;
    LruList lru_{};  // the last used first
    std::unordered_multimap<uint64_t, LruList::iterator> by_hash_{};
    DispatchCounters counters_{};
};

}  // namespace xpurt
