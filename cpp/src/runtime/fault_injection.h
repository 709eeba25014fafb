// runtime/fault_injection.h: kernels made wrong on purpose, so that a test can prove that somebody notices.
#pragma once

#include <memory>

#include "xpurt/kernel.h"

namespace xpurt {

// What XPU_TEST_WRONG_KERNEL asks of a call that is prepared: "KERNEL:FAULT" for every call of that kernel,
// "KERNEL@3:FAULT" for the one at that position of its plan. FAULT: "element" (one element in the middle of
// the first output is another number), "tile" (64 elements there are zeros, as if nobody had written them),
// or "stride" (the last two dims in memory are swapped; one dim alone is reversed).
enum class Fault { none, element, tile, stride };
Fault fault_for(const KernelCall& call);

// The call, and the fault in its first output after each run. `library`: what computes it; null for
// `function`. The memory must be the host's, and the call must have specs. `call` must outlive what this
// gives.
std::unique_ptr<LibraryKernel> inject_fault(Fault fault, const KernelCall& call, KernelFunction function,
                                            std::unique_ptr<LibraryKernel> library);

}  // namespace xpurt
