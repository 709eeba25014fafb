// needs: tiles
// decode_rows.cuh: the inner step of flash_decode: a warp computes the logits of TILES_PER_STEP tiles of 16 keys and their weights, and accumulates
// the weighted values.
//
// With up to 16 rows the queries are the A operand of the mma. With up to 8 (NARROW) the keys and values are, and the rows are the B operand, so
// that no half of a product is wasted.
//
// Both: prefetch_mask loads the additive mask before griddep_wait if a warp has one step (MASK_IN_REGS); load_queries; step; store_state writes a
// warp's state to shared memory: for each row D sums, the row maximum, the row sum.
namespace flash_decode {

using tensor::u32;

// The base-2 logit of a row and a key.
template <class P>
__device__ __forceinline__ float logit_of(float x, int batch, int head, int row, int key, int end, const P &p) {
    if (key >= end || row >= P::rows || !p.visible(row, key)) return MASKED_SCORE;
    x *= P::scale();
    return P::MASKED ? p.logit(x, batch, head, row, key) : x;
}

template <class P, bool NARROW> struct RowState {
    typedef typename P::T T;
    static constexpr int CH = P::D / 8, ON = P::D / 8, HALVES = P::rows > 8 ? 2 : 1, LINE = P::D + 4;
    u32 q[P::D / 16][4];
    float out[ON][4], row_max[2], row_sum[2];

    static_assert(P::TILES_PER_STEP == 1, "");
    __device__ __forceinline__ void prefetch_mask(int key0, int end, int batch, int head, const P &p) {}
    __device__ __forceinline__ void load_queries(u32 tile) {
        const u32 q_addr = tiles::ldmatrix_rows_addr<CH>(tile, threadIdx.x % 32);
#pragma unroll
        for (int kk = 0; kk < P::D / 16; ++kk) tiles::load_a_16x16<CH>(q[kk], q_addr, 0, kk * 2);
#pragma unroll
        for (int j = 0; j < ON; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) out[j][e] = 0;
        row_max[0] = row_max[1] = MASKED_SCORE, row_sum[0] = row_sum[1] = 0;
    }

    __device__ __forceinline__ void step(u32 key_tile, u32 value_tile, int key0, int end, int batch, int head, const P &p) {
        const int lane = threadIdx.x % 32;
        const u32 keys = tiles::ldmatrix_columns_addr<CH>(key_tile, lane), values = tiles::ldmatrix_rows_addr<CH>(value_tile, lane);
        float s[2][4] = {};
#pragma unroll
        for (int kk = 0; kk < P::D / 16; ++kk) {
            u32 fk[4];
            tiles::load_b_16x16<CH>(fk, keys, 0, kk * 2);
            tensor::mma_m16n8k16<T>(s[0], q[kk], fk[0], fk[1]);
            tensor::mma_m16n8k16<T>(s[1], q[kk], fk[2], fk[3]);
        }
        u32 weights[2][2] = {};
#pragma unroll
        for (int half = 0; half < HALVES; ++half) {
            float new_max = row_max[half];
#pragma unroll
            for (int j = 0; j < 2; ++j)
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    float &x = s[j][half * 2 + e];
                    x = logit_of(x, batch, head, half * 8 + lane / 4, key0 + j * 8 + lane % 4 * 2 + e, end, p);
                    new_max = fmaxf(new_max, x);
                }
            new_max = fmaxf(new_max, __shfl_xor_sync(0xffffffffu, new_max, 1));
            new_max = fmaxf(new_max, __shfl_xor_sync(0xffffffffu, new_max, 2));
            const float shift = new_max == MASKED_SCORE ? 0 : new_max, rescale = tensor::exp2(row_max[half] - shift);
            row_max[half] = new_max;
            row_sum[half] *= rescale;
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const float a = tensor::exp2(s[j][half * 2] - shift), b = tensor::exp2(s[j][half * 2 + 1] - shift);
                row_sum[half] += a + b;
                weights[j][half] = T::pack(a, b);
            }
#pragma unroll
            for (int j = 0; j < ON; ++j) out[j][half * 2] *= rescale, out[j][half * 2 + 1] *= rescale;
        }
        const u32 fp[4] = {weights[0][0], weights[0][1], weights[1][0], weights[1][1]};
#pragma unroll
        for (int j = 0; j < ON / 2; ++j) {
            u32 fv[4];
            tiles::load_b_trans_16x16<CH>(fv, values, 0, j * 2);
            tensor::mma_m16n8k16<T>(out[2 * j], fp, fv[0], fv[1]);
            tensor::mma_m16n8k16<T>(out[2 * j + 1], fp, fv[2], fv[3]);
        }
    }

    __device__ __forceinline__ void store_state(float *states) const {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int half = 0; half < HALVES; ++half) {
            const int row = half * 8 + lane / 4;
            float *const state = states + row * LINE;
            float sum = row_sum[half];
            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            if (row >= P::rows) continue;
#pragma unroll
            for (int j = 0; j < ON; ++j) {
                state[j * 8 + lane % 4 * 2] = out[j][half * 2];
                state[j * 8 + lane % 4 * 2 + 1] = out[j][half * 2 + 1];
            }
            if (lane % 4 == 0) state[P::D] = row_max[half], state[P::D + 1] = sum;
        }
    }
};

