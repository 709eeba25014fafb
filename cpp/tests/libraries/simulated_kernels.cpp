// Kernels for the simulated driver, each over grid[0] elements: y[i] = a[i] + b[i], and y[i] = x[i] * factor
// + shift. `mapped` is y = a + b with the first word of a tensor map as the address of a, if it is not zero.
// `pick` is y[i] = x[at[i]] of `size` elements, and reports errors like generated CUDA kernels.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

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
extern const int mapped_params = 4;
void mapped(void** params, const unsigned* grid) {
    const float* const a = *static_cast<uint64_t*>(params[3]) == 0 ? floats(params[0]) : floats(params[3]);
    for (unsigned i = 0; i < grid[0]; ++i) floats(params[2])[i] = a[i] + floats(params[1])[i];
}
extern const int pick_params = 4;
uint64_t xpurt_report[2] = {0, 0};
extern const size_t xpurt_report_bytes = sizeof xpurt_report;
void pick(void** params, const unsigned* grid) {
    const auto size = static_cast<int64_t>(*static_cast<uint64_t*>(params[3]));
    for (unsigned i = 0; i < grid[0]; ++i) {
        const auto at = static_cast<int64_t>(floats(params[1])[i]);
        const bool fits = at >= 0 && at < size;
        if (!fits && std::exchange(xpurt_report[0], 1) == 0) {
            auto* const words = reinterpret_cast<std::atomic<uint64_t>*>(xpurt_report[1]);
            words[1] = static_cast<uint64_t>(at);
            words[2] = static_cast<uint64_t>(size);
            words[0] = 1;
        }
        floats(params[2])[i] = floats(params[0])[fits ? at : 0];
    }
}
}
