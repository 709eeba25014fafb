// needs: tiles arrive cluster
// decode_join.cuh: parts of attention become one: for each row sums of weighted values, the largest logit and the sum of weights.
//
// The parts of a task (P::SPLITS of them, each by a block of its own) meet in memory. The last block to come joins them; where they are
// many, the last of each GROUP joins its group's first, so that no block reads more than it can have under way at once.
namespace flash_decode {

// Where the parts of a task lie: the values of each split's rows, four at a time, then the states (largest logit, sum of weights) of each row.
struct __align__(16) Four { float x[4]; };
struct __align__(8) State { float peak, total; };
__device__ __forceinline__ Four fresh_four(const Four *p) {
#if defined(__CUDACC_RTC__)
    const float4 v = __ldcg((const float4 *)p);
    return {{v.x, v.y, v.z, v.w}};
#else
    return *p;
#endif
}
template <class P> struct Parts {
    static constexpr int FOURS = (P::dv + 3) / 4, STATES = P::SPLITS * P::rows * FOURS, EACH = (P::rows * FOURS + P::SPLITS - 1) / P::SPLITS;
    Four *at;

    __device__ __forceinline__ Four *values(int split, int row) const { return at + (split * P::rows + row) * FOURS; }
    __device__ __forceinline__ State *state(int split, int row) const { return (State *)(at + STATES) + row * P::SPLITS + split; }
};

// Up to four values of a row of the result.
template <class P>
__device__ __forceinline__ void keep_four(const Four &v, int batch, int head, int row, int at, const P &p) {
#pragma unroll
    for (int e = 0; e < 4; ++e)
        if (P::dv % 4 == 0 || at + e < P::dv) p.keep(batch, head, row, at + e, v.x[e]);
}

// What the blocks of a cluster give one of them: by split, for each of its EACH places four sums, and the largest logit and the sum of
// weights of their row.
template <class P> struct Inbox {
    static constexpr int EACH = Parts<P>::EACH;
    Four sums[P::SPLITS * EACH];
    State of[P::SPLITS * EACH];
    Arrival all;
};

// The states of a block's warps (D sums, the largest logit, the sum of weights for each row) become the block's part, or the result. Blocks of
// a cluster give each other's part to whoever joins it, `inbox` by split.
template <class P>
__device__ __forceinline__ void merge_warps(const float *states, Inbox<P> *inbox, const Parts<P> &parts, int batch, int head, const P &p) {
    constexpr int LINE = P::D + 4, FOURS = Parts<P>::FOURS, EACH = Parts<P>::EACH;
    const int split = blockIdx.x % P::SPLITS;
#pragma unroll 1
    for (int i = threadIdx.x; i < P::rows * FOURS; i += P::WARPS * 32) {
        const int r = i / FOURS, at = i % FOURS * 4;
        float peak = TENSOR_HIDDEN, all = 0;
        Four sum = {};
#pragma unroll
        for (int w = 0; w < P::WARPS; ++w) peak = fmaxf(peak, states[(w * P::rows + r) * LINE + P::D]);
        const float level = peak == TENSOR_HIDDEN ? 0 : peak;
#pragma unroll
        for (int w = 0; w < P::WARPS; ++w) {
            const float *const state = states + (w * P::rows + r) * LINE;
            const float weight = tensor::exp2(state[P::D] - level);
            const Four v = *(const Four *)(state + at);
#pragma unroll
            for (int e = 0; e < 4; ++e) sum.x[e] += v.x[e] * weight;
            all += state[P::D + 1] * weight;
        }
        if (P::CLUSTER) {
            const int to = split * EACH + i % EACH;
            cluster_send(inbox->sums[to].x, sum.x, &inbox->of[to].peak, peak, all, &inbox->all, i / EACH);
        } else if (P::SPLITS > 1) {
            parts.values(split, r)[at / 4] = sum;
            if (at == 0) *parts.state(split, r) = {peak, all};
        } else {
#pragma unroll
            for (int e = 0; e < 4; ++e) sum.x[e] = all == 0 ? 0 : sum.x[e] / all;
            keep_four(sum, batch, head, r, at, p);
        }
    }
}

// What the blocks of a cluster have given this one becomes its share of the result.
template <class P>
__device__ __forceinline__ void joined_in_cluster(Inbox<P> *inbox, int batch, int head, const P &p) {
    constexpr int FOURS = Parts<P>::FOURS, EACH = Parts<P>::EACH;
    const int first = (int)(blockIdx.x % P::SPLITS) * EACH, left = P::rows * FOURS - first, count = left < 0 ? 0 : left < EACH ? left : EACH;
    cluster_got(&inbox->all, count * P::SPLITS * (sizeof(Four) + sizeof(State)));
#pragma unroll 1
    for (int mine = threadIdx.x; mine < count; mine += P::WARPS * 32) {
        const int i = first + mine;
        float peak = TENSOR_HIDDEN, all = 0;
        Four sum = {};
#pragma unroll
        for (int s = 0; s < P::SPLITS; ++s) peak = fmaxf(peak, inbox->of[s * EACH + mine].peak);
        const float level = peak == TENSOR_HIDDEN ? 0 : peak;
#pragma unroll
        for (int s = 0; s < P::SPLITS; ++s) {
            const State of = inbox->of[s * EACH + mine];
            const Four given = inbox->sums[s * EACH + mine];
            const float weight = tensor::exp2(of.peak - level);
#pragma unroll
            for (int e = 0; e < 4; ++e) sum.x[e] += given.x[e] * weight;
            all += of.total * weight;
        }
        const float by = all == 0 ? 0 : 1 / all;
#pragma unroll
        for (int e = 0; e < 4; ++e) sum.x[e] = all == 0 ? 0 : sum.x[e] * by;
        keep_four(sum, batch, head, i / FOURS, i % FOURS * 4, p);
    }
}

// `count` parts (up to MOST), every `step`th from `first` on, become that of `first`, or (WHOLE) the result. A warp has MINE rows, a lane four
// of a row's values, and the state of one part. All that fits is under way at once.
template <class P, int MOST, bool WHOLE>
__device__ __forceinline__ void join(const Parts<P> &parts, int first, int step, int count, int batch, int head, const P &p) {
    constexpr int FOURS = Parts<P>::FOURS, MINE = (P::rows + P::WARPS - 1) / P::WARPS, FIT = 20 / MINE < 1 ? 1 : 20 / MINE,
                  TURNS = (MOST + FIT - 1) / FIT, AHEAD = (MOST + TURNS - 1) / TURNS;
    static_assert(FOURS <= 32 && MOST <= 32, "a lane has four values and one state");
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    Four read[MINE][AHEAD], sum[MINE] = {};
    float weight[MINE], total[MINE];
    const auto fetch = [&](int from) {
#pragma unroll
        for (int m = 0; m < MINE; ++m)
#pragma unroll
            for (int s = 0; s < AHEAD; ++s)
                if (warp + m * P::WARPS < P::rows && from + s < count && lane < FOURS)
                    read[m][s] = fresh_four(parts.values(first + (from + s) * step, warp + m * P::WARPS) + lane);
    };
#pragma unroll
    for (int m = 0; m < MINE; ++m) {
        weight[m] = TENSOR_HIDDEN, total[m] = 0;
        if (warp + m * P::WARPS >= P::rows || lane >= count) continue;
        const State *const from = parts.state(first + lane * step, warp + m * P::WARPS);
        weight[m] = fresh(&from->peak), total[m] = fresh(&from->total);
    }
    fetch(0);
#pragma unroll
    for (int m = 0; m < MINE; ++m) {
        float peak = weight[m];
#pragma unroll
        for (int far = 16; far > 0; far /= 2) peak = fmaxf(peak, __shfl_xor_sync(0xffffffffu, peak, far));
        weight[m] = tensor::exp2(weight[m] - (peak == TENSOR_HIDDEN ? 0 : peak));
        total[m] *= weight[m];
#pragma unroll
        for (int far = 16; far > 0; far /= 2) total[m] += __shfl_xor_sync(0xffffffffu, total[m], far);
        if (WHOLE) weight[m] = total[m] == 0 ? 0 : weight[m] / total[m];
        else if (lane == 0 && warp + m * P::WARPS < P::rows) *parts.state(first, warp + m * P::WARPS) = {peak, total[m]};
    }
#pragma unroll 1
    for (int from = 0; from < count; from += AHEAD) {
        if (TURNS > 1 && from > 0) fetch(from);
#pragma unroll
        for (int m = 0; m < MINE; ++m)
#pragma unroll
            for (int s = 0; s < AHEAD; ++s) {
                const float by = __shfl_sync(0xffffffffu, weight[m], from + s);
                if (warp + m * P::WARPS >= P::rows || from + s >= count || lane >= FOURS) continue;
#pragma unroll
                for (int e = 0; e < 4; ++e) sum[m].x[e] += by * read[m][s].x[e];
            }
    }
#pragma unroll
    for (int m = 0; m < MINE; ++m) {
        if (warp + m * P::WARPS >= P::rows || lane >= FOURS) continue;
        if (WHOLE) keep_four(sum[m], batch, head, warp + m * P::WARPS, lane * 4, p);
        else parts.values(first, warp + m * P::WARPS)[lane] = sum[m];
    }
}

// Called by every block of a task once its part is written. `counters`: the task's, one for its groups and one for each.
template <class P>
__device__ __forceinline__ void joined(const Parts<P> &parts, unsigned *counters, int batch, int head, const P &p) {
    constexpr int GROUPS = (P::SPLITS + P::GROUP - 1) / P::GROUP;
    if constexpr (GROUPS > 1) {
        const int group = (int)(blockIdx.x % P::SPLITS) / P::GROUP, first = group * P::GROUP;
        const int count = P::SPLITS - first < P::GROUP ? P::SPLITS - first : P::GROUP;
        if (!arrives_last(counters + 1 + group, count)) return;
        join<P, P::GROUP, false>(parts, first, 1, count, batch, head, p);
    }
    if (arrives_last(counters, GROUPS > 1 ? GROUPS : P::SPLITS))
        join<P, (GROUPS > 1 ? GROUPS : P::SPLITS), true>(parts, 0, GROUPS > 1 ? P::GROUP : 1, GROUPS > 1 ? GROUPS : P::SPLITS, batch, head, p);
}

}  // namespace flash_decode
