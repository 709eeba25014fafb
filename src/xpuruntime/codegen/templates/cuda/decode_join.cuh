// needs: tiles arrive
// decode_join.cuh: parts of attention become one: for each row sums of weighted values, the largest logit and the sum of weights.
//
// The parts of a task (P::SPLITS of them, each by a block of its own) meet in memory. The last block to come joins them; where they are
// many, the last of each GROUP joins its group's first, so that no block reads more than it can have under way at once.
namespace flash_decode {

using tensor::u64;

// Where the parts of a task lie: the values of each split's rows in pairs, then the states (largest logit, sum of weights) of each row.
template <class P> struct Parts {
    static constexpr int PAIRS = (P::dv + 1) / 2, STATES = P::SPLITS * P::rows * PAIRS;
    u64 *at;

    __device__ __forceinline__ u64 *values(int split, int row) const { return at + (split * P::rows + row) * PAIRS; }
    __device__ __forceinline__ u64 *state(int split, int row) const { return at + STATES + row * P::SPLITS + split; }
};

__device__ __forceinline__ u64 paired(float x, float y) { return (u64)__float_as_uint(y) << 32 | __float_as_uint(x); }
__device__ __forceinline__ float first_of(u64 pair) { return __uint_as_float((unsigned)pair); }
__device__ __forceinline__ float second_of(u64 pair) { return __uint_as_float((unsigned)(pair >> 32)); }

// The states of a block's warps (D sums, the largest logit, the sum of weights, 16 rows a warp) become the block's part, or the result.
template <class P>
__device__ __forceinline__ void merge_warps(const float *states, const Parts<P> &parts, int batch, int head, const P &p) {
    constexpr int LINE = P::D + 2, PAIRS = Parts<P>::PAIRS;
    const int split = blockIdx.x % P::SPLITS;
    for (int i = threadIdx.x; i < P::rows * PAIRS; i += P::WARPS * 32) {
        const int r = i / PAIRS, at = i % PAIRS * 2;
        float peak = TENSOR_HIDDEN, x = 0, y = 0, all = 0;
#pragma unroll
        for (int w = 0; w < P::WARPS; ++w) peak = fmaxf(peak, states[(w * 16 + r) * LINE + P::D]);
        const float level = peak == TENSOR_HIDDEN ? 0 : peak;
#pragma unroll
        for (int w = 0; w < P::WARPS; ++w) {
            const float *const state = states + (w * 16 + r) * LINE;
            const float weight = tensor::exp2(state[P::D] - level);
            x += state[at] * weight;
            y += state[at + 1] * weight;
            all += state[P::D + 1] * weight;
        }
        if (P::SPLITS > 1) {
            parts.values(split, r)[at / 2] = paired(x, y);
            if (at == 0) *parts.state(split, r) = paired(peak, all);
            continue;
        }
        p.keep(batch, head, r, at, all == 0 ? 0 : x / all);
        if (at + 1 < P::dv) p.keep(batch, head, r, at + 1, all == 0 ? 0 : y / all);
    }
}

// `count` parts (up to MOST), every `step`th from `first` on, become that of `first`, or (WHOLE) the result. What is read first is under way
// while the weights of the parts are made.
template <class P, int MOST, bool WHOLE>
__device__ __forceinline__ void join(const Parts<P> &parts, int first, int step, int count, int batch, int head, const P &p) {
    TENSOR_SHARED(shared);
    constexpr int PAIRS = Parts<P>::PAIRS, THREADS = P::WARPS * 32, ITEMS = P::rows * PAIRS, EACH = (ITEMS + THREADS - 1) / THREADS,
                  FIT = 48 / EACH < 1 ? 1 : 48 / EACH, AHEAD = FIT < MOST ? FIT : MOST;
    float *const weights = (float *)shared, *const totals = weights + P::rows * MOST;
    u64 read[AHEAD][EACH];
    const auto fetch = [&](int from) {
#pragma unroll
        for (int s = 0; s < AHEAD; ++s)
#pragma unroll
            for (int e = 0; e < EACH; ++e) {
                const int i = threadIdx.x + e * THREADS;
                if (from + s < count && i < ITEMS) read[s][e] = fresh(parts.values(first + (from + s) * step, i / PAIRS) + i % PAIRS);
            }
    };
    fetch(0);
    __syncthreads();
    for (int i = threadIdx.x; i < P::rows * count; i += THREADS) {
        const u64 state = fresh(parts.state(first + i % count * step, i / count));
        weights[i / count * MOST + i % count] = first_of(state);
        totals[i / count * MOST + i % count] = second_of(state);
    }
    __syncthreads();
    for (int r = threadIdx.x / 32; r < P::rows; r += P::WARPS) {
        float *const row = weights + r * MOST, *const sums = totals + r * MOST;
        float peak = TENSOR_HIDDEN, total = 0;
        for (int s = threadIdx.x % 32; s < count; s += 32) peak = fmaxf(peak, row[s]);
#pragma unroll
        for (int far = 16; far > 0; far /= 2) peak = fmaxf(peak, __shfl_xor_sync(0xffffffffu, peak, far));
        const float level = peak == TENSOR_HIDDEN ? 0 : peak;
        for (int s = threadIdx.x % 32; s < count; s += 32) {
            row[s] = tensor::exp2(row[s] - level);
            total += row[s] * sums[s];
        }
#pragma unroll
        for (int far = 16; far > 0; far /= 2) total += __shfl_xor_sync(0xffffffffu, total, far);
        if (WHOLE)
            for (int s = threadIdx.x % 32; s < count; s += 32) row[s] = total == 0 ? 0 : row[s] / total;
        else if (threadIdx.x % 32 == 0) *parts.state(first, r) = paired(peak, total);
    }
    __syncthreads();
    float x[EACH], y[EACH];
#pragma unroll
    for (int e = 0; e < EACH; ++e) x[e] = y[e] = 0;
    for (int from = 0; from < count; from += AHEAD) {
        if (from > 0) fetch(from);
#pragma unroll
        for (int s = 0; s < AHEAD; ++s)
#pragma unroll
            for (int e = 0; e < EACH; ++e) {
                const int i = threadIdx.x + e * THREADS;
                if (from + s >= count || i >= ITEMS) continue;
                const float weight = weights[i / PAIRS * MOST + from + s];
                x[e] += weight * first_of(read[s][e]);
                y[e] += weight * second_of(read[s][e]);
            }
    }
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
        const int i = threadIdx.x + e * THREADS, r = i / PAIRS, at = i % PAIRS * 2;
        if (i >= ITEMS) continue;
        if (!WHOLE) {
            parts.values(first, r)[at / 2] = paired(x[e], y[e]);
            continue;
        }
        p.keep(batch, head, r, at, x[e]);
        if (at + 1 < P::dv) p.keep(batch, head, r, at + 1, y[e]);
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
