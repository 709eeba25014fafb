// cuda/driver.h: the CUDA driver API, as far as the core calls it, declared without NVIDIA's headers.
#pragma once

#include <type_traits>

#include "xpurt/device.h"
#include "xpurt/library.h"

namespace xpurt::cuda {

using CUresult = int;  // the header's enums are ints in the ABI
using CUdevice = int;

struct CUuuid {
    unsigned char bytes[16];
};

// name, CUDA version that introduced it (1000 * major + 10 * minor), need, type.
// The one list: the symbol table, the struct of pointers and the messages all come from it.
#define XPURT_CUDA_SYMBOLS(X)                                              \
    X(cuInit, 2000, required, CUresult(unsigned))                          \
    X(cuDriverGetVersion, 2020, required, CUresult(int*))                  \
    X(cuDeviceGetCount, 2000, required, CUresult(int*))                    \
    X(cuDeviceGet, 2000, required, CUresult(CUdevice*, int))               \
    X(cuDeviceGetName, 2000, required, CUresult(char*, int, CUdevice))     \
    X(cuDeviceTotalMem_v2, 3020, required, CUresult(size_t*, CUdevice))    \
    X(cuDeviceGetAttribute, 2000, required, CUresult(int*, int, CUdevice)) \
    X(cuDeviceGetPCIBusId, 4010, optional, CUresult(char*, int, CUdevice)) \
    X(cuGetErrorName, 6000, optional, CUresult(CUresult, const char**))    \
    X(cuGetErrorString, 6000, optional, CUresult(CUresult, const char**))  \
    X(cuDeviceGetUuid_v2, 11040, optional, CUresult(CUuuid*, CUdevice))

// The driver library as data; cuda_library() is the process's instance of it.
LibrarySpec library_spec();

// The functions of a loaded library; an optional one may be null.
struct Driver {
#define XPURT_MEMBER(name, since, need, type) std::add_pointer_t<type> name;
    XPURT_CUDA_SYMBOLS(XPURT_MEMBER)
#undef XPURT_MEMBER

    explicit Driver(const Library& library);
};

// cuda_facts() over any instance of the driver library.
Result<CudaFacts> facts(Library& library, const Search& search);

// Status of a driver call: who was called, the driver's name of the error and its explanation.
Status status_of(const Driver& driver, CUresult result, const char* call);

}  // namespace xpurt::cuda
