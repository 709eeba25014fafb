// needs: hopper
// tma.cuh: copies of tiles of a matrix into shared memory by the tensor memory accelerator (TMA), and the mbarriers that count their bytes
// (PTX ISA, "cp.async.bulk.tensor", "mbarrier"). Tiles are swizzled as hopper.cuh says. Tests replace this file with plain C++, too.

// Where a matrix is, its sizes, and the tile of a copy: the driver's CUtensorMap, which the runtime encodes for each launch. It is zero for a matrix
// that does not start at a multiple of 16 bytes, which TMA cannot copy.
struct __align__(64) TensorMap { uint64_t words[16]; };

namespace tma {

using tensor::u32;
using tensor::u64;

struct __align__(8) Barrier { u64 word; };

__device__ __forceinline__ u32 address(const Barrier &b) { return (u32)__cvta_generic_to_shared(&b); }

// Initialize a barrier of `arrivals`. One thread calls it. After cluster_arrive and cluster_wait all blocks may use it.
__device__ __forceinline__ void init(Barrier &b, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address(b)), "r"(arrivals) : "memory");
}
// Arrive, and expect so many bytes of copies in this phase.
__device__ __forceinline__ void arrive_expecting(Barrier &b, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address(b)), "r"(bytes) : "memory");
}
// Arrive at the barrier of block `rank` of the cluster.
__device__ __forceinline__ void arrive_at(Barrier &b, u32 rank) {
    u32 there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address(b)), "r"(rank));
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(there) : "memory");
}
// Wait until the phase of this parity is complete.
__device__ __forceinline__ void wait(Barrier &b, u32 parity) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@done bra over;\nbra again;\nover:\n}" ::"r"(address(b)),
        "r"(parity)
        : "memory");
}
// Copy the tile whose first row and column these are, into this block, and count its bytes on `b`. Values outside the matrix are zeros.
__device__ __forceinline__ void copy(unsigned char *to, const TensorMap &map, int row, int column, Barrier &b) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(tensor::smem_addr(to)),
                 "l"(&map), "r"(column), "r"(row), "r"(address(b))
                 : "memory");
}
// The same into the same place of every block of `blocks`, a mask, on the barrier of each.
__device__ __forceinline__ void copy_to_all(unsigned char *to, const TensorMap &map, int row, int column, Barrier &b, u32 blocks) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(
            tensor::smem_addr(to)),
        "l"(&map), "r"(column), "r"(row), "r"(address(b)), "h"((unsigned short)blocks)
        : "memory");
}
// Give registers to the other warpgroups of the block, and take those that they gave. All threads of a warpgroup call it.
template <int registers> __device__ __forceinline__ void give_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers)); }
template <int registers> __device__ __forceinline__ void take_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers)); }

}  // namespace tma
