// needs: prelude
// last_block: split reductions without a second launch. Each block of a task writes its partial result to memory; the last one to arrive
// combines all of them in a fixed order.

// Increment a counter and return its previous value. The release orders the block's writes before its last barrier, the acquire orders other
// blocks' writes before this block's next barrier: one thread acts for all (PTX ISA, "Memory Consistency Model").
INLINE uint32_t atomic_inc_acq_rel(uint32_t *counter) {
#if defined(__CUDACC_RTC__)
    uint32_t before;
    asm volatile("atom.acq_rel.gpu.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
    return before;
#else
    return atomicAdd(counter, 1u);
#endif
}

// Return true in all threads of the last of `blocks` blocks to arrive. Every thread calls it once its block's part is written.
// The counter is zero before and after. Read other blocks' results by `ld_cg`.
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
// Load a value that another block of this launch wrote: from L2, since L1 is not coherent.
template <class T> INLINE T ld_cg(const T *p) { return __ldcg(p); }
