// runtime/operands.h: options of a library's call, and the proof that the library stays inside its buffers.
//
// A library computes what shapes and strides tell it. A program states those twice: in the specs of its
// buffers, which the loader has checked against memory, and in the options of the call. Every library
// compares the two here before it makes a descriptor of them.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "xpurt/kernel.h"

namespace xpurt {

using Dims = std::vector<int64_t>;

// An option of a call; `otherwise` where it is absent or of another type.
template <class T>
T option(const KernelCall& call, const char* name, T otherwise) {
    const auto found = call.options.find(name);
    if (found == call.options.end()) return otherwise;
    const T* const value = std::get_if<T>(&found->second);
    return value != nullptr ? *value : otherwise;
}

// What a library is told of one argument.
struct Operand {
    const char* name;
    size_t argument;
    std::string dtype;
    Dims shape, strides;  // elements
};

// Elements from the first to behind the last. -1: no library takes it (a dim below 1, a negative stride, more
// than 2^62 elements, another number of strides than of dims).
int64_t extent_of(const Dims& shape, const Dims& strides);

// The error of a call that contradicts itself.
Status inconsistent(const KernelCall& call, const std::string& why);

// As many arguments and specs as the call's options say.
Status check_arguments(const KernelCall& call, size_t count);

// Each operand has the dtype of its argument's spec (raw bytes, uint8, hold any) and reaches no further.
Status check_operands(const KernelCall& call, std::initializer_list<Operand> operands);

// A convolution: x [n, c, space], w [filters, c / groups, space], y [n, filters, space], and a window that
// makes y's space of x's.
struct Window {
    Dims stride, dilation, begin, end;  // of each space dim
};
Status check_convolution(const KernelCall& call, const Dims& x, const Dims& w, const Dims& y,
                         const Window& window, int64_t groups);

}  // namespace xpurt
