// needs: tiles wgmma mask_scan log_sum_exp cluster
// flash_hopper.cuh: flash_v2 with wgmma: two warpgroups of 64 queries each, 128 keys at a time. While the products of one block of keys run, the
// softmax of the next is computed (intra-warpgroup overlap of FlashAttention-3, Shah et al., 2024).
//
// With SPLITS == 2, a cluster of two blocks computes a tile of queries: each takes every second block of keys, and each finishes half of the
// rows with the sums that the other sends. So the last tile of a causal mask takes half the time.
//
// P is flash_v2's struct; BM is 128, BN 128, WARPS 8, D 64 or 128. If SCANS_MASK, the mask at flags(batch, head) is scanned first, and
// unmasked_logit(score) is the logit of a key in a block without masked keys.
namespace flash_hopper {

using tensor::u16;
using tensor::u32;
using tensor::u64;

// Copy rows of D values into D / 64 consecutive tiles.
template <int ROWS, int D, int THREADS, bool ALIGNED>
__device__ __forceinline__ void fetch(unsigned char *tile, const u16 *from, int stride, int width, int limit) {
    constexpr int CHUNKS = D / 8, STEP = THREADS / CHUNKS;
    static_assert(STEP % 8 == 0 && ROWS % STEP == 0, "rows of a thread are swizzled alike");
    const int r0 = threadIdx.x / CHUNKS, c = threadIdx.x % CHUNKS;
    from += (long long)r0 * stride;
    tile += c / 8 * ROWS * 128 + tiles::swizzle<8>(r0, c % 8) * 16;
#pragma unroll
    for (int i = 0; i < ROWS / STEP; ++i)
        tiles::load_chunk_async<ALIGNED>(tile + i * STEP * 128, from + (long long)(i * STEP) * stride, c * 8, width, r0 + i * STEP < limit);
}

// What the other block of a cluster sends: for each thread the sums of one row, four at a time, and its row maximum and row sum.
template <int QUADS> struct SplitExchange {
    float sums[QUADS][256][4], state[256][2];
    ClusterBarrier all;
};

template <class P>
__device__ __forceinline__ void forward(const u16 *q, const u16 *k, const u16 *v, u16 *y, const P &p) {
    DYNAMIC_SMEM(shared);
    typedef typename P::T T;
    constexpr int BM = 128, BN = 128, THREADS = 256, D = P::D, SN = BN / 8, ON = D / 8;
    constexpr int Q_BYTES = BM * D * 2, KV_BYTES = BN * D * 2;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = warp / 4;
    const int task = blockIdx.x / P::SPLITS, split = blockIdx.x % P::SPLITS;
    const int block_row = gridDim.y - 1 - blockIdx.y, head = task % P::heads, batch = task / P::heads;
    const int row0 = block_row * BM, first = row0 + warp * 16;
    q += P::q_at(batch, head) + (long long)row0 * P::q_row;
    k += P::k_at(batch, head / P::group);
    v += P::v_at(batch, head / P::group);
    y += P::y_at(batch, head);

    constexpr int QUADS = ON / 2;
    SplitExchange<QUADS> *const exchange = (SplitExchange<QUADS> *)(shared + Q_BYTES + 4 * KV_BYTES);
    if constexpr (P::SPLITS > 1) {
        if (threadIdx.x == 0) cluster_barrier_init(&exchange->all);
        cluster_arrive();
    }
    int visible_keys = P::keys;
    if (P::CAUSAL) {
        const int last = (row0 + BM < P::queries ? row0 + BM : P::queries) + P::offset;
        visible_keys = last < visible_keys ? (last > 0 ? last : 0) : visible_keys;
    }
    int blocks = (visible_keys + BN - 1) / BN;
    fetch<BM, D, THREADS, P::ALIGNED>(shared, q, P::q_row, P::d, P::queries - row0);
    const u32 *order = nullptr;
    if constexpr (P::SCANS_MASK) {
        __shared__ u32 visible[P::TILES + 1];
        blocks = mask_scan::visible_blocks<P, BM, BN, THREADS / 32>(p.flags(batch, head), row0, split, visible);
        order = visible;
    }
    else if constexpr (P::SPLITS > 1) blocks = (blocks - split + P::SPLITS - 1) / P::SPLITS;
    // The first key of this split's n-th visible block.
    const auto key_of = [&](int n) { return (P::SCANS_MASK ? (int)(order[n] & ~mask_scan::ALL_VISIBLE) : n * P::SPLITS + split) * BN; };

    // Shared memory: the queries, two buffers of keys, two of values.
    unsigned char *const keys = shared + Q_BYTES, *const values = keys + 2 * KV_BYTES;
    const auto fetch_keys = [&](int block) {
        if (block >= blocks) return;
        const int at = key_of(block);
        fetch<BN, D, THREADS, P::ALIGNED>(keys + block % 2 * KV_BYTES, k + (long long)at * P::k_row, P::k_row, P::d, P::keys - at);
    };
    const auto fetch_values = [&](int block) {
        if (block >= blocks) return;
        const int at = key_of(block);
        fetch<BN, D, THREADS, P::ALIGNED>(values + block % 2 * KV_BYTES, v + (long long)at * P::v_row, P::v_row, P::dv, P::keys - at);
    };
    fetch_keys(0);
    tensor::cp_async_commit();
    fetch_values(0);
    fetch_keys(1);
    tensor::cp_async_commit();

    float s[SN * 4], out[ON * 4], row_max[2] = {MASKED_SCORE, MASKED_SCORE}, row_sum[2] = {0, 0}, rescale[2];
    u32 weights[BN / 16][4];
#pragma unroll
    for (int i = 0; i < ON * 4; ++i) out[i] = 0;

    const u64 query_tile = hopper::matrix_desc(tensor::smem_addr(shared) + group * 64 * 128, 0);
    const u64 key_tile = hopper::matrix_desc(tensor::smem_addr(keys), 0), value_tile = hopper::matrix_desc(tensor::smem_addr(values), BN * 128);

    // Issue the scores of a block.
    const auto compute_scores = [&](int block) {
#pragma unroll
        for (int kk = 0; kk < D / 16; ++kk) {
            const int at = kk % 4 * 32;
            hopper::Wgmma<T, SN * 4>::ss(s, hopper::advance_desc(query_tile, kk / 4 * BM * 128 + at),
                                            hopper::advance_desc(key_tile, block % 2 * KV_BYTES + kk / 4 * BN * 128 + at), kk > 0);
        }
        hopper::wgmma_commit();
    };
    // Issue the accumulation of weighted values.
    const auto accumulate_values = [&](int block) {
#pragma unroll
        for (int kk = 0; kk < BN / 16; ++kk)
            hopper::Wgmma<T, ON * 4>::rs(out, weights[kk], hopper::advance_desc(value_tile, block % 2 * KV_BYTES + kk * 16 * 128));
        hopper::wgmma_commit();
    };
    // Turn scores into weights (in s) and update row maxima and sums; `rescale` is the factor of earlier sums.
    const auto online_softmax = [&](int block) {
        const int key0 = key_of(block);
        const bool edge = key0 + BN > P::keys || (P::CAUSAL && key0 + BN - 1 > first + P::offset);
        bool open = false;
        if constexpr (P::SCANS_MASK) {
            open = order[block] & mask_scan::ALL_VISIBLE;
            if (open)
#pragma unroll
                for (int i = 0; i < SN * 4; ++i) s[i] = p.unmasked_logit(s[i]);
        }
        if (!open && (!P::PLAIN || edge)) {
#pragma unroll
            for (int j = 0; j < SN; ++j)
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const int row = first + e / 2 * 8 + lane / 4, key = key0 + j * 8 + lane % 4 * 2 + e % 2;
                    const bool there = key < P::keys && (!P::CAUSAL || key <= row + P::offset);
                    float &x = s[j * 4 + e];
                    if (!P::PLAIN && there && row < P::queries) x = p.logit(x, batch, head, row, key);
                    if (!there) x = MASKED_SCORE;
                }
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float new_max = row_max[half];
#pragma unroll
            for (int j = 0; j < SN; ++j) new_max = fmaxf(new_max, fmaxf(s[j * 4 + half * 2], s[j * 4 + half * 2 + 1]));
            new_max = fmaxf(new_max, __shfl_xor_sync(0xffffffffu, new_max, 1));
            new_max = fmaxf(new_max, __shfl_xor_sync(0xffffffffu, new_max, 2));
            const float shift = new_max == MASKED_SCORE ? 0 : new_max * P::scale();
            rescale[half] = tensor::exp2(row_max[half] * P::scale() - shift);
            row_max[half] = new_max;
            float sum = 0;
#pragma unroll
            for (int j = 0; j < SN; ++j)
#pragma unroll
                for (int e = half * 2; e < half * 2 + 2; ++e) {
                    s[j * 4 + e] = tensor::exp2(s[j * 4 + e] * P::scale() - shift);
                    sum += s[j * 4 + e];
                }
            row_sum[half] = row_sum[half] * rescale[half] + sum;
        }
    };
    const auto pack = [&]() {
#pragma unroll
        for (int kk = 0; kk < BN / 16; ++kk)
#pragma unroll
            for (int i = 0; i < 4; ++i) weights[kk][i] = T::pack(s[kk * 8 + i * 2], s[kk * 8 + i * 2 + 1]);
    };

