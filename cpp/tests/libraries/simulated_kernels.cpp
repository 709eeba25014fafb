// Kernels for the simulated driver: y[i] = a[i] + b[i], and y[i] = x[i] * factor + shift. Each over grid[0]
// elements.
#include <cstdint>
#include <cstring>

namespace {
float* floats(void* param) { return reinterpret_cast<float*>(*static_cast<uint64_t*>(param)); }
}  // namespace

extern "C" {
extern const int add_params = 3;
void add(void** params, const unsigned* grid) {
    for (unsigned i = 0; i < grid[0]; ++i) floats(params[2])[i] = floats(params[0])[i] + floats(params[1])[i];
}
extern const int scale_params = 4;
void scale(void** params, const unsigned* grid) {
    double factor = 0;
    int64_t shift = 0;
    std::memcpy(&factor, params[2], sizeof factor);
    std::memcpy(&shift, params[3], sizeof shift);
    for (unsigned i = 0; i < grid[0]; ++i)
        floats(params[1])[i] = floats(params[0])[i] * static_cast<float>(factor) + static_cast<float>(shift);
}
}
