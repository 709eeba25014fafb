// needs: prelude
// arrive: blocks that share a task each leave their part in memory; the one that comes last joins the parts, in a fixed order.

// One more at a counter; what it was. What the block wrote before its last barrier is seen by whoever counts later, and by the block
// after its next barrier what those before it wrote: one thread's release and acquire stand for all (PTX ISA, "Memory Consistency Model").
INLINE uint32_t atomic_inc_acq_rel(uint32_t *counter) {
#if defined(__CUDACC_RTC__)
    uint32_t before;
    asm volatile("atom.acq_rel.gpu.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
    return before;
#else
    return atomicAdd(counter, 1u);
#endif
}

// Called by every thread of each of `blocks` blocks once its part is written; true in all threads of the last block to come.
// The counter is zero before and after. What other blocks wrote is read by `ld_cg`.
INLINE bool is_last_block(uint32_t *counter, uint32_t blocks) {
    __shared__ bool last;
    __syncthreads();
    if (threadIdx.x == 0 && threadIdx.y == 0) {
        last = atomic_inc_acq_rel(counter) + 1 == blocks;
        if (last) *counter = 0;
    }
    __syncthreads();
    return last;
}
// A value that another block of this launch wrote: from the second-level cache, which all blocks share.
template <class T> INLINE T ld_cg(const T *p) { return __ldcg(p); }
