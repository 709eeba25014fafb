// Kernels for the simulated driver: y[i] = a[i] + b[i], and y[i] = x[i] * factor + shift. Each over grid[0]
// elements. `pick` is y[i] = x[at[i]] of `size` elements, and reports as a GPU's kernels do.
#include <cstddef>
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
extern const int pick_params = 4;
uint64_t xpurt_status[4] = {0, 0, 0, 0};
extern const size_t xpurt_status_bytes = sizeof xpurt_status;
void pick(void** params, const unsigned* grid) {
    const auto size = static_cast<int64_t>(*static_cast<uint64_t*>(params[3]));
    for (unsigned i = 0; i < grid[0]; ++i) {
        const auto at = static_cast<int64_t>(floats(params[1])[i]);
        const bool fits = at >= 0 && at < size;
        if (!fits && xpurt_status[0] == 0) {
            xpurt_status[0] = 1;
            xpurt_status[1] = static_cast<uint64_t>(at);
            xpurt_status[2] = static_cast<uint64_t>(size);
        }
        floats(params[2])[i] = floats(params[0])[fits ? at : 0];
    }
}
}
