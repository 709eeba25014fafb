// needs: decode_join decode_append decode_rows
// flash_decode.cuh: bandwidth-bound attention of few queries over many keys.
// The keys are split over blocks (Flash-Decoding, Dao et al., 2023), whose partial results decode_join.cuh combines. All query heads that share a
// key head are rows of one block, so that one mma computes up to 16 of them. Each warp has its own pipeline of STAGES tiles of 16 or 32 keys, so
// that no warp waits for another before the end. Loops are not unrolled where the instruction cache matters more: most code runs once per block.
//
// P: T, D (head size padded to 32, 64 or 128), d, dv, rows (queries times heads, up to 16), keys, SPLITS, KEYS_PER_SPLIT, GROUP (splits that are
//    combined first), WARPS, STAGES, SMEM_TILES (tile buffers per warp: STAGES, or fewer for a short split), TILES_PER_STEP (tiles of 16 keys),
//    STATES_OFFSET, CLUSTER_SMEM, BOUNDS_OFFSET (shared-memory offsets of the warps' states (0: they reuse the tiles), of the data exchanged in
//    a cluster, and of the mask's bounds), CLUSTER (a task's blocks are one cluster), NARROW (decode_rows.cuh), ADDITIVE_MASK (the mask only
//    adds to logits), ALIGNED, k_row, v_row, MASKED (logits change), MASK_ROWS (rows with different masks), q_at(row), visible(row, key), scale() (for
//    base-2 exponents), logit(score, batch, head, row, key), write(batch, head, row, at, value).
//    NEW_TOKENS (positions that the launch itself appends to the KV cache, 0 for none) adds the members that decode_append.cuh lists. Such a launch
//    reads the mask and the old keys and values before griddep_wait; compiler/pdl.py ensures that no earlier launch is still writing them.
namespace flash_decode {

using tensor::u16;
using tensor::u32;

// Narrow begin and end to the keys of a split that are visible to some row.
template <class P>
__device__ __forceinline__ void visible_range(int batch, int head, int &begin, int &end, int (*bounds)[2], const P &p) {
    int first = end, last = begin;
    for (int key = begin + (int)threadIdx.x; key < end; key += P::WARPS * 32)
#pragma unroll
        for (int r = 0; r < P::MASK_ROWS; ++r)
            if (p.visible(r, key) && p.logit(0.0f, batch, head, r, key) != MASKED_SCORE) {
                first = key < first ? key : first;
                last = key + 1 > last ? key + 1 : last;
            }
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
        const int f = __shfl_xor_sync(0xffffffffu, first, offset), l = __shfl_xor_sync(0xffffffffu, last, offset);
        first = f < first ? f : first;
        last = l > last ? l : last;
    }
    if (threadIdx.x % 32 == 0) bounds[threadIdx.x / 32][0] = first, bounds[threadIdx.x / 32][1] = last;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < P::WARPS; ++w) {
        first = bounds[w][0] < first ? bounds[w][0] : first;
        last = bounds[w][1] > last ? bounds[w][1] : last;
    }
    begin = first;
    end = last;
}

