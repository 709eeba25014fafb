// needs: tiles last_block cluster
// decode_join.cuh: combination of split attention: for each row weighted sums, row maximum and row sum.
//
// The P::SPLITS blocks of a task write their partial results to memory, and the last block to arrive combines them. If there are many, the last
// block of each GROUP combines its group first, so that no block reads more than it can have in flight.
namespace flash_decode {

// Layout of a task's partial results: the values of each split's rows, four at a time, then the state (row maximum, row sum) of each row.
struct __align__(16) Float4 { float x[4]; };
struct __align__(8) State { float new_max, row_sum; };
__device__ __forceinline__ Float4 ld_cg_float4(const Float4 *p) {
#if defined(__CUDACC_RTC__)
    const float4 v = __ldcg((const float4 *)p);
    return {{v.x, v.y, v.z, v.w}};
#else
    return *p;
#endif
}
template <class P> struct Partials {
    static constexpr int VECTORS = (P::dv + 3) / 4, STATES = P::SPLITS * P::rows * VECTORS, PER_BLOCK = (P::rows * VECTORS + P::SPLITS - 1) / P::SPLITS;
    Float4 *at;

    __device__ __forceinline__ Float4 *values(int split, int row) const { return at + (split * P::rows + row) * VECTORS; }
    __device__ __forceinline__ State *state(int split, int row) const { return (State *)(at + STATES) + row * P::SPLITS + split; }
};

// Store up to four values of a row of the result.
template <class P>
__device__ __forceinline__ void store_float4(const Float4 &v, int batch, int head, int row, int at, const P &p) {
#pragma unroll
    for (int e = 0; e < 4; ++e)
        if (P::dv % 4 == 0 || at + e < P::dv) p.write(batch, head, row, at + e, v.x[e]);
}

// Receive buffer of one block of a cluster: for each split and each of its PER_BLOCK entries four sums, and the row maximum and row sum of their row.
template <class P> struct ClusterExchange {
    static constexpr int PER_BLOCK = Partials<P>::PER_BLOCK;
    Float4 sums[P::SPLITS * PER_BLOCK];
    State of[P::SPLITS * PER_BLOCK];
    ClusterBarrier all;
};

// Merge the states of a block's warps (D sums, row maximum, row sum per row) into the block's partial result, or the output. In a cluster, send
// each part to the block that combines it; `exchange` is indexed by split.
template <class P>
__device__ __forceinline__ void merge_warps(const float *states, ClusterExchange<P> *exchange, const Partials<P> &partials, int batch, int head, const P &p) {
    constexpr int LINE = P::D + 4, VECTORS = Partials<P>::VECTORS, PER_BLOCK = Partials<P>::PER_BLOCK;
    const int split = blockIdx.x % P::SPLITS;
#pragma unroll 1
    for (int i = threadIdx.x; i < P::rows * VECTORS; i += P::WARPS * 32) {
        const int r = i / VECTORS, at = i % VECTORS * 4;
        float new_max = MASKED_SCORE, all = 0;
        Float4 sum = {};
#pragma unroll
        for (int w = 0; w < P::WARPS; ++w) new_max = fmaxf(new_max, states[(w * P::rows + r) * LINE + P::D]);
        const float shift = new_max == MASKED_SCORE ? 0 : new_max;
#pragma unroll
        for (int w = 0; w < P::WARPS; ++w) {
            const float *const state = states + (w * P::rows + r) * LINE;
            const float weight = tensor::exp2(state[P::D] - shift);
            const Float4 v = *(const Float4 *)(state + at);
#pragma unroll
            for (int e = 0; e < 4; ++e) sum.x[e] += v.x[e] * weight;
            all += state[P::D + 1] * weight;
        }
        if (P::CLUSTER) {
            const int to = split * PER_BLOCK + i % PER_BLOCK;
            const float state[2] = {new_max, all};
            cluster_st_async(exchange->sums[to].x, sum.x, &exchange->all, i / PER_BLOCK);
            cluster_st_async(&exchange->of[to].new_max, state, &exchange->all, i / PER_BLOCK);
        } else if (P::SPLITS > 1) {
            partials.values(split, r)[at / 4] = sum;
            if (at == 0) *partials.state(split, r) = {new_max, all};
        } else {
#pragma unroll
            for (int e = 0; e < 4; ++e) sum.x[e] = all == 0 ? 0 : sum.x[e] / all;
            store_float4(sum, batch, head, r, at, p);
        }
    }
}

// Combine the partial results that the cluster sent to this block, and store the result.
template <class P>
__device__ __forceinline__ void reduce_in_cluster(ClusterExchange<P> *exchange, int batch, int head, const P &p) {
    constexpr int VECTORS = Partials<P>::VECTORS, PER_BLOCK = Partials<P>::PER_BLOCK;
    const int first = (int)(blockIdx.x % P::SPLITS) * PER_BLOCK, left = P::rows * VECTORS - first, count = left < 0 ? 0 : left < PER_BLOCK ? left : PER_BLOCK;
    cluster_barrier_wait(&exchange->all, count * P::SPLITS * (sizeof(Float4) + sizeof(State)));
#pragma unroll 1
    for (int mine = threadIdx.x; mine < count; mine += P::WARPS * 32) {
        const int i = first + mine;
        float new_max = MASKED_SCORE, all = 0;
        Float4 sum = {};
#pragma unroll
        for (int s = 0; s < P::SPLITS; ++s) new_max = fmaxf(new_max, exchange->of[s * PER_BLOCK + mine].new_max);
        const float shift = new_max == MASKED_SCORE ? 0 : new_max;
#pragma unroll
        for (int s = 0; s < P::SPLITS; ++s) {
            const State of = exchange->of[s * PER_BLOCK + mine];
            const Float4 received = exchange->sums[s * PER_BLOCK + mine];
            const float weight = tensor::exp2(of.new_max - shift);
#pragma unroll
            for (int e = 0; e < 4; ++e) sum.x[e] += received.x[e] * weight;
            all += of.row_sum * weight;
        }
        const float by = all == 0 ? 0 : 1 / all;
#pragma unroll
        for (int e = 0; e < 4; ++e) sum.x[e] = all == 0 ? 0 : sum.x[e] * by;
        store_float4(sum, batch, head, i / VECTORS, i % VECTORS * 4, p);
    }
}

// Combine `count` partial results (up to MAX_COUNT), every `step`th from `first`, into that of `first`, or (WHOLE) into the output. A warp has
// ROWS_PER_WARP rows; a lane has four of a row's values and the state of one split. All loads that fit in registers are in flight at once.
template <class P, int MAX_COUNT, bool WHOLE>
__device__ __forceinline__ void combine_splits(const Partials<P> &partials, int first, int step, int count, int batch, int head, const P &p) {
    constexpr int VECTORS = Partials<P>::VECTORS, ROWS_PER_WARP = (P::rows + P::WARPS - 1) / P::WARPS, MAX_IN_FLIGHT = 20 / ROWS_PER_WARP < 1 ? 1 : 20 / ROWS_PER_WARP,
                  ROUNDS = (MAX_COUNT + MAX_IN_FLIGHT - 1) / MAX_IN_FLIGHT, IN_FLIGHT = (MAX_COUNT + ROUNDS - 1) / ROUNDS;
    static_assert(VECTORS <= 32 && MAX_COUNT <= 32, "a lane has four values and one state");
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    Float4 read[ROWS_PER_WARP][IN_FLIGHT], sum[ROWS_PER_WARP] = {};
    float weight[ROWS_PER_WARP], row_sum[ROWS_PER_WARP];
    const auto fetch = [&](int from) {
#pragma unroll
        for (int m = 0; m < ROWS_PER_WARP; ++m)
#pragma unroll
            for (int s = 0; s < IN_FLIGHT; ++s)
                if (warp + m * P::WARPS < P::rows && from + s < count && lane < VECTORS)
                    read[m][s] = ld_cg_float4(partials.values(first + (from + s) * step, warp + m * P::WARPS) + lane);
    };
#pragma unroll
    for (int m = 0; m < ROWS_PER_WARP; ++m) {
        weight[m] = MASKED_SCORE, row_sum[m] = 0;
        if (warp + m * P::WARPS >= P::rows || lane >= count) continue;
        const State *const from = partials.state(first + lane * step, warp + m * P::WARPS);
        weight[m] = ld_cg(&from->new_max), row_sum[m] = ld_cg(&from->row_sum);
    }
    fetch(0);
#pragma unroll
    for (int m = 0; m < ROWS_PER_WARP; ++m) {
        float new_max = weight[m];
#pragma unroll
        for (int offset = 16; offset > 0; offset /= 2) new_max = fmaxf(new_max, __shfl_xor_sync(0xffffffffu, new_max, offset));
        weight[m] = tensor::exp2(weight[m] - (new_max == MASKED_SCORE ? 0 : new_max));
        row_sum[m] *= weight[m];
#pragma unroll
        for (int offset = 16; offset > 0; offset /= 2) row_sum[m] += __shfl_xor_sync(0xffffffffu, row_sum[m], offset);
        if (WHOLE) weight[m] = row_sum[m] == 0 ? 0 : weight[m] / row_sum[m];
        else if (lane == 0 && warp + m * P::WARPS < P::rows) *partials.state(first, warp + m * P::WARPS) = {new_max, row_sum[m]};
    }
#pragma unroll 1
    for (int from = 0; from < count; from += IN_FLIGHT) {
        if (ROUNDS > 1 && from > 0) fetch(from);
#pragma unroll
        for (int m = 0; m < ROWS_PER_WARP; ++m)
#pragma unroll
            for (int s = 0; s < IN_FLIGHT; ++s) {
                const float by = __shfl_sync(0xffffffffu, weight[m], from + s);
                if (warp + m * P::WARPS >= P::rows || from + s >= count || lane >= VECTORS) continue;
#pragma unroll
                for (int e = 0; e < 4; ++e) sum[m].x[e] += by * read[m][s].x[e];
            }
    }
#pragma unroll
    for (int m = 0; m < ROWS_PER_WARP; ++m) {
        if (warp + m * P::WARPS >= P::rows || lane >= VECTORS) continue;
        if (WHOLE) store_float4(sum[m], batch, head, warp + m * P::WARPS, lane * 4, p);
        else partials.values(first, warp + m * P::WARPS)[lane] = sum[m];
    }
}

// Combine a task's splits. Every block calls it after its partial result is written. `counters`: the task's counter, then one per group.
template <class P>
__device__ __forceinline__ void combine(const Partials<P> &partials, unsigned *counters, int batch, int head, const P &p) {
    constexpr int GROUPS = (P::SPLITS + P::GROUP - 1) / P::GROUP;
    if constexpr (GROUPS > 1) {
        const int group = (int)(blockIdx.x % P::SPLITS) / P::GROUP, first = group * P::GROUP;
        const int count = P::SPLITS - first < P::GROUP ? P::SPLITS - first : P::GROUP;
        if (!is_last_block(counters + 1 + group, count)) return;
        combine_splits<P, P::GROUP, false>(partials, first, 1, count, batch, head, p);
    }
    if (is_last_block(counters, GROUPS > 1 ? GROUPS : P::SPLITS))
        combine_splits<P, (GROUPS > 1 ? GROUPS : P::SPLITS), true>(partials, 0, GROUPS > 1 ? P::GROUP : 1, GROUPS > 1 ? GROUPS : P::SPLITS, batch, head, p);
}

}  // namespace flash_decode
