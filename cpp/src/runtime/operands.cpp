// runtime/operands.cpp: checks of a library call against its buffers.
#include "runtime/operands.h"

#include <algorithm>
#include <limits>

namespace xpurt {
namespace {

constexpr int64_t max_elements = int64_t{1} << 62;
constexpr int64_t max_int32 = std::numeric_limits<int32_t>::max();  // libraries store these values in 32 bits

// Bits of an element; 0 if no library computes with the dtype.
int64_t bits_of(const std::string& dtype) {
    if (dtype == "float64" || dtype == "int64") return 64;
    if (dtype == "float32" || dtype == "int32") return 32;
    if (dtype == "float16" || dtype == "bfloat16") return 16;
    return dtype == "uint8" || dtype == "int8" ? 8 : 0;
}

std::string text_of(const Dims& dims) {
    std::string text = "[";
    for (const int64_t d : dims) text += (text.size() > 1 ? ", " : "") + std::to_string(d);
    return text + "]";
}

Status check_operand(const KernelCall& call, const Operand& operand) {
    const ArgumentSpec& spec = call.specs[operand.argument];
    const std::string name =
        std::string(operand.name) + " (argument " + std::to_string(operand.argument) + ")";
    const int64_t bits = bits_of(operand.dtype), spec_bits = bits_of(spec.dtype);
    if (bits == 0 || spec_bits == 0 || (operand.dtype != spec.dtype && spec.dtype != "uint8"))
        return inconsistent(call,
                            name + " is computed in " + operand.dtype + ", its buffer holds " + spec.dtype);
    const int64_t reach = extent_of(operand.shape, operand.strides),
                  room = extent_of(spec.shape, spec.strides);
    if (reach < 0)
        return inconsistent(call, name + " has shape " + text_of(operand.shape) + " and strides " +
                                      text_of(operand.strides) + ", which no library supports");
    // For raw bytes, compare whole elements. Neither side overflows: both counts are at most 2^62.
    if (room < 0 || reach > (bits == spec_bits ? room : room / (bits / 8)))
        return inconsistent(call, name + " reaches over " + std::to_string(reach) + " elements of " +
                                      operand.dtype + ", its buffer is " + spec.dtype + text_of(spec.shape));
    return {};
}

}  // namespace

int64_t extent_of(const Dims& shape, const Dims& strides) {
    if (shape.size() != strides.size()) return -1;
    int64_t last = 0;
    for (size_t i = 0; i < shape.size(); ++i) {
        int64_t step = 0;
        if (shape[i] < 1 || strides[i] < 0 || __builtin_mul_overflow(shape[i] - 1, strides[i], &step) ||
            __builtin_add_overflow(last, step, &last) || last >= max_elements)
            return -1;
    }
    return last + 1;
}

Status inconsistent(const KernelCall& call, const std::string& reason) {
    return {Code::invalid, text_of(call) + ": the call contradicts its buffers: " + reason,
            "Compile the model again; if it persists, report the program."};
}

Status check_arguments(const KernelCall& call, size_t count) {
    if (call.args.size() != count || call.specs.size() != count ||
        call.inputs != static_cast<int64_t>(count) - 1)
        return inconsistent(call, "its options require " + std::to_string(count) +
                                      " arguments, the last one its output; it has " +
                                      std::to_string(call.args.size()) + ", of which " +
                                      std::to_string(call.inputs) + " are inputs");
    return {};
}

Status check_operands(const KernelCall& call, std::initializer_list<Operand> operands) {
    for (const Operand& operand : operands) XPURT_TRY(check_operand(call, operand));
    return {};
}

Status check_convolution(const KernelCall& call, const Dims& x, const Dims& w, const Dims& y,
                         const Window& window, int64_t groups) {
    const size_t space = window.stride.size(), rank = space + 2;
    if (space < 1 || space > 3 || x.size() != rank || w.size() != rank || y.size() != rank ||
        window.dilation.size() != space || window.begin.size() != space || window.end.size() != space)
        return inconsistent(call, "stride, dilation and padding do not fit x " + text_of(x) + ", weight " +
                                      text_of(w) + " and y " + text_of(y));
    const std::string shapes = "x " + text_of(x) + " and weight " + text_of(w) + " in " +
                               std::to_string(groups) + " groups do not make y " + text_of(y);
    for (const Dims* dims : {&x, &w, &y})
        if (std::any_of(dims->begin(), dims->end(), [](int64_t d) { return d < 1 || d > max_int32; }))
            return inconsistent(call, shapes);
    if (groups < 1 || w[0] % groups != 0 || x[1] % groups != 0 || x[1] / groups != w[1] || x[0] != y[0] ||
        w[0] != y[1])
        return inconsistent(call, shapes);
    for (size_t i = 0; i < space; ++i) {
        const int64_t stride = window.stride[i], dilation = window.dilation[i], begin = window.begin[i],
                      end = window.end[i];
        if (stride < 1 || stride > max_int32 || dilation < 1 || dilation > max_int32 || begin < 0 ||
            begin > max_int32 || end < 0 || end > max_int32)
            return inconsistent(call, "stride " + text_of(window.stride) + ", dilation " +
                                          text_of(window.dilation) + " or padding " + text_of(window.begin) +
                                          ", " + text_of(window.end) + " is out of range");
        const int64_t rest = x[i + 2] + begin + end - dilation * (w[i + 2] - 1) - 1;
        if (rest < 0 || rest / stride + 1 != y[i + 2]) return inconsistent(call, shapes);
    }
    return {};
}

}  // namespace xpurt
