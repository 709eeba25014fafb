// cuda/driver.h: the part of the CUDA driver API that the core uses, declared without NVIDIA's headers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "xpurt/device.h"
#include "xpurt/library.h"

namespace xpurt::cuda {

// Result codes by NVIDIA's names. [[nodiscard]]: a call whose result is dropped does not compile.
enum [[nodiscard]] CUresult : int {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_DEINITIALIZED = 4,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_NOT_READY = 600,
    CUDA_ERROR_SYSTEM_NOT_READY = 802,
    CUDA_ERROR_SYSTEM_DRIVER_MISMATCH = 803,
};
using CUdevice = int;
using CUdeviceptr = unsigned long long;

// Handles. Each has a type of its own, so that the compiler tells them apart.
#define XPURT_CUDA_HANDLE(name) using name = struct name##_handle*;
XPURT_CUDA_HANDLE(CUcontext)
XPURT_CUDA_HANDLE(CUevent)
XPURT_CUDA_HANDLE(CUfunction)
XPURT_CUDA_HANDLE(CUgraph)
XPURT_CUDA_HANDLE(CUgraphExec)
XPURT_CUDA_HANDLE(CUgraphNode)
XPURT_CUDA_HANDLE(CUkernel)
XPURT_CUDA_HANDLE(CUlibrary)
XPURT_CUDA_HANDLE(CUmemoryPool)
XPURT_CUDA_HANDLE(CUstream)
#undef XPURT_CUDA_HANDLE

struct CUuuid {
    unsigned char bytes[16];
};

// Structures of cuda.h, field by field.
struct CUmemPoolProps {
    int allocType = 1;    // pinned
    int handleTypes = 0;  // no sharing between processes
    struct {
        int type = 1;  // device
        int id = 0;
    } location{};
    void* win32SecurityAttributes = nullptr;
    size_t maxSize = 0;
    unsigned char reserved[56] = {};
};
struct CUmemAccessDesc {
    struct {
        int type = 1;  // device
        int id = 0;
    } location{};
    int flags = 3;  // read and write
};
struct CUlaunchAttribute {
    int id = 0;
    int pad = 0;
    union {
        unsigned char bytes[64];
        unsigned clusterDim[3];
        int programmaticStreamSerializationAllowed;
    } value{};
};
struct CUlaunchConfig {
    unsigned gridDimX = 1, gridDimY = 1, gridDimZ = 1;
    unsigned blockDimX = 1, blockDimY = 1, blockDimZ = 1;
    unsigned sharedMemBytes = 0;
    CUstream hStream = nullptr;
    CUlaunchAttribute* attrs = nullptr;
    unsigned numAttrs = 0;
};
struct CUkernelNodeParams {  // CUDA_KERNEL_NODE_PARAMS_v2
    CUfunction func = nullptr;
    unsigned gridDimX = 1, gridDimY = 1, gridDimZ = 1;
    unsigned blockDimX = 1, blockDimY = 1, blockDimZ = 1;
    unsigned sharedMemBytes = 0;
    void** kernelParams = nullptr;
    void** extra = nullptr;
    CUkernel kern = nullptr;
    CUcontext ctx = nullptr;
};
struct alignas(64) CUtensorMap {
    uint64_t opaque[16] = {};
};
struct CUgraphExecUpdateResultInfo {
    int result = 0;
    CUgraphNode errorNode = nullptr, errorFromNode = nullptr;
};
static_assert(sizeof(CUmemPoolProps) == 88 && sizeof(CUmemAccessDesc) == 12 &&
                  sizeof(CUlaunchAttribute) == 72 && sizeof(CUlaunchConfig) == 56 &&
                  sizeof(CUkernelNodeParams) == 72,
              "as cuda.h has them");

// Existing values never change; new ones are added at the end.
enum DeviceAttribute {
    clock_rate = 13,
    multiprocessor_count = 16,
    memory_clock_rate = 36,
    capability_major = 75,
    capability_minor = 76,
    max_shared_per_block_optin = 97,
};
enum FunctionAttribute { static_shared_bytes = 1, local_bytes = 3, registers = 4, max_dynamic_shared = 8 };
enum LaunchAttribute { cluster_dimension = 4, programmatic_serialization = 6 };
enum PoolAttribute { release_threshold = 4, reserved_current = 5, used_current = 7, used_high = 8 };
enum StreamFlag { stream_non_blocking = 1 };
enum EventFlag { event_default = 0, event_no_timing = 2 };
// Of tensor maps: 16-bit values, rows of 128 bytes whose chunks are swizzled, sectors of 128 bytes in L2.
enum TensorMapWord { map_uint16 = 1, map_swizzle_128 = 3, map_l2_128 = 2 };
enum CaptureMode { capture_thread_local = 1, capture_relaxed = 2 };
enum CaptureStatus { capture_active = 1 };

// name, CUDA version that introduced it (1000 * major + 10 * minor), need, type. The symbol table, the struct
// of function pointers and the messages are all generated from this list. Symbols that cuda_facts() needs are
// required; those that running programs needs are checked by can_run().
#define XPURT_CUDA_SYMBOLS(X)                                                                      \
    X(cuInit, 2000, required, CUresult(unsigned))                                                  \
    X(cuDriverGetVersion, 2020, required, CUresult(int*))                                          \
    X(cuDeviceGetCount, 2000, required, CUresult(int*))                                            \
    X(cuDeviceGet, 2000, required, CUresult(CUdevice*, int))                                       \
    X(cuDeviceGetName, 2000, required, CUresult(char*, int, CUdevice))                             \
    X(cuDeviceTotalMem_v2, 3020, required, CUresult(size_t*, CUdevice))                            \
    X(cuDeviceGetAttribute, 2000, required, CUresult(int*, int, CUdevice))                         \
    X(cuDeviceGetPCIBusId, 4010, optional, CUresult(char*, int, CUdevice))                         \
    X(cuGetErrorName, 6000, optional, CUresult(CUresult, const char**))                            \
    X(cuGetErrorString, 6000, optional, CUresult(CUresult, const char**))                          \
    X(cuDeviceGetUuid_v2, 11040, optional, CUresult(CUuuid*, CUdevice))                            \
    X(cuDeviceCanAccessPeer, 4000, optional, CUresult(int*, CUdevice, CUdevice))                   \
    X(cuMemPoolSetAccess, 11020, optional, CUresult(CUmemoryPool, const CUmemAccessDesc*, size_t)) \
    X(cuMemcpyPeerAsync, 4000, optional,                                                           \
      CUresult(CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, size_t, CUstream))                  \
    XPURT_CUDA_RUNNING(X)

#define XPURT_CUDA_RUNNING(X)                                                                              \
    X(cuDevicePrimaryCtxRetain, 7000, optional, CUresult(CUcontext*, CUdevice))                            \
    X(cuCtxGetCurrent, 4000, optional, CUresult(CUcontext*))                                               \
    X(cuCtxPushCurrent_v2, 4000, optional, CUresult(CUcontext))                                            \
    X(cuCtxPopCurrent_v2, 4000, optional, CUresult(CUcontext*))                                            \
    X(cuCtxSynchronize, 2000, optional, CUresult())                                                        \
    X(cuMemGetInfo_v2, 3020, optional, CUresult(size_t*, size_t*))                                         \
    X(cuMemPoolCreate, 11020, optional, CUresult(CUmemoryPool*, const CUmemPoolProps*))                    \
    X(cuMemPoolSetAttribute, 11020, optional, CUresult(CUmemoryPool, int, void*))                          \
    X(cuMemPoolGetAttribute, 11020, optional, CUresult(CUmemoryPool, int, void*))                          \
    X(cuMemPoolTrimTo, 11020, optional, CUresult(CUmemoryPool, size_t))                                    \
    X(cuMemAllocFromPoolAsync, 11020, optional, CUresult(CUdeviceptr*, size_t, CUmemoryPool, CUstream))    \
    X(cuMemFreeAsync, 11020, optional, CUresult(CUdeviceptr, CUstream))                                    \
    X(cuMemHostAlloc, 2020, optional, CUresult(void**, size_t, unsigned))                                  \
    X(cuMemFreeHost, 2000, optional, CUresult(void*))                                                      \
    X(cuMemcpyHtoDAsync_v2, 3020, optional, CUresult(CUdeviceptr, const void*, size_t, CUstream))          \
    X(cuMemcpyDtoHAsync_v2, 3020, optional, CUresult(void*, CUdeviceptr, size_t, CUstream))                \
    X(cuMemcpyDtoDAsync_v2, 3020, optional, CUresult(CUdeviceptr, CUdeviceptr, size_t, CUstream))          \
    X(cuMemsetD8Async, 3020, optional, CUresult(CUdeviceptr, unsigned char, size_t, CUstream))             \
    X(cuStreamCreate, 2000, optional, CUresult(CUstream*, unsigned))                                       \
    X(cuStreamDestroy_v2, 4000, optional, CUresult(CUstream))                                              \
    X(cuStreamSynchronize, 2000, optional, CUresult(CUstream))                                             \
    X(cuStreamQuery, 2000, optional, CUresult(CUstream))                                                   \
    X(cuStreamWaitEvent, 3020, optional, CUresult(CUstream, CUevent, unsigned))                            \
    X(cuStreamBeginCapture_v2, 10010, optional, CUresult(CUstream, int))                                   \
    X(cuStreamEndCapture, 10000, optional, CUresult(CUstream, CUgraph*))                                   \
    X(cuThreadExchangeStreamCaptureMode, 10010, optional, CUresult(int*))                                  \
    X(cuStreamIsCapturing, 10000, optional, CUresult(CUstream, int*))                                      \
    X(cuStreamGetCaptureInfo_v2, 11030, optional,                                                          \
      CUresult(CUstream, int*, uint64_t*, CUgraph*, const CUgraphNode**, size_t*))                         \
    X(cuEventCreate, 2000, optional, CUresult(CUevent*, unsigned))                                         \
    X(cuEventDestroy_v2, 4000, optional, CUresult(CUevent))                                                \
    X(cuEventRecord, 2000, optional, CUresult(CUevent, CUstream))                                          \
    X(cuEventQuery, 2000, optional, CUresult(CUevent))                                                     \
    X(cuEventSynchronize, 2000, optional, CUresult(CUevent))                                               \
    X(cuEventElapsedTime, 2000, optional, CUresult(float*, CUevent, CUevent))                              \
    X(cuLibraryLoadData, 12000, optional,                                                                  \
      CUresult(CUlibrary*, const void*, int*, void**, unsigned, int*, void**, unsigned))                   \
    X(cuLibraryUnload, 12000, optional, CUresult(CUlibrary))                                               \
    X(cuLibraryGetKernel, 12000, optional, CUresult(CUkernel*, CUlibrary, const char*))                    \
    X(cuLibraryGetGlobal, 12000, optional, CUresult(CUdeviceptr*, size_t*, CUlibrary, const char*))        \
    X(cuKernelGetAttribute, 12000, optional, CUresult(int*, int, CUkernel, CUdevice))                      \
    X(cuKernelSetAttribute, 12000, optional, CUresult(int, int, CUkernel, CUdevice))                       \
    X(cuLaunchKernelEx, 11080, optional, CUresult(const CUlaunchConfig*, CUfunction, void**, void**))      \
    X(cuTensorMapEncodeTiled, 12000, optional,                                                             \
      CUresult(CUtensorMap*, int, unsigned, void*, const uint64_t*, const uint64_t*, const unsigned*,      \
               const unsigned*, int, int, int, int))                                                       \
    X(cuGraphInstantiateWithFlags, 11040, optional, CUresult(CUgraphExec*, CUgraph, unsigned long long))   \
    X(cuGraphLaunch, 10000, optional, CUresult(CUgraphExec, CUstream))                                     \
    X(cuGraphGetNodes, 10000, optional, CUresult(CUgraph, CUgraphNode*, size_t*))                          \
    X(cuGraphNodeGetType, 10000, optional, CUresult(CUgraphNode, int*))                                    \
    X(cuGraphDestroy, 10000, optional, CUresult(CUgraph))                                                  \
    X(cuGraphExecDestroy, 10000, optional, CUresult(CUgraphExec))                                          \
    X(cuGraphExecUpdate_v2, 12000, optional, CUresult(CUgraphExec, CUgraph, CUgraphExecUpdateResultInfo*)) \
    X(cuGraphExecKernelNodeSetParams_v2, 12000, optional,                                                  \
      CUresult(CUgraphExec, CUgraphNode, const CUkernelNodeParams*))

// The description of the driver library; cuda_library() is the process's instance.
LibrarySpec library_spec();

// The function pointers of a loaded library; optional functions may be null.
struct Driver {
#define XPURT_MEMBER(name, since, need, type) std::add_pointer_t<type> name;
    XPURT_CUDA_SYMBOLS(XPURT_MEMBER)
#undef XPURT_MEMBER

    explicit Driver(const Library& library);
};

// Return ok if the library has every function that running programs needs; else name the missing ones.
Status can_run(const Library& library);

// cuda_facts() for any instance of the driver library.
Result<CudaFacts> facts(Library& library, const Search& search);

// The Status of a driver call: its name, the driver's name of the error, and the explanation.
Status status_of(const Driver& driver, CUresult result, const char* call);

// Log the failure of a call whose caller cannot receive it. A driver that has shut down, and a context that
// an earlier error has lost, are not logged.
void log_if_failed(const Driver& driver, CUresult result, const char* call) noexcept;

}  // namespace xpurt::cuda
