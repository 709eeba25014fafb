// Kernels for the simulated driver as programs had them before reports lay in the host's memory.
#include <cstddef>
#include <cstdint>

extern "C" {
uint64_t xpurt_status[4] = {0, 0, 0, 0};
extern const size_t xpurt_status_bytes = sizeof xpurt_status;
}
