// needs: tensor log_sum_exp
// flash_simt.cuh: attention in one pass over the keys by FMA, for float32 and for heads that have no tensor-core tiles.
// The online softmax is that of FlashAttention-2 (Dao, 2023). LANES threads of a warp share TM queries: each has TM x BN/LANES scores and TM x
// D/LANES results in registers. Weights pass through shared memory between these threads only. The next keys are copied while the weights are computed,
// and the next values while the next scores are.
//
// P: D (size of a head, padded to a multiple of 16), d, dv (its true sizes), TM, BN, LANES (8 or 16), WARPS, queries, keys, group, heads, CAUSAL, offset, PLAIN, LSE,
//   scale, logit, q_at ... as in flash_v2.cuh; ALIGNED (16-byte copies of float32); strides of positions q_row, k_row, v_row, y_row, and of elements
//   q_step, k_step, v_step, y_step.
namespace flash_simt {

template <int N> struct alignas(4 * N) Floats { float x[N]; };

// Copy rows of a head into a tile of floats, zeros beyond the head and the limit. Neighboring threads read neighboring addresses.
template <int ROWS, int LINE, int D, int THREADS, int STEP, bool ALIGNED, class S>
__device__ __forceinline__ void fetch(float *tile, const S *from, long long stride, int width, int limit) {
    constexpr int CHUNKS = D / 4;
    for (int at = threadIdx.x; at < ROWS * CHUNKS; at += THREADS) {
        const int r = STEP == 1 ? at / CHUNKS : at % ROWS, c = (STEP == 1 ? at % CHUNKS : at / ROWS) * 4;
        float *const to = tile + r * LINE + c;
        if constexpr (ALIGNED) {
            const bool there = r < limit && c < width;
            tensor::cp_async_16(tensor::smem_addr(to), there ? from + r * stride + c : from, there);
        } else {
            Floats<4> values;
#pragma unroll
            for (int e = 0; e < 4; ++e)
                values.x[e] = r < limit && c + e < width ? (float)load<1>(from + (r * stride + (long long)(c + e) * STEP)) : 0.0f;
            *(Floats<4> *)to = values;
        }
    }
}

template <class P, class S>
__device__ __forceinline__ void forward(const S *q, const S *k, const S *v, S *y, const P &p) {
    DYNAMIC_SMEM(shared);
    constexpr int THREADS = P::WARPS * 32, LANES = P::LANES, GROUPS = THREADS / LANES, TM = P::TM, BM = GROUPS * TM, BN = P::BN, TN = BN / LANES, D = P::D;
    constexpr int LINE = D + 4, WEIGHTS = BN + LANES;  // rows begin in different banks
    constexpr int OWN = D / LANES, W = OWN % 4 == 0 ? 4 : OWN % 2 == 0 ? 2 : 1, VECTORS = OWN / W;  // results of a thread: vectors of W
    float *const queries = (float *)shared, *const keys = queries + BM * LINE, *const values = keys + BN * LINE, *const weights = values + BN * D;
    const int tx = threadIdx.x % LANES, ty = threadIdx.x / LANES;
    // Launch the blocks with the most keys first, to shorten the tail.
    const int tile = gridDim.y - 1 - blockIdx.y, head = blockIdx.x % P::heads, batch = blockIdx.x / P::heads, row0 = tile * BM;
    q += P::q_at(batch, head) + (long long)row0 * P::q_row;
    k += P::k_at(batch, head / P::group);
    v += P::v_at(batch, head / P::group);
    y += P::y_at(batch, head);

    int visible_keys = P::keys;
    if (P::CAUSAL) {
        const int last = (row0 + BM < P::queries ? row0 + BM : P::queries) + P::offset;
        visible_keys = last < visible_keys ? (last > 0 ? last : 0) : visible_keys;
    }
    const int blocks = (visible_keys + BN - 1) / BN;
    const auto fetch_keys = [&](int block) {
        const int at = block * BN;
        if (block < blocks) fetch<BN, LINE, D, THREADS, P::k_step, P::ALIGNED>(keys, k + (long long)at * P::k_row, P::k_row, P::d, P::keys - at);
        tensor::cp_async_commit();
    };
    const auto fetch_values = [&](int block) {
        const int at = block * BN;
        if (block < blocks) fetch<BN, D, D, THREADS, P::v_step, P::ALIGNED>(values, v + (long long)at * P::v_row, P::v_row, P::dv, P::keys - at);
        tensor::cp_async_commit();
    };
    fetch<BM, LINE, D, THREADS, P::q_step, P::ALIGNED>(queries, q, P::q_row, P::d, P::queries - row0);
    fetch_keys(0);
    fetch_values(0);

    float out[TM][OWN], row_max[TM], row_sum[TM];
#pragma unroll
    for (int i = 0; i < TM; ++i) {
#pragma unroll
        for (int c = 0; c < OWN; ++c) out[i][c] = 0;
        row_max[i] = MASKED_SCORE;
        row_sum[i] = 0;
    }

    for (int block = 0; block < blocks; ++block) {
        tensor::cp_async_wait<1>();
        __syncthreads();  // the keys have arrived

        float s[TM][TN];
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int j = 0; j < TN; ++j) s[i][j] = 0;
#pragma unroll 4
        for (int c = 0; c < D; c += 4) {
            Floats<4> fk[TN];
#pragma unroll
            for (int j = 0; j < TN; ++j) fk[j] = *(const Floats<4> *)(keys + (tx + LANES * j) * LINE + c);
#pragma unroll
            for (int i = 0; i < TM; ++i) {
                const Floats<4> fq = *(const Floats<4> *)(queries + (ty + GROUPS * i) * LINE + c);
#pragma unroll
                for (int e = 0; e < 4; ++e)
#pragma unroll
                    for (int j = 0; j < TN; ++j) s[i][j] += fq.x[e] * fk[j].x[e];
            }
        }
        __syncthreads();  // no thread reads the keys any more
        fetch_keys(block + 1);

        const int key0 = block * BN;
        const bool edge = key0 + BN > P::keys || (P::CAUSAL && key0 + BN - 1 > row0 + P::offset);
        if (!P::PLAIN || edge) {
#pragma unroll
            for (int i = 0; i < TM; ++i)
#pragma unroll
                for (int j = 0; j < TN; ++j) {
                    const int row = row0 + ty + GROUPS * i, key = key0 + tx + LANES * j;
                    const bool there = key < P::keys && (!P::CAUSAL || key <= row + P::offset);
                    if (!P::PLAIN && there && row < P::queries) s[i][j] = p.logit(s[i][j], batch, head, row, key);
                    if (!there) s[i][j] = MASKED_SCORE;
                }
        }

        // Online softmax: rescale the accumulators to the new maximum.
#pragma unroll
        for (int i = 0; i < TM; ++i) {
            float new_max = row_max[i];
#pragma unroll
            for (int j = 0; j < TN; ++j) new_max = fmaxf(new_max, s[i][j]);
#pragma unroll
            for (int step = 1; step < LANES; step *= 2) new_max = fmaxf(new_max, __shfl_xor_sync(0xffffffffu, new_max, step));
            const float shift = new_max == MASKED_SCORE ? 0 : new_max * P::scale();
            const float rescale = tensor::exp2(row_max[i] * P::scale() - shift);
            row_max[i] = new_max;
            float sum = 0;
#pragma unroll
            for (int j = 0; j < TN; ++j) {
                const float weight = tensor::exp2(s[i][j] * P::scale() - shift);
                sum += weight;
                weights[(ty + GROUPS * i) * WEIGHTS + tx + LANES * j] = weight;
            }
            row_sum[i] = row_sum[i] * rescale + sum;
#pragma unroll
            for (int c = 0; c < OWN; ++c) out[i][c] *= rescale;
        }
        tensor::cp_async_wait<1>();
        __syncthreads();  // the values have arrived, and the weights of a half-warp are visible to it

#pragma unroll 2
        for (int key = 0; key < BN; key += 4) {
            Floats<4> fw[TM];
#pragma unroll
            for (int i = 0; i < TM; ++i) fw[i] = *(const Floats<4> *)(weights + (ty + GROUPS * i) * WEIGHTS + key);
#pragma unroll
            for (int e = 0; e < 4; ++e)
#pragma unroll
                for (int c = 0; c < VECTORS; ++c) {
                    const Floats<W> fv = *(const Floats<W> *)(values + (key + e) * D + (c * LANES + tx) * W);
#pragma unroll
                    for (int i = 0; i < TM; ++i)
#pragma unroll
                        for (int x = 0; x < W; ++x) out[i][c * W + x] += fw[i].x[e] * fv.x[x];
                }
        }
        __syncthreads();  // no thread reads the values any more
        fetch_values(block + 1);
    }
    tensor::cp_async_wait<0>();

#pragma unroll
    for (int i = 0; i < TM; ++i) {
        float sum = row_sum[i];
#pragma unroll
        for (int step = 1; step < LANES; step *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
        const float factor = sum == 0 ? 0 : 1 / sum;
        const int row = row0 + ty + GROUPS * i;
        if (row >= P::queries) continue;
        if constexpr (P::LSE)
            if (tx == 0) p.lse[P::lse_at(batch, head) + (long long)row * P::lse_row] = log_sum_exp(row_max[i] * P::scale(), sum);
        S *const line = y + (long long)row * P::y_row;
#pragma unroll
        for (int c = 0; c < VECTORS; ++c) {
            const int at = (c * LANES + tx) * W;
            if constexpr (P::ALIGNED && W == 4) {
                Floats<4> result;
#pragma unroll
                for (int x = 0; x < W; ++x) result.x[x] = out[i][c * W + x] * factor;
                if (at < P::dv) *(Floats<4> *)(line + at) = result;
            } else {
#pragma unroll
                for (int x = 0; x < W; ++x)
                    if (at + x < P::dv) store<1>(line + (long long)(at + x) * P::y_step, out[i][c * W + x] * factor);
            }
        }
    }
}

}  // namespace flash_simt
