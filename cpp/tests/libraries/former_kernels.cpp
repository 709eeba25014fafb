// Kernels for the simulated driver that report errors in the format of older programs.
#include <cstddef>
#include <cstdint>

extern "C" {
uint64_t xpurt_status[4] = {0, 0, 0, 0};
extern const size_t xpurt_status_bytes = sizeof xpurt_status;
}
