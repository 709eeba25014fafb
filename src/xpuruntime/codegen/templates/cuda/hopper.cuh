// needs: tensor
// hopper.cuh: wrappers for the asynchronous warpgroup instructions of sm_90a. Tests replace this file with plain C++, too.
// A tile in shared memory has rows of 64 16-bit values (128 bytes) whose eight chunks are swizzled by tiles::swizzle<8>, and starts at a
// multiple of 1024 bytes; a wider matrix is several such tiles.
namespace hopper {

using tensor::u32;
using tensor::u64;

// A shared-memory matrix descriptor (PTX ISA, "Matrix Descriptor Format"): 128-byte swizzle, a stride of 1024 bytes between groups of eight
// rows, and `across` bytes to the next tile where one product reads several.
__device__ __forceinline__ u64 matrix_desc(u32 addr, u32 across) {
    return (u64)((addr & 0x3ffff) >> 4) | (u64)((across & 0x3ffff) >> 4) << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62;
}
__device__ __forceinline__ u64 advance_desc(u64 desc, int bytes) { return desc + (u64)(bytes >> 4); }

// Make generic-proxy writes to shared memory visible to wgmma. The writing threads call it, before the barrier.
__device__ __forceinline__ void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int pending>
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}
// Keep the compiler from moving uses of these registers above this point.
template <int N>
__device__ __forceinline__ void reg_fence(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

}  // namespace hopper
