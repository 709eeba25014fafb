// needs: flash_v2
// flash_backward.cuh: the gradients of attention on tensor cores, in memory linear in the sequence length.
// The algorithm is FlashAttention-2's (Dao, 2023, algorithm 2) without atomics, so that equal inputs give equal bits: a block has BM keys, whose
// gradients it sums over all queries of the heads that share them, or BM queries, whose gradients it sums over all keys. The weights are computed
// again from the log-sum-exp of each query, in both.
//
// P: as flash_v2's, and rows (batch * heads * queries), factor (of q k^T in the logits), strides of grad (the gradient of y) and of the results
//   grad_q, grad_k, grad_v, with *_at(batch, head). BM rows of a block stay in shared memory; BN columns at a time are double-buffered.
//   stats: the log-sum-exp of each query to base 2 (inf for a query that sees no key), then its sum of grad * y.
namespace flash_backward {

using tensor::u16;
using tensor::u32;

constexpr int STATS_LANES = 8, STATS_THREADS = 128;  // lanes per query

// The statistics of a query from its gradient and its result.
template <class P>
__device__ __forceinline__ void row_stats(const u16 *grad, const u16 *y, const float *lse, float *stats) {
    typedef typename P::T T;
    const long long row = (long long)blockIdx.x * (STATS_THREADS / STATS_LANES) + threadIdx.x / STATS_LANES;
    const int lane = threadIdx.x % STATS_LANES;
    const bool there = row < P::rows;
    const int query = row % P::queries, head = row / P::queries % P::heads, batch = row / P::queries / P::heads;
    float sum = 0;
    if (there) {
        grad += P::grad_at(batch, head) + (long long)query * P::grad_row;
        y += P::y_at(batch, head) + (long long)query * P::y_row;
        for (int at = lane * 8; at < P::dv; at += STATS_LANES * 8) {
            if constexpr (P::ALIGNED) {
                const tensor::Quad a = tensor::load16(grad + at), b = tensor::load16(y + at);
#pragma unroll
                for (int i = 0; i < 4; ++i) sum += T::low(a.x[i]) * T::low(b.x[i]) + T::high(a.x[i]) * T::high(b.x[i]);
            } else {
                for (int e = at; e < at + 8 && e < P::dv; ++e) sum += T::wide(grad[e]) * T::wide(y[e]);
            }
        }
    }
#pragma unroll
    for (int step = STATS_LANES / 2; step; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (!there || lane) return;
    const float log_sum = lse[P::lse_at(batch, head) + (long long)query * P::lse_row];
    stats[row] = log_sum == MASKED_SCORE ? -MASKED_SCORE : log_sum * 1.4426950408889634f;
    stats[P::rows + row] = sum;
}

// Store the rows of a warp below `limit`, from row `first` on.
template <class P, int MI, int CH>
__device__ __forceinline__ void store_rows(const float (&acc)[MI][CH][4], u16 *to, long long stride, int size, int first, int limit, float factor) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < MI; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = first + i * 16 + half * 8 + lane / 4;
            if (row >= limit) continue;
            u16 *const line = to + row * stride;
#pragma unroll
            for (int j = 0; j < CH; ++j) {
                const int at = j * 8 + lane % 4 * 2;
                if (at >= size) continue;
                const u32 pair = P::T::pack(acc[i][j][half * 2] * factor, acc[i][j][half * 2 + 1] * factor);
                if (P::PAIRS) {
                    *(u32 *)(line + at) = pair;
                } else {
                    line[at] = (u16)pair;
                    if (at + 1 < size) line[at + 1] = (u16)(pair >> 16);
                }
            }
        }
}

