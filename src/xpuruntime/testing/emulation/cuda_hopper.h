// cuda_hopper: what templates/cuda/hopper.cuh has, in plain C++ on the threads of cuda_host.h: products of a warpgroup that are done at once,
// their tiles found as the PTX manual's matrix descriptors say (swizzle of 128 bytes).
namespace hopper {

using tensor::u16;
using tensor::u32;
using tensor::u64;

static inline u64 matrix_desc(u32 addr, u32 across) { return (u64)(addr >> 4) | (u64)(across >> 4) << 16; }
static inline u64 advance_desc(u64 desc, int bytes) { return desc + (u64)(bytes >> 4); }
static inline void fence_proxy_async() {}
static inline void wgmma_fence() {}
static inline void wgmma_commit() {}
template <int pending> static inline void wgmma_wait() {}
template <int N> static inline void reg_fence(float (&)[N]) {}

}  // namespace hopper