// Compute one split of a task; with SPLITS == 1 its result is the output.
template <class P>
__device__ __forceinline__ void split_kernel(
    const u16 *q, const u16 *k, const u16 *v, int batch, int head, const Partials<P> &partials, unsigned *counters, const P &p
) {
    DYNAMIC_SMEM(shared);
    constexpr int CH = P::D / 8, KEYS = P::TILES_PER_STEP * 16, TILE = KEYS * P::D * 2, STAGE = 2 * TILE, LOADS = KEYS * CH / 32;
    constexpr bool PIPELINED = P::KEYS_PER_SPLIT > (P::STAGES - 1) * P::WARPS * KEYS;  // more steps than the prologue loads
    float *const states = (float *)(shared + P::STATES_OFFSET);
    ClusterExchange<P> *const exchange = (ClusterExchange<P> *)(shared + P::CLUSTER_SMEM);
    if constexpr (P::CLUSTER) {
        if (threadIdx.x == 0) cluster_barrier_init(&exchange->all);
        cluster_arrive();
    }
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int begin = blockIdx.x % P::SPLITS * P::KEYS_PER_SPLIT, end = begin + P::KEYS_PER_SPLIT < P::keys ? begin + P::KEYS_PER_SPLIT : P::keys;
    KvAppend<P, (P::NEW_TOKENS > 0)> added;
    if constexpr (P::NEW_TOKENS > 0) added.load_positions(batch, begin, end, p);
    else {
        griddep_wait();
        for (int i = threadIdx.x; i < 16 * CH; i += P::WARPS * 32) {
            const int r = i / CH, c = i % CH;
            tiles::load_chunk_async<P::ALIGNED>(shared + tiles::swizzle<CH>(r, c) * 16, q + p.q_at(r < P::rows ? r : 0), c * 8, P::d, r < P::rows);
        }
        tensor::cp_async_commit();
    }
    if (P::MASKED) visible_range<P>(batch, head, begin, end, (int(*)[2])(shared + P::BOUNDS_OFFSET), p);
    const int steps = end > begin ? ((end - begin + KEYS - 1) / KEYS - warp + P::WARPS - 1) / P::WARPS : 0;

    unsigned char *const warp_smem = shared + 16 * P::D * 2 + warp * P::SMEM_TILES * STAGE;
    const auto fetch = [&](int step) {
        const int key0 = begin + (step * P::WARPS + warp) * KEYS;
        unsigned char *const to = warp_smem + step % P::SMEM_TILES * STAGE;
        const int c = lane % CH;
        const u16 *from_k = k + (long long)(key0 + lane / CH) * P::k_row, *from_v = v + (long long)(key0 + lane / CH) * P::v_row;
#pragma unroll 2
        for (int i = 0; i < LOADS; ++i) {
            const int r = lane / CH + i * (32 / CH);
            unsigned char *const at = to + tiles::swizzle<CH>(r, c) * 16;
            const bool there = key0 + r < end;
            tiles::load_chunk_async<P::ALIGNED>(at, from_k, c * 8, P::d, there);
            tiles::load_chunk_async<P::ALIGNED>(at + TILE, from_v, c * 8, P::dv, there);
            from_k += 32 / CH * P::k_row;
            from_v += 32 / CH * P::v_row;
        }
    };
#pragma unroll 1
    for (int s = 0; s < P::STAGES - 1; ++s) {
        if (s < steps) fetch(s);
        tensor::cp_async_commit();
    }
    RowState<P, P::NARROW> sums;
    sums.prefetch_mask(begin + warp * KEYS, end, batch, head, p);
    if constexpr (P::NEW_TOKENS > 0) added.prologue(shared, batch, p);
    if constexpr (P::CLUSTER) cluster_wait();

    if constexpr (P::NEW_TOKENS > 0) {
        griddep_wait();
        added.rotate_and_append(q, shared, batch, head, p);
    } else tensor::cp_async_wait<P::STAGES - 1>();
    __syncthreads();
    sums.load_queries(tensor::smem_addr(shared));
    const u32 tile = tensor::smem_addr(warp_smem);
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        tensor::cp_async_wait<P::STAGES - 2>();
        __syncwarp();  // the tile has arrived for all lanes, and no lane reads the buffer that the next copy overwrites
        if constexpr (PIPELINED)
            if (step + P::STAGES - 1 < steps) fetch(step + P::STAGES - 1);
        tensor::cp_async_commit();
        const int at = step % P::SMEM_TILES * STAGE, key0 = begin + (step * P::WARPS + warp) * KEYS;
        if constexpr (P::NEW_TOKENS > 0) added.template patch_tile<KEYS>(warp_smem + at, shared, key0, end);
        sums.step(tile + at, tile + at + TILE, key0, end, batch, head, p);
    }
    if constexpr (P::STATES_OFFSET == 0) {  // the states reuse the tiles' memory
        tensor::cp_async_wait<0>();
        __syncthreads();
    }
    sums.store_state(states + warp * P::rows * (P::D + 4));
    __syncthreads();
    merge_warps(states, exchange, partials, batch, head, p);
    if constexpr (P::CLUSTER) reduce_in_cluster(exchange, batch, head, p);
    else if constexpr (P::SPLITS > 1) combine(partials, counters, batch, head, p);
}

}  // namespace flash_decode
