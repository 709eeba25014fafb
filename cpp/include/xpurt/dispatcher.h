// xpurt/dispatcher.h: a cache of compiled single ops. A call's signature holds everything that the compiled
// code depends on: op, attributes, policy, and each tensor's dtype, shape, strides and device. The first call
// of a signature is compiled by the caller and inserted; every later call is a lookup and a launch.
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

// A view of a tensor in DLPack's terms. Strides are in elements; the arrays belong to the tensor's owner.
struct TensorView {
    void* data = nullptr;
    const int64_t* shape = nullptr;
    const int64_t* strides = nullptr;
    int32_t rank = 0;
    uint8_t code = 0, bits = 0;  // DLPack type code and bits
    int32_t device_type = 1, device_index = 0;

    bool dense() const noexcept;     // row-major without gaps
    int64_t count() const noexcept;  // number of elements
    int64_t bytes() const noexcept { return (count() * bits + 7) / 8; }
};

// The cache key of a call, as 64-bit words. Its size is fixed, so that building one allocates nothing.
class Signature {
  public:
    static constexpr size_t max_words = 128;

    void add(uint64_t word) noexcept {
        if (size_ < max_words) words_[size_] = word;
        ++size_;
    }
    void add(const TensorView& tensor) noexcept;
    void add_absent() noexcept { add(~uint64_t{0}); }  // for an operand that was omitted

    bool fits() const noexcept {
        return size_ <= max_words;
    }  // false if the signature is too long to be cached
    const uint64_t* words() const noexcept { return words_.data(); }
    size_t size() const noexcept { return size_; }
    uint64_t hash() const noexcept;

  private:
    std::array<uint64_t, max_words> words_;
    size_t size_ = 0;
};

// A compiled signature: the executor of a plan without weights or states, and the mapping from its inputs to
// the call's tensors. Entries are shared: an evicted entry lives until its last run ends.
struct DispatchEntry {
    Executor* executor = nullptr;
    const WeightBindings* weights = nullptr;
    std::vector<int32_t> inputs{};        // for each input of the plan: its index among the call's tensors
    std::shared_ptr<const void> owner{};  // keeps `executor` and `weights` alive

    // Compute into `output` without allocating. On the caller's stream, the run is queued.
    Status run(const TensorView* tensors, Memory output, const StreamOrder& order) const;
};

struct DispatchCounters {
    int64_t hits = 0, misses = 0;
    int64_t evictions = 0;  // entries removed to make room
    int64_t entries = 0;    // current size of the cache
};

// An LRU cache of at most `capacity` entries. Thread-safe.
class Dispatcher {
  public:
    explicit Dispatcher(size_t capacity) : capacity_(capacity == 0 ? 1 : capacity) {}

    // Return the entry, or null. Counts a hit or a miss unless `counts` is false.
    std::shared_ptr<const DispatchEntry> find(const Signature& signature, bool counts = true);
    // Insert an entry. Return the entry that it replaces or evicts, so that the caller destroys it outside
    // the lock.
    std::shared_ptr<const DispatchEntry> put(const Signature& signature,
                                             std::shared_ptr<const DispatchEntry> entry);
    // Remove all entries and return them, for the same reason.
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
    LruList lru_{};  // most recently used first
    std::unordered_multimap<uint64_t, LruList::iterator> by_hash_{};
    DispatchCounters counters_{};
};

}  // namespace xpurt
