// needs: tiles
// decode_rows.cuh: what a warp does with PER tiles of 16 keys and their values: logits of all rows, their weights, and sums of weighted values.
//
// The queries are the left side of a product where there are up to 16 rows. Where there are up to 8 (NARROW), keys and values are: their 16
// fill the left side, the rows fill the right one, and no half of a product is thrown away.
//
// Both: look(first key, end of the keys) reads, before the launch's turn, what is added to logits, where a warp has one step and it can (HELD);
// begin(place of the queries' tile), step(tile of the keys, of the values, first key, end of the keys), leave(the warp's states in
// shared memory: for each row D sums, the largest logit, the sum of weights).
namespace flash_decode {

using tensor::u32;

// A row's logit of a key, to base 2.
template <class P>
__device__ __forceinline__ float logit_of(float x, int batch, int head, int row, int key, int end, const P &p) {
    if (key >= end || row >= P::rows || !p.sees(row, key)) return TENSOR_HIDDEN;
    x *= P::scale();
    return P::MASKED ? p.logit(x, batch, head, row, key) : x;
}

template <class P, bool NARROW> struct Rows {
    typedef typename P::T T;
    static constexpr int CH = P::D / 8, ON = P::D / 8, HALVES = P::rows > 8 ? 2 : 1, LINE = P::D + 4;
    u32 q[P::D / 16][4];
    float out[ON][4], most[2], total[2];

    static_assert(P::PER == 1, "");
    __device__ __forceinline__ void look(int key0, int end, int batch, int head, const P &p) {}
    __device__ __forceinline__ void begin(u32 tile) {
        const u32 place = tiles::rows_place<CH>(tile, threadIdx.x % 32);
#pragma unroll
        for (int kk = 0; kk < P::D / 16; ++kk) tiles::rows16<CH>(q[kk], place, 0, kk * 2);
#pragma unroll
        for (int j = 0; j < ON; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) out[j][e] = 0;
        most[0] = most[1] = TENSOR_HIDDEN, total[0] = total[1] = 0;
    }

    __device__ __forceinline__ void step(u32 key_tile, u32 value_tile, int key0, int end, int batch, int head, const P &p) {
        const int lane = threadIdx.x % 32;
        const u32 keys = tiles::columns_place<CH>(key_tile, lane), values = tiles::rows_place<CH>(value_tile, lane);
        float s[2][4] = {};
#pragma unroll
        for (int kk = 0; kk < P::D / 16; ++kk) {
            u32 fk[4];
            tiles::columns16<CH>(fk, keys, 0, kk * 2);
            tensor::multiply<T>(s[0], q[kk], fk[0], fk[1]);
            tensor::multiply<T>(s[1], q[kk], fk[2], fk[3]);
        }
        u32 weights[2][2] = {};
#pragma unroll
        for (int half = 0; half < HALVES; ++half) {
            float peak = most[half];
#pragma unroll
            for (int j = 0; j < 2; ++j)
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    float &x = s[j][half * 2 + e];
                    x = logit_of(x, batch, head, half * 8 + lane / 4, key0 + j * 8 + lane % 4 * 2 + e, end, p);
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

    __device__ __forceinline__ void leave(float *states) const {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int half = 0; half < HALVES; ++half) {
            const int row = half * 8 + lane / 4;
            float *const state = states + row * LINE;
            float sum = total[half];
            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            if (row >= P::rows) continue;
#pragma unroll
            for (int j = 0; j < ON; ++j) {
                state[j * 8 + lane % 4 * 2] = out[j][half * 2];
                state[j * 8 + lane % 4 * 2 + 1] = out[j][half * 2 + 1];
            }
            if (lane % 4 == 0) state[P::D] = most[half], state[P::D + 1] = sum;
        }
    }
};

template <class P> struct Rows<P, true> {
    typedef typename P::T T;
    static constexpr int CH = P::D / 8, ON = P::D / 16, LINE = P::D + 4;
    static constexpr bool ONCE = P::SHARE <= P::WARPS * P::PER * 16;  // a warp has one step
    static constexpr bool HELD = ONCE && P::ADDS;
    u32 q[P::D / 32][4];
    float out[ON][4], most[2], total[2], more[P::PER][4];

    // Row 2 * (lane % 4) + e belongs to a lane, and keys or values lane / 4 and 8 more.
    __device__ __forceinline__ static float logit(float x, int tile, int e, int key0, int end, int batch, int head, const P &p) {
        const int lane = threadIdx.x % 32;
        return logit_of(x, batch, head, lane % 4 * 2 + e % 2, key0 + tile * 16 + e / 2 * 8 + lane / 4, end, p);
    }
    __device__ __forceinline__ void look(int key0, int end, int batch, int head, const P &p) {
        if (!HELD) return;
#pragma unroll
        for (int a = 0; a < P::PER; ++a)
#pragma unroll
            for (int e = 0; e < 4; ++e) more[a][e] = logit(0, a, e, key0, end, batch, head, p);
    }
    __device__ __forceinline__ void begin(u32 tile) {
        const int lane = threadIdx.x % 32;
        const u32 place = tile + tiles::swizzled<CH>(lane % 8, lane / 8) * 16;
#pragma unroll
        for (int i = 0; i < P::D / 32; ++i) tensor::load_matrices(q[i], tiles::moved<CH>(place, 0, i * 4));
#pragma unroll
        for (int j = 0; j < ON; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) out[j][e] = 0;
        most[0] = most[1] = TENSOR_HIDDEN, total[0] = total[1] = 0;
    }

    __device__ __forceinline__ void step(u32 key_tile, u32 value_tile, int key0, int end, int batch, int head, const P &p) {
        const int lane = threadIdx.x % 32;
        const u32 keys = tiles::rows_place<CH>(key_tile, lane), values = tiles::columns_place<CH>(value_tile, lane);
        float s[P::PER][2][4] = {};
#pragma unroll
        for (int kk = 0; kk < P::D / 16; ++kk)
#pragma unroll
            for (int a = 0; a < P::PER; ++a) {
                u32 fk[4];
                tiles::rows16<CH>(fk, keys, a * 16, kk * 2);
                tensor::multiply<T>(s[a][kk % 2], fk, q[kk / 2][kk % 2 * 2], q[kk / 2][kk % 2 * 2 + 1]);
            }
        float peak[2] = {most[0], most[1]};
#pragma unroll
        for (int a = 0; a < P::PER; ++a)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                float &x = s[a][0][e];
                x += s[a][1][e];
                if (HELD) x = more[a][e] == TENSOR_HIDDEN ? TENSOR_HIDDEN : x * P::scale() + more[a][e];
                else x = logit(x, a, e, key0, end, batch, head, p);
                peak[e % 2] = fmaxf(peak[e % 2], x);
            }
#pragma unroll
        for (int far = 4; far < 32; far *= 2)
#pragma unroll
            for (int r = 0; r < 2; ++r) peak[r] = fmaxf(peak[r], __shfl_xor_sync(0xffffffffu, peak[r], far));
        float level[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            level[r] = peak[r] == TENSOR_HIDDEN ? 0 : peak[r];
            if (!ONCE) {
                const float shrink = tensor::exp2(most[r] - level[r]);
                total[r] *= shrink;
#pragma unroll
                for (int j = 0; j < ON; ++j) out[j][r] *= shrink, out[j][2 + r] *= shrink;
            }
            most[r] = peak[r];
        }
        u32 low[P::PER], high[P::PER];
#pragma unroll
        for (int a = 0; a < P::PER; ++a) {
            float weight[4];
#pragma unroll
            for (int e = 0; e < 4; ++e) total[e % 2] += weight[e] = tensor::exp2(s[a][0][e] - level[e % 2]);
            low[a] = tensor::turned(T::pack(weight[0], weight[1])), high[a] = tensor::turned(T::pack(weight[2], weight[3]));
        }
#pragma unroll
        for (int j = 0; j < ON; ++j)
#pragma unroll
            for (int a = 0; a < P::PER; ++a) {
                u32 fv[4];
                tiles::across16<CH>(fv, values, a * 16, j * 2);
                tensor::multiply<T>(out[j], fv, low[a], high[a]);
            }
    }

    __device__ __forceinline__ void leave(float *states) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int row = lane % 4 * 2 + r;
            float *const state = states + row * LINE;
#pragma unroll
            for (int far = 4; far < 32; far *= 2) total[r] += __shfl_xor_sync(0xffffffffu, total[r], far);
            if (row >= P::rows) continue;
#pragma unroll
            for (int j = 0; j < ON; ++j) state[j * 16 + lane / 4] = out[j][r], state[j * 16 + 8 + lane / 4] = out[j][2 + r];
            if (lane / 4 == 0) state[P::D] = most[r], state[P::D + 1] = total[r];
        }
    }
};

}  // namespace flash_decode