template <class P> struct RowState<P, true> {
    typedef typename P::T T;
    static constexpr int CH = P::D / 8, ON = P::D / 16, LINE = P::D + 4;
    static constexpr bool ONE_STEP = P::KEYS_PER_SPLIT <= P::WARPS * P::TILES_PER_STEP * 16;  // a warp has one step
    static constexpr bool MASK_IN_REGS = ONE_STEP && P::ADDITIVE_MASK;
    u32 q[P::D / 32][4];
    float out[ON][4], row_max[2], row_sum[2], mask_bias[P::TILES_PER_STEP][4];

    // Row 2 * (lane % 4) + e belongs to a lane, and keys or values lane / 4 and 8 mask_bias.
    __device__ __forceinline__ static float logit(float x, int tile, int e, int key0, int end, int batch, int head, const P &p) {
        const int lane = threadIdx.x % 32;
        return logit_of(x, batch, head, lane % 4 * 2 + e % 2, key0 + tile * 16 + e / 2 * 8 + lane / 4, end, p);
    }
    __device__ __forceinline__ void prefetch_mask(int key0, int end, int batch, int head, const P &p) {
        if (!MASK_IN_REGS) return;
#pragma unroll
        for (int a = 0; a < P::TILES_PER_STEP; ++a)
#pragma unroll
            for (int e = 0; e < 4; ++e) mask_bias[a][e] = logit(0, a, e, key0, end, batch, head, p);
    }
    __device__ __forceinline__ void load_queries(u32 tile) {
        const int lane = threadIdx.x % 32;
        const u32 q_addr = tile + tiles::swizzle<CH>(lane % 8, lane / 8) * 16;
#pragma unroll
        for (int i = 0; i < P::D / 32; ++i) tensor::ldmatrix_x4(q[i], tiles::tile_addr<CH>(q_addr, 0, i * 4));
#pragma unroll
        for (int j = 0; j < ON; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) out[j][e] = 0;
        row_max[0] = row_max[1] = MASKED_SCORE, row_sum[0] = row_sum[1] = 0;
    }

    __device__ __forceinline__ void step(u32 key_tile, u32 value_tile, int key0, int end, int batch, int head, const P &p) {
        const int lane = threadIdx.x % 32;
        const u32 keys = tiles::ldmatrix_rows_addr<CH>(key_tile, lane), values = tiles::ldmatrix_columns_addr<CH>(value_tile, lane);
        float s[P::TILES_PER_STEP][2][4] = {};
#pragma unroll
        for (int kk = 0; kk < P::D / 16; ++kk)
#pragma unroll
            for (int a = 0; a < P::TILES_PER_STEP; ++a) {
                u32 fk[4];
                tiles::load_a_16x16<CH>(fk, keys, a * 16, kk * 2);
                tensor::mma_m16n8k16<T>(s[a][kk % 2], fk, q[kk / 2][kk % 2 * 2], q[kk / 2][kk % 2 * 2 + 1]);
            }
        float new_max[2] = {row_max[0], row_max[1]};
#pragma unroll
        for (int a = 0; a < P::TILES_PER_STEP; ++a)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                float &x = s[a][0][e];
                x += s[a][1][e];
                if (MASK_IN_REGS) x = mask_bias[a][e] == MASKED_SCORE ? MASKED_SCORE : x * P::scale() + mask_bias[a][e];
                else x = logit(x, a, e, key0, end, batch, head, p);
                new_max[e % 2] = fmaxf(new_max[e % 2], x);
            }
#pragma unroll
        for (int offset = 4; offset < 32; offset *= 2)
#pragma unroll
            for (int r = 0; r < 2; ++r) new_max[r] = fmaxf(new_max[r], __shfl_xor_sync(0xffffffffu, new_max[r], offset));
        float shift[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            shift[r] = new_max[r] == MASKED_SCORE ? 0 : new_max[r];
            if (!ONE_STEP) {
                const float rescale = tensor::exp2(row_max[r] - shift[r]);
                row_sum[r] *= rescale;
#pragma unroll
                for (int j = 0; j < ON; ++j) out[j][r] *= rescale, out[j][2 + r] *= rescale;
            }
            row_max[r] = new_max[r];
        }
        u32 low[P::TILES_PER_STEP], high[P::TILES_PER_STEP];
#pragma unroll
        for (int a = 0; a < P::TILES_PER_STEP; ++a) {
            float weight[4];
#pragma unroll
            for (int e = 0; e < 4; ++e) row_sum[e % 2] += weight[e] = tensor::exp2(s[a][0][e] - shift[e % 2]);
            low[a] = tensor::movmatrix_trans(T::pack(weight[0], weight[1])), high[a] = tensor::movmatrix_trans(T::pack(weight[2], weight[3]));
        }
#pragma unroll
        for (int j = 0; j < ON; ++j)
#pragma unroll
            for (int a = 0; a < P::TILES_PER_STEP; ++a) {
                u32 fv[4];
                tiles::load_b_trans_16x16<CH>(fv, values, a * 16, j * 2);
                tensor::mma_m16n8k16<T>(out[j], fv, low[a], high[a]);
            }
    }

    __device__ __forceinline__ void store_state(float *states) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int row = lane % 4 * 2 + r;
            float *const state = states + row * LINE;
#pragma unroll
            for (int offset = 4; offset < 32; offset *= 2) row_sum[r] += __shfl_xor_sync(0xffffffffu, row_sum[r], offset);
            if (row >= P::rows) continue;
#pragma unroll
            for (int j = 0; j < ON; ++j) state[j * 16 + lane / 4] = out[j][r], state[j * 16 + 8 + lane / 4] = out[j][2 + r];
            if (lane / 4 == 0) state[P::D] = row_max[r], state[P::D + 1] = row_sum[r];
        }
    }
};

}  // namespace flash_decode
