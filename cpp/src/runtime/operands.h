// runtime/operands.h: options of a library call, and the check that the library stays inside its buffers.
//
// A library computes with the shapes and strides that it is given. A program states them twice: in the specs
// of its buffers, which the loader has checked against memory, and in the options of the call. Every library
// compares the two here before it creates a descriptor from them.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "xpurt/kernel.h"

namespace xpurt {

using Dims = std::vector<int64_t>;

// The option of a call; `otherwise` if it is absent or of another type.
template <class T>
T option(const KernelCall& call, const char* name, T otherwise) {
    const auto entry = call.options.find(name);
    if (entry == call.options.end()) return otherwise;
    const T* const value = std::get_if<T>(&entry->second);
    return value != nullptr ? *value : otherwise;
}

// An operand as it is passed to a library.
struct Operand {
    const char* name;
    size_t argument;
    std::string dtype;
    Dims shape, strides;  // in elements
};

// The number of elements from the first to the last. -1 if no library accepts the operand: a dim below 1, a
// negative stride, more than 2^62 elements, or a different number of strides and dims.
int64_t extent_of(const Dims& shape, const Dims& strides);

// The error of a call whose options contradict its buffers.
Status inconsistent(const KernelCall& call, const std::string& reason);

// Check that the call has `count` arguments and specs, the last one its output.
Status check_arguments(const KernelCall& call, size_t count);

// Check that each operand has the dtype of its argument's spec and does not exceed its buffer. A uint8 buffer
// is raw bytes and holds any dtype.
Status check_operands(const KernelCall& call, std::initializer_list<Operand> operands);

// Check a convolution: x [n, c, space], w [filters, c / groups, space], y [n, filters, space], and a window
// that maps the space of x to that of y.
struct Window {
    Dims stride, dilation, begin, end;  // one value per spatial dim
};
Status check_convolution(const KernelCall& call, const Dims& x, const Dims& w, const Dims& y,
                         const Window& window, int64_t groups);

}  // namespace xpurt