// The gradients of BM keys and their values (P::KEYS: rows are keys, columns are queries), or of BM queries (rows are queries, columns are keys).
template <class P>
__device__ __forceinline__ void gradients(const u16 *q, const u16 *k, const u16 *v, const u16 *grad, const float *stats, u16 *grad_row, u16 *grad_v,
                                          const P &p) {
    DYNAMIC_SMEM(shared);
    typedef typename P::T T;
    constexpr bool KEYS = P::KEYS;
    constexpr int THREADS = P::WARPS * 32, MI = P::BM / P::WARPS / 16, CH = P::D / 8, SN = P::BN / 8;
    constexpr int ROW_BYTES = P::BM * P::D * 2, COLUMN_BYTES = P::BN * P::D * 2;
    constexpr int HEADS = KEYS ? P::heads / P::group : P::heads;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    // Launch the blocks that see most columns first, to shorten the tail: the first keys or the last queries.
    const int tile = KEYS ? blockIdx.y : gridDim.y - 1 - blockIdx.y, block_head = blockIdx.x % HEADS, batch = blockIdx.x / HEADS;
    const int row0 = tile * P::BM, first = row0 + warp * 16 * MI;

    // Tiles of columns that any row of the block sees, and for keys all of that for each head of queries.
    int begin = 0, end = KEYS ? P::queries : P::keys;
    if (P::CAUSAL && KEYS) {
        begin = row0 - P::offset > 0 ? (row0 - P::offset) / P::BN : 0;
    } else if (P::CAUSAL) {
        const int last = (row0 + P::BM < P::queries ? row0 + P::BM : P::queries) + P::offset;
        end = last < end ? (last > 0 ? last : 0) : end;
    }
    const int column_tiles = (end + P::BN - 1) / P::BN - begin, steps = column_tiles > 0 ? column_tiles * (KEYS ? P::group : 1) : 0;
    const auto head_of = [&](int step) { return KEYS ? block_head * P::group + step / column_tiles : block_head; };
    const auto column_of = [&](int step) { return (begin + (KEYS ? step % column_tiles : step)) * P::BN; };

    // Shared memory: k and v, or q and grad, of the rows; two buffers of the same of the columns; for keys two buffers of statistics.
    float *const column_stats = (float *)(shared + 2 * ROW_BYTES + 4 * COLUMN_BYTES);
    const auto fetch_columns = [&](int step) {
        unsigned char *const to = shared + 2 * ROW_BYTES + step % 2 * 2 * COLUMN_BYTES;
        const int at = column_of(step), head = head_of(step);
        if constexpr (KEYS) {
            flash::fetch<P::BN, CH, THREADS, P::ALIGNED>(to, q + P::q_at(batch, head) + (long long)at * P::q_row, P::q_row, P::d, P::queries - at);
            flash::fetch<P::BN, CH, THREADS, P::ALIGNED>(to + COLUMN_BYTES, grad + P::grad_at(batch, head) + (long long)at * P::grad_row, P::grad_row,
                                                         P::dv, P::queries - at);
            if (threadIdx.x < P::BN) {
                const bool there = at + (int)threadIdx.x < P::queries;
                const float *const from = stats + ((long long)(batch * P::heads + head) * P::queries + at + threadIdx.x);
                float *const pair = column_stats + step % 2 * 2 * P::BN;
                pair[threadIdx.x] = there ? from[0] : -MASKED_SCORE;  // weights of 0 beyond the last query
                pair[P::BN + threadIdx.x] = there ? from[P::rows] : 0;
            }
        } else {
            const int group = head / P::group;
            flash::fetch<P::BN, CH, THREADS, P::ALIGNED>(to, k + P::k_at(batch, group) + (long long)at * P::k_row, P::k_row, P::d, P::keys - at);
            flash::fetch<P::BN, CH, THREADS, P::ALIGNED>(to + COLUMN_BYTES, v + P::v_at(batch, group) + (long long)at * P::v_row, P::v_row, P::dv,
                                                         P::keys - at);
        }
        tensor::cp_async_commit();
    };
    if constexpr (KEYS) {
        flash::fetch<P::BM, CH, THREADS, P::ALIGNED>(shared, k + P::k_at(batch, block_head) + (long long)row0 * P::k_row, P::k_row, P::d, P::keys - row0);
        flash::fetch<P::BM, CH, THREADS, P::ALIGNED>(shared + ROW_BYTES, v + P::v_at(batch, block_head) + (long long)row0 * P::v_row, P::v_row, P::dv,
                                                     P::keys - row0);
    } else {
        flash::fetch<P::BM, CH, THREADS, P::ALIGNED>(shared, q + P::q_at(batch, block_head) + (long long)row0 * P::q_row, P::q_row, P::d,
                                                     P::queries - row0);
        flash::fetch<P::BM, CH, THREADS, P::ALIGNED>(shared + ROW_BYTES, grad + P::grad_at(batch, block_head) + (long long)row0 * P::grad_row,
                                                     P::grad_row, P::dv, P::queries - row0);
    }
    if (steps) fetch_columns(0);
    else tensor::cp_async_commit();

    float row_grads[MI][CH][4], value_grads[KEYS ? MI : 1][KEYS ? CH : 1][4], row_lse[MI][2], row_delta[MI][2];
#pragma unroll
    for (int i = 0; i < MI; ++i)
#pragma unroll
        for (int j = 0; j < CH; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                row_grads[i][j][e] = 0;
                if constexpr (KEYS) value_grads[i][j][e] = 0;
            }
    if constexpr (!KEYS) {
#pragma unroll
        for (int i = 0; i < MI; ++i)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int row = first + i * 16 + half * 8 + lane / 4;
                const float *const from = stats + ((long long)blockIdx.x * P::queries + row);
                row_lse[i][half] = row < P::queries ? from[0] : -MASKED_SCORE;
                row_delta[i][half] = row < P::queries ? from[P::rows] : 0;
            }
    }
    const u32 base = tensor::smem_addr(shared), rows = tiles::tile_addr<CH>(tiles::ldmatrix_rows_addr<CH>(base, lane), warp * 16 * MI, 0);
    const u32 columns_n = tiles::ldmatrix_columns_addr<CH>(base + 2 * ROW_BYTES, lane), columns_k = tiles::ldmatrix_rows_addr<CH>(base + 2 * ROW_BYTES, lane);

    for (int step = 0; step < steps; ++step) {
        tensor::cp_async_wait<0>();
        __syncthreads();  // the columns have arrived for all warps, and no warp reads the previous buffer any more
        if (step + 1 < steps) fetch_columns(step + 1);
        const u32 buffer = step % 2 * 2 * COLUMN_BYTES;
        float weights[MI][SN][4], slopes[MI][SN][4];  // from logits, and from grad v^T
        flash::multiply_transposed<T, CH>(weights, rows, columns_n + buffer);
        flash::multiply_transposed<T, CH>(slopes, rows + ROW_BYTES, columns_n + buffer + COLUMN_BYTES);

        const int column0 = column_of(step);
        const int last_key = KEYS ? first + 16 * MI - 1 : column0 + P::BN - 1, first_query = KEYS ? column0 : first;
        const bool edge = last_key >= P::keys || (P::CAUSAL && last_key > first_query + P::offset);
        if (!P::PLAIN || edge) {
#pragma unroll
            for (int i = 0; i < MI; ++i)
#pragma unroll
                for (int j = 0; j < SN; ++j)
#pragma unroll
                    for (int e = 0; e < 4; ++e) {
                        const int row = first + i * 16 + e / 2 * 8 + lane / 4, column = column0 + j * 8 + lane % 4 * 2 + e % 2;
                        const int key = KEYS ? row : column, query = KEYS ? column : row;
                        const bool there = key < P::keys && (!P::CAUSAL || key <= query + P::offset);
                        if (!P::PLAIN && there && query < P::queries) weights[i][j][e] = p.logit(weights[i][j][e], batch, head_of(step), query, key);
                        if (!there) weights[i][j][e] = MASKED_SCORE;
                    }
        }
        const float *const pair = column_stats + step % 2 * 2 * P::BN;
        u32 packed_weights[MI][SN][2], packed_slopes[MI][SN][2];
#pragma unroll
        for (int j = 0; j < SN; ++j) {
            float lse[2], delta[2];
            if constexpr (KEYS) {
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    lse[e] = pair[j * 8 + lane % 4 * 2 + e];
                    delta[e] = pair[P::BN + j * 8 + lane % 4 * 2 + e];
                }
            }
#pragma unroll
            for (int i = 0; i < MI; ++i)
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    float w[2], slope[2];
#pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        w[e] = tensor::exp2(weights[i][j][half * 2 + e] * P::scale() - (KEYS ? lse[e] : row_lse[i][half]));
                        slope[e] = w[e] * (slopes[i][j][half * 2 + e] - (KEYS ? delta[e] : row_delta[i][half]));
                    }
                    packed_weights[i][j][half] = T::pack(w[0], w[1]);
                    packed_slopes[i][j][half] = T::pack(slope[0], slope[1]);
                }
        }
        flash::multiply_add<T, CH>(row_grads, packed_slopes, columns_k + buffer);
        if constexpr (KEYS) flash::multiply_add<T, CH>(value_grads, packed_weights, columns_k + buffer + COLUMN_BYTES);
    }
    tensor::cp_async_wait<0>();

    if constexpr (KEYS) {
        store_rows<P>(row_grads, grad_row + P::grad_k_at(batch, block_head), P::grad_k_row, P::d, first, P::keys, P::factor());
        store_rows<P>(value_grads, grad_v + P::grad_v_at(batch, block_head), P::grad_v_row, P::dv, first, P::keys, 1);
    } else {
        store_rows<P>(row_grads, grad_row + P::grad_q_at(batch, block_head), P::grad_q_row, P::d, first, P::queries, P::factor());
    }
}

}  // namespace flash_backward
