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

// Send quad and pair values (24 bytes) to block `rank`, to the offsets that `to` and `pair_to` have in this block.
INLINE void cluster_st_async(float *to, const float (&quad)[4], float *pair_to, float a, float b, ClusterBarrier *barrier_word, unsigned rank) {
#if XPURT_CLUSTERED
    uint32_t there, barrier;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(barrier) : "r"((uint32_t)__cvta_generic_to_shared(barrier_word)), "r"(rank));
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"((uint32_t)__cvta_generic_to_shared(to)), "r"(rank));
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(there), "f"(quad[0]),
                 "f"(quad[1]), "f"(quad[2]), "f"(quad[3]), "r"(barrier)
                 : "memory");
    there += (uint32_t)((char *)pair_to - (char *)to);
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(there), "f"(a), "f"(b), "r"(barrier)
                 : "memory");
#elif defined(XPURT_CLUSTER_BYTES)
    const long long distance = (long long)((int)rank - XPURT_CLUSTER_RANK) * XPURT_CLUSTER_BYTES;
    memcpy((char *)to + distance, quad, sizeof quad);
    const float pair[2] = {a, b};
    memcpy((char *)pair_to + distance, pair, sizeof pair);
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
#elif defined(XPURT_CLUSTER_MEET)
    XPURT_CLUSTER_MEET();
#endif
}
