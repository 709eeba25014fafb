// needs: tiles hopper sight
// flash_hopper.cuh: flash_v2 for Hopper's products of a warpgroup: two warpgroups of 64 queries each, keys 128 at a time. While the products
// of one block of keys run, the softmax of the next is computed (the overlap within a warpgroup of FlashAttention-3, Shah et al., 2024).
//
// The struct P is flash_v2's; BM is 128, BN 128, WARPS 8, D 64 or 128. Where it LOOKS, the mask (flags(batch, head)) is looked through first, and
// open(score) is a logit that the mask does not hide.
namespace flash_hopper {

using tensor::u16;
using tensor::u32;
using tensor::u64;

// Rows of D values as D / 64 tiles, one after the other.
template <int ROWS, int D, int THREADS, bool ALIGNED>
__device__ __forceinline__ void fetch(unsigned char *tile, const u16 *from, int stride, int width, int limit) {
    constexpr int CHUNKS = D / 8, STEP = THREADS / CHUNKS;
    static_assert(STEP % 8 == 0 && ROWS % STEP == 0, "rows of a thread are swizzled alike");
    const int r0 = threadIdx.x / CHUNKS, c = threadIdx.x % CHUNKS;
    from += (long long)r0 * stride;
    tile += c / 8 * ROWS * 128 + tiles::swizzled<8>(r0, c % 8) * 16;
#pragma unroll
    for (int i = 0; i < ROWS / STEP; ++i)
        tiles::fetch<ALIGNED>(tile + i * STEP * 128, from + (long long)(i * STEP) * stride, c * 8, width, r0 + i * STEP < limit);
}

template <class P>
__device__ __forceinline__ void forward(const u16 *q, const u16 *k, const u16 *v, u16 *y, const P &p) {
    TENSOR_SHARED(shared);
    typedef typename P::T T;
    constexpr int BM = 128, BN = 128, THREADS = 256, D = P::D, SN = BN / 8, ON = D / 8;
    constexpr int Q_BYTES = BM * D * 2, KV_BYTES = BN * D * 2;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = warp / 4;
    const int block_row = gridDim.y - 1 - blockIdx.y, head = blockIdx.x % P::heads, batch = blockIdx.x / P::heads;
    const int row0 = block_row * BM, first = row0 + warp * 16;
    q += P::q_at(batch, head) + (long long)row0 * P::q_row;
    k += P::k_at(batch, head / P::group);
    v += P::v_at(batch, head / P::group);
    y += P::y_at(batch, head);

    int seen = P::keys;
    if (P::CAUSAL) {
        const int last = (row0 + BM < P::queries ? row0 + BM : P::queries) + P::offset;
        seen = last < seen ? (last > 0 ? last : 0) : seen;
    }
    int blocks = (seen + BN - 1) / BN;
    fetch<BM, D, THREADS, P::ALIGNED>(shared, q, P::q_row, P::d, P::queries - row0);
    const u16 *order = nullptr;
    if constexpr (P::LOOKS) {
        __shared__ u16 room[P::TILES + 1];
        blocks = sight::blocks_seen<P, BM, BN, THREADS / 32>(p.flags(batch, head), row0, room);
        order = room;
    }
    // The n-th block of keys that is seen: where it begins.
    const auto key_of = [&](int n) { return (P::LOOKS ? order[n] & ~sight::OPEN : n) * BN; };

    // Queries, then two blocks of keys, then two of values.
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
    tensor::copies_commit();
    fetch_values(0);
    fetch_keys(1);
    tensor::copies_commit();

    float s[SN * 4], out[ON * 4], most[2] = {TENSOR_HIDDEN, TENSOR_HIDDEN}, total[2] = {0, 0}, shrink[2];
    u32 weights[BN / 16][4];
#pragma unroll
    for (int i = 0; i < ON * 4; ++i) out[i] = 0;

    const u64 query_tile = hopper::tile(tensor::place(shared) + group * 64 * 128, 0);
    const u64 key_tile = hopper::tile(tensor::place(keys), 0), value_tile = hopper::tile(tensor::place(values), BN * 128);

    // Scores of a block, left to run.
    const auto score = [&](int block) {
#pragma unroll
        for (int kk = 0; kk < D / 16; ++kk) {
            const int at = kk % 4 * 32;
            hopper::Product<T, SN * 4>::rows(s, hopper::moved(query_tile, kk / 4 * BM * 128 + at),
                                            hopper::moved(key_tile, block % 2 * KV_BYTES + kk / 4 * BN * 128 + at), kk > 0);
        }
        hopper::commit();
    };
    // Sums of weighted values, left to run.
    const auto gather = [&](int block) {
#pragma unroll
        for (int kk = 0; kk < BN / 16; ++kk)
            hopper::Product<T, ON * 4>::across(out, weights[kk], hopper::moved(value_tile, block % 2 * KV_BYTES + kk * 16 * 128));
        hopper::commit();
    };
    // From scores to weights (still in s), maxima and sums; `shrink` is what earlier sums are worth now.
    const auto soften = [&](int block) {
        const int key0 = key_of(block);
        const bool edge = key0 + BN > P::keys || (P::CAUSAL && key0 + BN - 1 > first + P::offset);
        bool open = false;
        if constexpr (P::LOOKS) {
            open = order[block] & sight::OPEN;
            if (open)
#pragma unroll
                for (int i = 0; i < SN * 4; ++i) s[i] = p.open(s[i]);
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
                    if (!there) x = TENSOR_HIDDEN;
                }
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float peak = most[half];
#pragma unroll
            for (int j = 0; j < SN; ++j) peak = fmaxf(peak, fmaxf(s[j * 4 + half * 2], s[j * 4 + half * 2 + 1]));
            peak = fmaxf(peak, __shfl_xor_sync(0xffffffffu, peak, 1));
            peak = fmaxf(peak, __shfl_xor_sync(0xffffffffu, peak, 2));
            const float level = peak == TENSOR_HIDDEN ? 0 : peak * P::scale();
            shrink[half] = tensor::exp2(most[half] * P::scale() - level);
            most[half] = peak;
            float sum = 0;
#pragma unroll
            for (int j = 0; j < SN; ++j)
#pragma unroll
                for (int e = half * 2; e < half * 2 + 2; ++e) {
                    s[j * 4 + e] = tensor::exp2(s[j * 4 + e] * P::scale() - level);
                    sum += s[j * 4 + e];
                }
            total[half] = total[half] * shrink[half] + sum;
        }
    };
    const auto pack = [&]() {
#pragma unroll
        for (int kk = 0; kk < BN / 16; ++kk)
#pragma unroll
            for (int i = 0; i < 4; ++i) weights[kk][i] = T::pack(s[kk * 8 + i * 2], s[kk * 8 + i * 2 + 1]);
    };

