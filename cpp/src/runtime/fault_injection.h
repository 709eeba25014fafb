// runtime/fault_injection.h: kernels with deliberate errors, for tests of the checks that must detect them.
#pragma once

#include <memory>

#include "xpurt/kernel.h"

namespace xpurt {

// The fault that XPU_TEST_WRONG_KERNEL requests for a call: "KERNEL:FAULT" for every call of that kernel, or
// "KERNEL@3:FAULT" for the call at that position of its plan, or "node NAME:FAULT" for the calls whose first
// model node has that name. FAULT is "element" (change one element in the
// middle of the first output), "tile" (set 64 elements there to zero), or "stride" (swap the last two dims in
// memory; reverse a single dim).
enum class Fault { none, element, tile, stride };
Fault fault_for(const KernelCall& call);

// The function that a call's symbol is looked up by: the call's own, or what XPU_TEST_SWAP_KERNEL requests
// behind the plan: "3=SYMBOL" for the call at that position. It must take the same arguments.
std::string symbol_for(const KernelCall& call);

// A kernel that runs `library`, or `function` if that is null, and then applies the fault to the first
// output. The memory must be the host's, and the call must have specs. `call` must outlive the kernel.
std::unique_ptr<LibraryKernel> inject_fault(Fault fault, const KernelCall& call, KernelFunction function,
                                            std::unique_ptr<LibraryKernel> library);

}  // namespace xpurt
