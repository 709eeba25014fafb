// needs: tiles log_sum_exp
// flash_v2.cuh: attention in one pass over the keys on tensor cores, in memory linear in the sequence length.
// The algorithm is FlashAttention-2 (Dao, 2023): a block has BM queries, 16 * MI of them per warp; keys and values are double-buffered in shared
// memory, BN at a time; the online softmax keeps a running row maximum and row sum, and divides once at the end.
//
// P: T, D (size of a head, padded to 32, 64 or 128), d, dv (its true sizes), BM, BN, WARPS, queries, keys, group,
//   heads, CAUSAL, offset (query i sees keys up to i + offset), ALIGNED, PAIRS, strides q_row, k_row, v_row, y_row,
//   PLAIN (no mask, no cap, scale > 0), scale (of exponents to base 2), q_at(batch, head), k_at, v_at, y_at, and
//   and, where it is not PLAIN, logit(score, batch, head, query, key).
//   LSE: also write the log-sum-exp of each query's logits, to p.lse + lse_at(batch, head) + query * lse_row.
namespace flash {

using tensor::u16;
using tensor::u32;


// Copy rows into a tile. A thread's chunks are in one column, so that their addresses differ by constants.
template <int ROWS, int CHUNKS, int THREADS, bool ALIGNED>
__device__ __forceinline__ void fetch(unsigned char *tile, const u16 *from, int stride, int width, int limit) {
    constexpr int STEP = THREADS / CHUNKS;
    static_assert(STEP % 8 == 0 && ROWS % STEP == 0, "rows of a thread are swizzled alike");
    const int r0 = threadIdx.x / CHUNKS, c = threadIdx.x % CHUNKS;
    from += (long long)r0 * stride;
    tile += tiles::swizzle<CHUNKS>(r0, c) * 16;
#pragma unroll
    for (int i = 0; i < ROWS / STEP; ++i)
        tiles::load_chunk_async<ALIGNED>(tile + i * STEP * CHUNKS * 16, from + (long long)(i * STEP) * stride, c * 8, width, r0 + i * STEP < limit);
}

// acc [16 MI, BN] = rows [16 MI, D] columns [BN, D]^T
template <class T, int CH, int MI, int SN>
__device__ __forceinline__ void multiply_transposed(float (&acc)[MI][SN][4], u32 rows, u32 columns) {
#pragma unroll
    for (int i = 0; i < MI; ++i)
#pragma unroll
        for (int j = 0; j < SN; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) acc[i][j][e] = 0;
#pragma unroll
    for (int kk = 0; kk < CH / 2; ++kk) {
        u32 fa[MI][4], fb[4];
#pragma unroll
        for (int i = 0; i < MI; ++i) tiles::load_a_16x16<CH>(fa[i], rows, i * 16, kk * 2);
#pragma unroll
        for (int j = 0; j < SN / 2; ++j) {
            tiles::load_b_16x16<CH>(fb, columns, j * 16, kk * 2);
#pragma unroll
            for (int i = 0; i < MI; ++i) {
                tensor::mma_m16n8k16<T>(acc[i][2 * j], fa[i], fb[0], fb[1]);
                tensor::mma_m16n8k16<T>(acc[i][2 * j + 1], fa[i], fb[2], fb[3]);
            }
        }
    }
}

// acc [16 MI, D] += factors [16 MI, BN] columns [BN, D]
template <class T, int CH, int MI, int SN>
__device__ __forceinline__ void multiply_add(float (&acc)[MI][CH][4], const u32 (&factors)[MI][SN][2], u32 columns) {
#pragma unroll
    for (int kk = 0; kk < SN / 2; ++kk) {
        u32 fb[4];
#pragma unroll
        for (int j = 0; j < CH / 2; ++j) {
            tiles::load_b_trans_16x16<CH>(fb, columns, kk * 16, j * 2);
#pragma unroll
            for (int i = 0; i < MI; ++i) {
                const u32 fa[4] = {factors[i][2 * kk][0], factors[i][2 * kk][1], factors[i][2 * kk + 1][0], factors[i][2 * kk + 1][1]};
                tensor::mma_m16n8k16<T>(acc[i][2 * j], fa, fb[0], fb[1]);
                tensor::mma_m16n8k16<T>(acc[i][2 * j + 1], fa, fb[2], fb[3]);
            }
        }
    }
}

template <class P>
__device__ __forceinline__ void forward(const u16 *q, const u16 *k, const u16 *v, u16 *y, const P &p) {
    DYNAMIC_SMEM(shared);
    typedef typename P::T T;
    constexpr int THREADS = P::WARPS * 32, MI = P::BM / P::WARPS / 16, CH = P::D / 8, SN = P::BN / 8, ON = P::D / 8;
    constexpr int Q_BYTES = P::BM * P::D * 2, KV_BYTES = P::BN * P::D * 2;
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    // Launch the blocks with the most keys first, to shorten the tail.
    const int tile = gridDim.y - 1 - blockIdx.y, head = blockIdx.x % P::heads, batch = blockIdx.x / P::heads;
    const int row0 = tile * P::BM, first = row0 + warp * 16 * MI;
    q += P::q_at(batch, head) + (long long)row0 * P::q_row;
    k += P::k_at(batch, head / P::group);
    v += P::v_at(batch, head / P::group);
    y += P::y_at(batch, head);

    int visible_keys = P::keys;
    if (P::CAUSAL) {
        const int last = (row0 + P::BM < P::queries ? row0 + P::BM : P::queries) + P::offset;
        visible_keys = last < visible_keys ? (last > 0 ? last : 0) : visible_keys;
    }
    const int blocks = (visible_keys + P::BN - 1) / P::BN;

    const auto fetch_keys = [&](int block) {
        unsigned char *const to = shared + Q_BYTES + block % 2 * 2 * KV_BYTES;
        const int at = block * P::BN;
        fetch<P::BN, CH, THREADS, P::ALIGNED>(to, k + (long long)at * P::k_row, P::k_row, P::d, P::keys - at);
        fetch<P::BN, CH, THREADS, P::ALIGNED>(to + KV_BYTES, v + (long long)at * P::v_row, P::v_row, P::dv, P::keys - at);
        tensor::cp_async_commit();
    };
    fetch<P::BM, CH, THREADS, P::ALIGNED>(shared, q, P::q_row, P::d, P::queries - row0);
    if (blocks) fetch_keys(0);
    else tensor::cp_async_commit();

    float out[MI][ON][4], row_max[MI][2], row_sum[MI][2];
#pragma unroll
    for (int i = 0; i < MI; ++i) {
#pragma unroll
        for (int j = 0; j < ON; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) out[i][j][e] = 0;
        row_max[i][0] = row_max[i][1] = MASKED_SCORE;
        row_sum[i][0] = row_sum[i][1] = 0;
    }
    const u32 base = tensor::smem_addr(shared), kv = base + Q_BYTES;
    const u32 queries = tiles::tile_addr<CH>(tiles::ldmatrix_rows_addr<CH>(base, lane), warp * 16 * MI, 0);
    const u32 keys0 = tiles::ldmatrix_columns_addr<CH>(kv, lane), values0 = tiles::ldmatrix_rows_addr<CH>(kv + KV_BYTES, lane);

    for (int block = 0; block < blocks; ++block) {
        tensor::cp_async_wait<0>();
        __syncthreads();  // the keys have arrived for all warps, and no warp reads the previous buffer any more
        if (block + 1 < blocks) fetch_keys(block + 1);
        const u32 keys = keys0 + block % 2 * 2 * KV_BYTES, values = values0 + block % 2 * 2 * KV_BYTES;

        float s[MI][SN][4];
        multiply_transposed<T, CH>(s, queries, keys);

        const int key0 = block * P::BN;
        const bool edge = key0 + P::BN > P::keys || (P::CAUSAL && key0 + P::BN - 1 > first + P::offset);
        if (!P::PLAIN || edge) {
#pragma unroll
            for (int i = 0; i < MI; ++i)
#pragma unroll
                for (int j = 0; j < SN; ++j)
#pragma unroll
                    for (int e = 0; e < 4; ++e) {
                        const int row = first + i * 16 + e / 2 * 8 + lane / 4, key = key0 + j * 8 + lane % 4 * 2 + e % 2;
                        const bool there = key < P::keys && (!P::CAUSAL || key <= row + P::offset);
                        if (!P::PLAIN && there && row < P::queries) s[i][j][e] = p.logit(s[i][j][e], batch, head, row, key);
                        if (!there) s[i][j][e] = MASKED_SCORE;
                    }
        }

        // Online softmax: rescale the accumulators to the new maximum.
        u32 weights[MI][SN][2];
#pragma unroll
        for (int i = 0; i < MI; ++i)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float new_max = row_max[i][half];
#pragma unroll
                for (int j = 0; j < SN; ++j) new_max = fmaxf(new_max, fmaxf(s[i][j][half * 2], s[i][j][half * 2 + 1]));
                new_max = fmaxf(new_max, __shfl_xor_sync(0xffffffffu, new_max, 1));
                new_max = fmaxf(new_max, __shfl_xor_sync(0xffffffffu, new_max, 2));
                const float shift = new_max == MASKED_SCORE ? 0 : new_max * P::scale();
                const float rescale = tensor::exp2(row_max[i][half] * P::scale() - shift);
                row_max[i][half] = new_max;
                float sum = 0;
#pragma unroll
                for (int j = 0; j < SN; ++j) {
                    const float a = tensor::exp2(s[i][j][half * 2] * P::scale() - shift);
                    const float b = tensor::exp2(s[i][j][half * 2 + 1] * P::scale() - shift);
                    sum += a + b;
                    weights[i][j][half] = T::pack(a, b);
                }
                row_sum[i][half] = row_sum[i][half] * rescale + sum;
#pragma unroll
                for (int j = 0; j < ON; ++j) {
                    out[i][j][half * 2] *= rescale;
                    out[i][j][half * 2 + 1] *= rescale;
                }
            }

        multiply_add<T, CH>(out, weights, values);
    }
    tensor::cp_async_wait<0>();

#pragma unroll
    for (int i = 0; i < MI; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float sum = row_sum[i][half];
            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            const float scale = sum == 0 ? 0 : 1 / sum;
            const int row = first + i * 16 + half * 8 + lane / 4;
            if (row >= P::queries) continue;
            if constexpr (P::LSE)
                if (lane % 4 == 0) p.lse[P::lse_at(batch, head) + (long long)row * P::lse_row] = log_sum_exp(row_max[i][half] * P::scale(), sum);
            u16 *const line = y + (long long)row * P::y_row;
#pragma unroll
            for (int j = 0; j < ON; ++j) {
                const int at = j * 8 + lane % 4 * 2;
                if (at >= P::dv) continue;
                const u32 pair = T::pack(out[i][j][half * 2] * scale, out[i][j][half * 2 + 1] * scale);
                if (P::PAIRS) {
                    *(u32 *)(line + at) = pair;
                } else {
                    line[at] = (u16)pair;
                    if (at + 1 < P::dv) line[at + 1] = (u16)(pair >> 16);
                }
            }
        }
}

}  // namespace flash