    if (blocks) {
        tensor::cp_async_wait<1>();
        hopper::fence_proxy_async();
        __syncthreads();
        hopper::wgmma_fence();
        compute_scores(0);
        hopper::wgmma_wait<0>();
        hopper::reg_fence(s);
        online_softmax(0);
        pack();
        for (int block = 0; block + 1 < blocks; ++block) {
            tensor::cp_async_wait<0>();
            hopper::fence_proxy_async();
            __syncthreads();  // this block's values and the next one's keys have arrived, and no warp reads the buffers before them
            hopper::reg_fence(s);
            hopper::reg_fence(out);
            hopper::wgmma_fence();
            compute_scores(block + 1);
            accumulate_values(block);
            fetch_keys(block + 2);
            fetch_values(block + 1);
            tensor::cp_async_commit();
            hopper::wgmma_wait<1>();
            hopper::reg_fence(s);
            online_softmax(block + 1);
            hopper::wgmma_wait<0>();
            hopper::reg_fence(out);
#pragma unroll
            for (int j = 0; j < ON; ++j)
#pragma unroll
                for (int e = 0; e < 4; ++e) out[j * 4 + e] *= rescale[e / 2];
            pack();
        }
        tensor::cp_async_wait<0>();
        hopper::fence_proxy_async();
        __syncthreads();
        hopper::reg_fence(out);
        hopper::wgmma_fence();
        accumulate_values(blocks - 1);
        hopper::wgmma_wait<0>();
        hopper::reg_fence(out);
    }
    tensor::cp_async_wait<0>();

