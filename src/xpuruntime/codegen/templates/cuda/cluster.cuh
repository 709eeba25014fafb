// needs: prelude
// cluster: distributed shared memory (sm_90 and later): the blocks of a cluster write into each other's shared memory.
//
// st.async counts the bytes on an mbarrier of the receiving block, which waits for the number of bytes that it expects, so that no fence and no
// round trip through global memory is needed (PTX ISA, "st.async", "mbarrier"). A block sends only after all blocks of the cluster have
// started, and exits only after it has received everything sent to it.

#if defined(__CUDACC_RTC__)
#define XPURT_CLUSTERED (SM >= 90)
#else
#define XPURT_CLUSTERED 0
#endif

struct __align__(8) ClusterBarrier { uint64_t word; };

// Initialize a barrier for one use. One thread calls it.
INLINE void cluster_barrier_init(ClusterBarrier *barrier_word) {
#if XPURT_CLUSTERED
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"((uint32_t)__cvta_generic_to_shared(barrier_word)) : "memory");
#endif
}
// Arrive at the cluster's start barrier. All threads call it; cluster_wait is the second half.
INLINE void cluster_arrive() {
#if XPURT_CLUSTERED
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    __syncwarp();
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
INLINE void cluster_wait() {
#if XPURT_CLUSTERED
    __syncwarp();
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

// Send values to block `rank`, to the offset that `to` has in this block. `to` is a multiple of their size.
template <int N> INLINE void cluster_st_async(float *to, const float (&values)[N], ClusterBarrier *barrier_word, unsigned rank) {
    static_assert(N == 2 || N == 4, "st.async sends up to 16 bytes");
#if XPURT_CLUSTERED
    uint32_t there, barrier;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(barrier) : "r"((uint32_t)__cvta_generic_to_shared(barrier_word)), "r"(rank));
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"((uint32_t)__cvta_generic_to_shared(to)), "r"(rank));
    if constexpr (N == 4)
        asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(there), "f"(values[0]),
                     "f"(values[1]), "f"(values[2]), "f"(values[3]), "r"(barrier)
                     : "memory");
    else
        asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(there), "f"(values[0]),
                     "f"(values[1]), "r"(barrier)
                     : "memory");
#endif
}

// Wait until `bytes` have arrived. All threads call it.
INLINE void cluster_barrier_wait(ClusterBarrier *barrier_word, uint32_t bytes) {
#if XPURT_CLUSTERED
    const uint32_t barrier = (uint32_t)__cvta_generic_to_shared(barrier_word);
    if (threadIdx.x == 0)
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
    uint32_t done;
    do
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%1], 0;\nselp.u32 %0, 1, 0, p;\n}"
                     : "=r"(done)
                     : "r"(barrier)
                     : "memory");
    while (!done);
#endif
}