    if (blocks) {
        tensor::copies_wait<1>();
        hopper::written();
        __syncthreads();
        hopper::arrive();
        score(0);
        hopper::wait<0>();
        hopper::landed(s);
        soften(0);
        pack();
        for (int block = 0; block + 1 < blocks; ++block) {
            tensor::copies_wait<0>();
            hopper::written();
            __syncthreads();  // this block's values and the next one's keys are there for all, and nobody reads what comes before
            hopper::landed(s);
            hopper::landed(out);
            hopper::arrive();
            score(block + 1);
            gather(block);
            fetch_keys(block + 2);
            fetch_values(block + 1);
            tensor::copies_commit();
            hopper::wait<1>();
            hopper::landed(s);
            soften(block + 1);
            hopper::wait<0>();
            hopper::landed(out);
#pragma unroll
            for (int j = 0; j < ON; ++j)
#pragma unroll
                for (int e = 0; e < 4; ++e) out[j * 4 + e] *= shrink[e / 2];
            pack();
        }
        tensor::copies_wait<0>();
        hopper::written();
        __syncthreads();
        hopper::landed(out);
        hopper::arrive();
        gather(blocks - 1);
        hopper::wait<0>();
        hopper::landed(out);
    }
    tensor::copies_wait<0>();

#pragma unroll
    for (int half = 0; half < 2; ++half) {
        float sum = total[half];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        const float scale = sum == 0 ? 0 : 1 / sum;
        const int row = first + half * 8 + lane / 4;
        if (row >= P::queries) continue;
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
