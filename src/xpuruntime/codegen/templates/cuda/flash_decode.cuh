// needs: gemv
// flash_decode.cuh: attention of few queries over many keys, whose time is that of reading keys and values once.
// The keys are split over blocks (Flash-Decoding, Dao et al., 2023); `join` brings the parts together. All query heads that share a
// key head are rows of one block. D / 8 lanes hold a key (four or more), so a warp reads several keys at once, AHEAD times over.
//
// P: S (bf16, f16), D (size of a head in eights, padded to a power of two of chunks), d, dv, rows (of queries and heads, up to 8),
//    keys, SPLITS, SHARE (keys of a split), WARPS, AHEAD, k_row, v_row, MASKED, scale() (of exponents to base 2),
//    sees(row, key), logit(score, batch, head, row, key).
namespace flash_decode {

using tensor::Quad;

// One part: rows x (maximum, sum, dv values), left in `parts`, or the result itself where there is one part.
template <class P>
__device__ __forceinline__ void part(const typename P::S *q, const typename P::S *k, const typename P::S *v, int batch, int head,
                                     float *parts, const P &p) {
    typedef typename P::S S;
    typedef gemv::Chunk<S> Chunk;
    constexpr int L = P::D / 8, SLOTS = 32 / L, STEP = P::WARPS * SLOTS;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, slot = lane / L, chunk = lane % L * 8;
    const int begin = blockIdx.x % P::SPLITS * P::SHARE, end = begin + P::SHARE < P::keys ? begin + P::SHARE : P::keys;

    float query[P::rows][8], out[P::rows][8], most[P::rows], total[P::rows];
#pragma unroll
    for (int r = 0; r < P::rows; ++r) {
        Chunk::open(query[r], gemv::read<P::ALIGNED, false>(q + p.q_at(r), chunk, P::d));
        most[r] = TENSOR_HIDDEN;
        total[r] = 0;
#pragma unroll
        for (int e = 0; e < 8; ++e) query[r][e] *= P::scale(), out[r][e] = 0;
    }

    for (int key0 = begin + warp * SLOTS + slot; key0 - slot < end; key0 += P::AHEAD * STEP) {
        if (P::MASKED) {  // what no row sees is not read
            bool any = false;
#pragma unroll
            for (int s = 0; s < P::AHEAD; ++s)
#pragma unroll
                for (int r = 0; r < P::rows; ++r) any = any || (key0 + s * STEP < end && p.logit(0.0f, batch, head, r, key0 + s * STEP) != TENSOR_HIDDEN);
            if (!__any_sync(0xffffffffu, any)) continue;
        }
        Quad keys[P::AHEAD], values[P::AHEAD];
#pragma unroll
        for (int s = 0; s < P::AHEAD; ++s) {
            const int key = key0 + s * STEP < end ? key0 + s * STEP : begin;
            keys[s] = gemv::read<P::ALIGNED, true>(k + (long long)key * P::k_row, chunk, P::d);
        }
#pragma unroll
        for (int s = 0; s < P::AHEAD; ++s) {
            const int key = key0 + s * STEP < end ? key0 + s * STEP : begin;
            values[s] = gemv::read<P::ALIGNED, true>(v + (long long)key * P::v_row, chunk, P::dv);
        }
        float scores[P::AHEAD][P::rows];
#pragma unroll
        for (int s = 0; s < P::AHEAD; ++s) {
            const int key = key0 + s * STEP;
            float x[8];
            Chunk::open(x, keys[s]);
#pragma unroll
            for (int r = 0; r < P::rows; ++r) {
                float sum = 0;
#pragma unroll
                for (int e = 0; e < 8; ++e) sum += query[r][e] * x[e];
#pragma unroll
                for (int far = L / 2; far > 0; far /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, far);
                if (P::MASKED && key < end) sum = p.logit(sum, batch, head, r, key);
                scores[s][r] = key < end && p.sees(r, key) ? sum : TENSOR_HIDDEN;
            }
        }
#pragma unroll
        for (int r = 0; r < P::rows; ++r) {
            float peak = most[r];
#pragma unroll
            for (int s = 0; s < P::AHEAD; ++s) peak = fmaxf(peak, scores[s][r]);
            const float level = peak == TENSOR_HIDDEN ? 0 : peak, shrink = tensor::exp2(most[r] - level);
            most[r] = peak;
            total[r] *= shrink;
#pragma unroll
            for (int e = 0; e < 8; ++e) out[r][e] *= shrink;
#pragma unroll
            for (int s = 0; s < P::AHEAD; ++s) {
                scores[s][r] = tensor::exp2(scores[s][r] - level);
                total[r] += scores[s][r];
            }
        }
#pragma unroll
        for (int s = 0; s < P::AHEAD; ++s) {
            if (key0 + s * STEP >= end) continue;
            float x[8];
            Chunk::open(x, values[s]);
#pragma unroll
            for (int r = 0; r < P::rows; ++r)
#pragma unroll
                for (int e = 0; e < 8; ++e) out[r][e] += scores[s][r] * x[e];
        }
    }

    // Slots of a warp, then warps, become one.
    __shared__ float states[P::WARPS][P::rows][P::D + 2];
#pragma unroll
    for (int r = 0; r < P::rows; ++r) {
#pragma unroll
        for (int far = L; far < 32; far *= 2) {
            const float other = __shfl_xor_sync(0xffffffffu, most[r], far);
            const float peak = fmaxf(most[r], other), level = peak == TENSOR_HIDDEN ? 0 : peak, shrink = tensor::exp2(most[r] - level);
            total[r] *= shrink;
            total[r] += __shfl_xor_sync(0xffffffffu, total[r], far);
#pragma unroll
            for (int e = 0; e < 8; ++e) {
                out[r][e] *= shrink;
                out[r][e] += __shfl_xor_sync(0xffffffffu, out[r][e], far);
            }
            most[r] = peak;
        }
        if (slot == 0) {
#pragma unroll
            for (int e = 0; e < 8; ++e) states[warp][r][chunk + e] = out[r][e];
            if (chunk == 0) states[warp][r][P::D] = most[r], states[warp][r][P::D + 1] = total[r];
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < P::rows * (P::dv + 2); i += P::WARPS * 32) {
        const int r = i / (P::dv + 2), at = i % (P::dv + 2);
        float peak = TENSOR_HIDDEN, sum = 0;
#pragma unroll
        for (int w = 0; w < P::WARPS; ++w) peak = fmaxf(peak, states[w][r][P::D]);
        const float level = peak == TENSOR_HIDDEN ? 0 : peak;
        const int column = at < P::dv ? at : P::D + 1;
#pragma unroll
        for (int w = 0; w < P::WARPS; ++w) sum += states[w][r][column] * tensor::exp2(states[w][r][P::D] - level);
        parts[r * (P::dv + 2) + at] = at == P::dv ? peak : sum;
    }
}

// The parts of one row: a value a thread.
template <class P>
__device__ __forceinline__ float joined(const float *parts, int stride, int row, int at) {
    float peak = TENSOR_HIDDEN, sum = 0, total = 0;
    for (int s = 0; s < P::SPLITS; ++s) peak = fmaxf(peak, parts[s * stride + row * (P::dv + 2) + P::dv]);
    const float level = peak == TENSOR_HIDDEN ? 0 : peak;
    for (int s = 0; s < P::SPLITS; ++s) {
        const float *const state = parts + s * stride + row * (P::dv + 2);
        const float weight = tensor::exp2(state[P::dv] - level);
        sum += state[at] * weight;
        total += state[P::dv + 1] * weight;
    }
    return total == 0 ? 0 : sum / total;
}

}  // namespace flash_decode
