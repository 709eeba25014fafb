// needs: prelude
// arrive: blocks that share a task each leave their part in memory; the one that comes last joins the parts, in a fixed order.

// Called by every thread of each of `blocks` blocks once its part is written; true in all threads of the last block to come.
// The counter is zero before and after. What other blocks wrote is read by `fresh`.
INLINE bool arrives_last(uint32_t *counter, uint32_t blocks) {
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0 && threadIdx.y == 0) {
        last = atomicAdd(counter, 1u) + 1 == blocks;
        if (last) *counter = 0;
    }
    __syncthreads();
    __threadfence();
    return last;
}
// A value that another block of this launch wrote: from the second-level cache, which all blocks share.
template <class T> INLINE T fresh(const T *p) { return __ldcg(p); }