    if constexpr (P::SPLITS > 1) {  // of the rows of a thread, split 0 finishes the first and split 1 the second
        cluster_wait();
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            if (half == split) continue;
#pragma unroll
            for (int i = 0; i < QUADS; ++i) {
                const float quad[4] = {out[i * 8 + half * 2], out[i * 8 + half * 2 + 1], out[i * 8 + 4 + half * 2], out[i * 8 + 4 + half * 2 + 1]};
                cluster_st_async(exchange->sums[i][threadIdx.x], quad, &exchange->all, 1 - split);
            }
            const float state[2] = {row_max[half], row_sum[half]};
            cluster_st_async(exchange->state[threadIdx.x], state, &exchange->all, 1 - split);
        }
        cluster_barrier_wait(&exchange->all, sizeof exchange->sums + sizeof exchange->state);
        const float other_max = exchange->state[threadIdx.x][0], other_sum = exchange->state[threadIdx.x][1];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            if (half != split) continue;
            const float new_max = fmaxf(row_max[half], other_max), shift = new_max == MASKED_SCORE ? 0 : new_max * P::scale();
            const float own = tensor::exp2(row_max[half] * P::scale() - shift), other = tensor::exp2(other_max * P::scale() - shift);
            row_max[half] = new_max;
            row_sum[half] = row_sum[half] * own + other_sum * other;
#pragma unroll
            for (int i = 0; i < QUADS; ++i)
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    float &x = out[i * 8 + e / 2 * 4 + half * 2 + e % 2];
                    x = x * own + exchange->sums[i][threadIdx.x][e] * other;
                }
        }
    }

#pragma unroll
    for (int half = 0; half < 2; ++half) {
        if (P::SPLITS > 1 && half != split) continue;
        float sum = row_sum[half];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        const float scale = sum == 0 ? 0 : 1 / sum;
        const int row = first + half * 8 + lane / 4;
        if (row >= P::queries) continue;
        if constexpr (P::LSE)
            if (lane % 4 == 0) p.lse[P::lse_at(batch, head) + (long long)row * P::lse_row] = log_sum_exp(row_max[half] * P::scale(), sum);
        u16 *const line = y + (long long)row * P::y_row;
#pragma unroll
        for (int j = 0; j < ON; ++j) {
            const int at = j * 8 + lane % 4 * 2;
            if (at >= P::dv) continue;
            const u32 pair = T::pack(out[j * 4 + half * 2] * scale, out[j * 4 + half * 2 + 1] * scale);
            if (P::PAIRS) {
                *(u32 *)(line + at) = pair;
            } else {
                line[at] = (u16)pair;
                if (at + 1 < P::dv) line[at + 1] = (u16)(pair >> 16);
            }
        }
    }
}

}  // namespace flash_hopper
