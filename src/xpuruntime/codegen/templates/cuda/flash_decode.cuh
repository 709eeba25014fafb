// needs: decode_join decode_append
// flash_decode.cuh: attention of few queries over many keys, whose time is that of reading keys and values once.
// The keys are split over blocks (Flash-Decoding, Dao et al., 2023), whose parts then become one (decode_join.cuh). All query heads that share a
// key head are rows of one block, so tensor cores compute up to 16 of them at once; a warp has 16 keys of its own at a time and copies
// STAGES ahead, so that no warp waits for another until the end. A block runs through most of this text once, and a text that nothing has run
// lately is fetched: loops stay loops where that costs little.
//
// P: T, D (size of a head, padded to 32, 64 or 128), d, dv, rows (of queries and heads, up to 16), keys, SPLITS, SHARE (keys of a
//    split), GROUP (splits whose parts are joined first), WARPS, STAGES, SLOTS (tiles of a warp that there is room for: STAGES, or all that
//    its share has), ALIGNED, k_row, v_row; MASKED (there are logits to change), MASK_ROWS (rows whose masks differ), q_at(row),
//    sees(row, key), scale() (of exponents to base 2), logit(score, batch, head, row, key), keep(batch, head, row, at, value).
//    NEW (positions whose keys and values the launch itself puts into the caches, 0 for none) asks for what decode_append.cuh says. Such a
//    launch reads the mask and old keys and values before its turn: the program is laid out so that they are there.
namespace flash_decode {

using tensor::u16;
using tensor::u32;

// The keys of a split that a mask shows to any row: others are not read.
template <class P>
__device__ __forceinline__ void shown(int batch, int head, int &begin, int &end, const P &p) {
    __shared__ int bounds[P::WARPS][2];
    int first = end, last = begin;
    for (int key = begin + (int)threadIdx.x; key < end; key += P::WARPS * 32)
#pragma unroll
        for (int r = 0; r < P::MASK_ROWS; ++r)
            if (p.sees(r, key) && p.logit(0.0f, batch, head, r, key) != TENSOR_HIDDEN) {
                first = key < first ? key : first;
                last = key + 1 > last ? key + 1 : last;
            }
#pragma unroll
    for (int far = 16; far > 0; far /= 2) {
        const int f = __shfl_xor_sync(0xffffffffu, first, far), l = __shfl_xor_sync(0xffffffffu, last, far);
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

// One part of a task, left in `parts`. Where there is but one, it is the result.
template <class P>
__device__ __forceinline__ void part(const u16 *q, const u16 *k, const u16 *v, int batch, int head, const Parts<P> &parts, const P &p) {
    TENSOR_SHARED(shared);
    typedef typename P::T T;
    constexpr int CH = P::D / 8, TILE = 16 * P::D * 2, STAGE = 2 * TILE, ON = P::D / 8, LOADS = 16 * CH / 32;
    constexpr bool MORE = P::SHARE > (P::STAGES - 1) * P::WARPS * 16;  // than is under way from the beginning
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int begin = blockIdx.x % P::SPLITS * P::SHARE, end = begin + P::SHARE < P::keys ? begin + P::SHARE : P::keys;
    Appended<P, (P::NEW > 0)> added;
    if constexpr (P::NEW > 0) added.look(batch, begin, end, p);
    else {
        wait_for_turn();
        for (int i = threadIdx.x; i < 16 * CH; i += P::WARPS * 32) {
            const int r = i / CH, c = i % CH;
            tiles::fetch<P::ALIGNED>(shared + tiles::swizzled<CH>(r, c) * 16, q + p.q_at(r < P::rows ? r : 0), c * 8, P::d, r < P::rows);
        }
        tensor::copies_commit();
    }
    if (P::MASKED) shown<P>(batch, head, begin, end, p);
    const int steps = end > begin ? ((end - begin + 15) / 16 - warp + P::WARPS - 1) / P::WARPS : 0;

    unsigned char *const own = shared + TILE + warp * P::SLOTS * STAGE;
    const auto fetch = [&](int step) {
        const int key0 = begin + (step * P::WARPS + warp) * 16;
        unsigned char *const to = own + step % P::SLOTS * STAGE;
        const int c = lane % CH;
        const u16 *from_k = k + (long long)(key0 + lane / CH) * P::k_row, *from_v = v + (long long)(key0 + lane / CH) * P::v_row;
#pragma unroll 2
        for (int i = 0; i < LOADS; ++i) {
            const int r = lane / CH + i * (32 / CH);
            unsigned char *const at = to + tiles::swizzled<CH>(r, c) * 16;
            const bool there = key0 + r < end;
            tiles::fetch<P::ALIGNED>(at, from_k, c * 8, P::d, there);
            tiles::fetch<P::ALIGNED>(at + TILE, from_v, c * 8, P::dv, there);
            from_k += 32 / CH * P::k_row;
            from_v += 32 / CH * P::v_row;
        }
    };
#pragma unroll 1
    for (int s = 0; s < P::STAGES - 1; ++s) {
        if (s < steps) fetch(s);
        tensor::copies_commit();
    }
    if constexpr (P::NEW > 0) {
        added.prepare(shared, batch, p);
        wait_for_turn();
        added.turn(q, shared, batch, head, p);
    }
    tensor::copies_wait<P::STAGES - 1>();
    __syncthreads();
    const u32 base = tensor::place(shared), tile = tensor::place(own);
    const u32 queries = tiles::rows_place<CH>(base, lane);
    u32 fq[P::D / 16][4];
#pragma unroll
    for (int kk = 0; kk < P::D / 16; ++kk) tiles::rows16<CH>(fq[kk], queries, 0, kk * 2);

    float out[ON][4], most[2] = {TENSOR_HIDDEN, TENSOR_HIDDEN}, total[2] = {0, 0};
#pragma unroll
    for (int j = 0; j < ON; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) out[j][e] = 0;

    for (int step = 0; step < steps; ++step) {
        tensor::copies_wait<P::STAGES - 2>();
        __syncwarp();  // this tile is there for all lanes, and all are done with the one whose place the next copy takes
        if constexpr (MORE)
            if (step + P::STAGES - 1 < steps) fetch(step + P::STAGES - 1);
        tensor::copies_commit();
        const u32 stage = tile + step % P::SLOTS * STAGE;
        const u32 keys = tiles::columns_place<CH>(stage, lane), values = tiles::rows_place<CH>(stage + TILE, lane);
        const int key0 = begin + (step * P::WARPS + warp) * 16;
        if constexpr (P::NEW > 0) added.put(own + step % P::SLOTS * STAGE, shared, key0, end);
        float s[2][4];
#pragma unroll
        for (int j = 0; j < 2; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) s[j][e] = 0;
#pragma unroll
        for (int kk = 0; kk < P::D / 16; ++kk) {
            u32 fk[4];
            tiles::columns16<CH>(fk, keys, 0, kk * 2);
            tensor::multiply<T>(s[0], fq[kk], fk[0], fk[1]);
            tensor::multiply<T>(s[1], fq[kk], fk[2], fk[3]);
        }
        u32 weights[2][2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = half * 8 + lane / 4;
            float peak = most[half];
#pragma unroll
            for (int j = 0; j < 2; ++j)
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    float &x = s[j][half * 2 + e];
                    const int key = key0 + j * 8 + lane % 4 * 2 + e;
                    const bool there = key < end && row < P::rows && p.sees(row, key);
                    x *= P::scale();
                    if (P::MASKED && there) x = p.logit(x, batch, head, row, key);
                    if (!there) x = TENSOR_HIDDEN;
                    peak = fmaxf(peak, x);
                }
            peak = fmaxf(peak, __shfl_xor_sync(0xffffffffu, peak, 1));
            peak = fmaxf(peak, __shfl_xor_sync(0xffffffffu, peak, 2));
            const float level = peak == TENSOR_HIDDEN ? 0 : peak, shrink = tensor::exp2(most[half] - level);
            most[half] = peak;
            total[half] *= shrink;
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const float a = tensor::exp2(s[j][half * 2] - level), b = tensor::exp2(s[j][half * 2 + 1] - level);
                total[half] += a + b;
                weights[j][half] = T::pack(a, b);
            }
#pragma unroll
            for (int j = 0; j < ON; ++j) out[j][half * 2] *= shrink, out[j][half * 2 + 1] *= shrink;
        }
        const u32 fp[4] = {weights[0][0], weights[0][1], weights[1][0], weights[1][1]};
#pragma unroll
        for (int j = 0; j < ON / 2; ++j) {
            u32 fv[4];
            tiles::across16<CH>(fv, values, 0, j * 2);
            tensor::multiply<T>(out[2 * j], fp, fv[0], fv[1]);
            tensor::multiply<T>(out[2 * j + 1], fp, fv[2], fv[3]);
        }
    }
    tensor::copies_wait<0>();
    __syncthreads();

    // The warps become one; their states take the tiles' place.
    float *const states = (float *)shared;
    constexpr int LINE = P::D + 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = half * 8 + lane / 4;
        float *const state = states + (warp * 16 + row) * LINE;
        float sum = total[half];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        if (row < P::rows) {
#pragma unroll
            for (int j = 0; j < ON; ++j) {
                state[j * 8 + lane % 4 * 2] = out[j][half * 2];
                state[j * 8 + lane % 4 * 2 + 1] = out[j][half * 2 + 1];
            }
            if (lane % 4 == 0) state[P::D] = most[half], state[P::D + 1] = sum;
        }
    }
    __syncthreads();
    merge_warps(states, parts, batch, head, p);
}

}  // namespace flash_decode
