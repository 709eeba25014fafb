// xpurt/collectives.h: groups of ranks that exchange tensors: all-reduce, all-gather, reduce-scatter.
//
// A rank is one device, in one thread or process. Each rank has a Communicator. Programs contain collectives
// as calls of the libraries "collectives" (host memory) and "nccl" (CUDA), whose option `communicator` is the
// id of the Communicator that the executor was given.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "xpurt/library.h"
#include "xpurt/status.h"

namespace xpurt {

enum class Collective { all_reduce, all_gather, reduce_scatter };

// "all_reduce" -> Collective::all_reduce; false for another name.
bool collective_of(const std::string& name, Collective& collective) noexcept;
const char* name_of(Collective collective) noexcept;

// Elements that a group can add.
enum class ElementType { int32, int64, float16, bfloat16, float32, float64 };
bool element_type_of(const std::string& dtype, ElementType& type) noexcept;
size_t bytes_of(ElementType type) noexcept;

// One rank of a group. Every rank must call the same collectives in the same order.
class Communicator {
  public:
    virtual ~Communicator() = default;
    Communicator(const Communicator&) = delete;
    Communicator& operator=(const Communicator&) = delete;

    int rank() const noexcept { return rank_; }
    int size() const noexcept { return size_; }
    int64_t id() const noexcept { return id_; }
    // The index of the CUDA device whose memory it exchanges; -1 for host memory.
    virtual int device() const noexcept { return -1; }
    virtual std::string implementation(Collective collective) const = 0;

    // Exchange `count` elements of each rank's input. all_reduce: `out` has the sum of all inputs, and may be
    // `in`. all_gather: `out` has the inputs of all ranks, by rank. reduce_scatter: `out` has part number
    // rank() of `size()` equal parts of the sum. On CUDA the work is queued on `stream`.
    virtual Status run(Collective collective, const void* in, void* out, size_t count, ElementType type,
                       void* stream) = 0;

    // The first error of the group, or ok. It does not wait.
    virtual Status check() = 0;
    // End the group: current and later calls fail with this reason. Thread-safe; the first reason is kept.
    virtual void abort(const std::string& reason) noexcept = 0;

  protected:
    Communicator(int rank, int size);

  private:
    const int rank_, size_;
    const int64_t id_;
};

// The living communicator with an id, or null.
std::shared_ptr<Communicator> find_communicator(int64_t id);
// Make a communicator known by its id, as long as it lives.
void register_communicator(const std::shared_ptr<Communicator>& communicator);

// The communicators of a group of threads of this process, which exchange host memory. A rank that waits
// longer than `timeout_s` for the others ends the group.
std::vector<std::shared_ptr<Communicator>> host_communicators(int size, double timeout_s);

// The version of NCCL: "2.28.9".
Result<std::string> nccl_version();
// The 128 bytes that all ranks of a group join by. One rank makes them and gives them to the others.
Result<std::string> nccl_group_id();
// Join a group as one rank, on a CUDA device. It returns when all ranks have joined, or after `timeout_s`.
Result<std::shared_ptr<Communicator>> nccl_communicator(int device, int rank, int size,
                                                        const std::string& group_id, double timeout_s);

}  // namespace xpurt
