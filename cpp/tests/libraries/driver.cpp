// The CUDA driver's ABI as of 11.0: one device, no cuDeviceGetUuid_v2 (11.4), no cuGetErrorName. Represents
// drivers that are too old to be available.
#include <cstddef>
#include <cstring>

extern "C" {
int cuInit(unsigned) { return 0; }
int cuDriverGetVersion(int* version) { return *version = 11000, 0; }
int cuDeviceGetCount(int* count) { return *count = 1, 0; }
int cuDeviceGet(int* device, int index) { return *device = index, index == 0 ? 0 : 101; }
int cuDeviceGetName(char* name, int room, int) { return std::strncpy(name, "Probe GPU", room), 0; }
int cuDeviceTotalMem_v2(size_t* bytes, int) { return *bytes = size_t{3} << 32, 0; }
int cuDeviceGetAttribute(int* value, int attribute, int) { return *value = 1000 + attribute, 0; }
int cuDeviceGetPCIBusId(char* id, int room, int) { return std::strncpy(id, "0000:01:00.0", room), 0; }
}
