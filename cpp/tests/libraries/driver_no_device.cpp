// A CUDA driver that finds no device, as in a container that was started without GPUs.
#include <cstddef>

extern "C" {
int cuInit(unsigned) { return 100; }
int cuDriverGetVersion(int* version) { return *version = 13000, 0; }
int cuDeviceGetCount(int*) { return 3; }
int cuDeviceGet(int*, int) { return 3; }
int cuDeviceGetName(char*, int, int) { return 3; }
int cuDeviceTotalMem_v2(size_t*, int) { return 3; }
int cuDeviceGetAttribute(int*, int, int) { return 3; }
int cuGetErrorName(int result, const char** name) {
    return *name = result == 100 ? "CUDA_ERROR_NO_DEVICE" : "?", 0;
}
}
