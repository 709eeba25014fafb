// runtime/kernel_status.cpp: messages for the errors that kernels report.
#include "xpurt/kernel.h"

namespace xpurt {

std::string text_of(const KernelCall& call) {
    return "kernel " + call.kernel + (call.nodes.empty() ? "" : " (" + call.nodes + ")");
}

Status status_of(const KernelStatus& status, const std::string& who) {
    const std::string value = std::to_string(status.value), limit = std::to_string(status.limit);
    const std::string what = status.kind == KernelStatus::index_out_of_range
                                 ? "index " + value + " is outside a dim of " + limit
                             : status.kind == KernelStatus::division_by_zero
                                 ? "an integer is divided by zero"
                                 : "needs " + value + " elements, but there are " + limit;
    return {Code::call_failed, who + ": " + what,
            "Check the values of the inputs that are indices or sizes."};
}

}  // namespace xpurt
