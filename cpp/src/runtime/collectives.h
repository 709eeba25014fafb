// runtime/collectives.h: collectives as calls of a program.
#pragma once

#include <memory>
#include <string>

#include "xpurt/collectives.h"
#include "xpurt/kernel.h"

namespace xpurt {

// A checked collective of a program. Without a communicator the group has one rank, and the call is a copy.
struct CollectiveCall {
    Collective collective = Collective::all_reduce;
    ElementType type = ElementType::float32;
    size_t count = 0;  // elements of the input
    std::shared_ptr<Communicator> communicator{};

    size_t bytes() const noexcept { return count * bytes_of(type); }
    // `device`: the index of the executor's CUDA device; -1 for the host.
    static Result<CollectiveCall> of(const KernelCall& call, int device);
};

// Collectives of host memory, as the kernel library "collectives".
std::unique_ptr<KernelLibrary> make_collectives();

}  // namespace xpurt
