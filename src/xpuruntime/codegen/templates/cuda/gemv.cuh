// needs: tensor
// gemv.cuh: few rows times a weight [n, k]: the time is that of reading the weight, once, 16 bytes a thread, many loads under way.
//
// A struct P says all: S (bf16, f16, float), n, k, m (rows of x, up to 8), x_row and w_row (elements between rows), COLUMNS (rows
// of the weight, which are columns of y, of a warp), SPLIT (warps that share a row), GROUPS (times SPLIT: warps of a block), AHEAD
// (steps whose loads are issued before the first is used), ALIGNED. `finish.keep(row, column, sum)` writes a result.
namespace gemv {

using tensor::Quad;
using tensor::u32;

// What 16 bytes hold, as floats.
template <class S> struct Chunk;
template <> struct Chunk<float> {
    static constexpr int size = 4;
    static __device__ __forceinline__ void open(float (&x)[4], const Quad &q) {
#pragma unroll
        for (int i = 0; i < 4; ++i) x[i] = __uint_as_float(q.x[i]);
    }
};
template <class T> struct Halves {
    static constexpr int size = 8;
    static __device__ __forceinline__ void open(float (&x)[8], const Quad &q) {
#pragma unroll
        for (int i = 0; i < 4; ++i) x[2 * i] = T::low(q.x[i]), x[2 * i + 1] = T::high(q.x[i]);
    }
};
template <> struct Chunk<bf16> : Halves<tensor::Bf16> {};
template <> struct Chunk<f16> : Halves<tensor::F16> {};

// Elements `at` on of a row of k; zeros past its end.
template <bool ALIGNED, bool ONCE, class S>
__device__ __forceinline__ Quad read(const S *row, int at, int k) {
    if (ALIGNED && at < k) return ONCE ? tensor::stream16(row + at) : tensor::load16(row + at);
    Quad q = {{0, 0, 0, 0}};
    if (ALIGNED) return q;
    constexpr int size = Chunk<S>::size, per = size / 4;
#pragma unroll
    for (int i = 0; i < size; ++i)
        if (at + i < k) q.x[i / per] |= (u32)((const uints<S> *)row)[at + i] << (i % per * 16);
    return q;
}

template <class P, class Finish>
__device__ __forceinline__ void run(const typename P::S *x, const typename P::S *w, const Finish &finish) {
    typedef typename P::S S;
    constexpr int E = Chunk<S>::size, STEP = P::SPLIT * 32 * E, C = P::COLUMNS;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, part = warp % P::SPLIT;
    const int column0 = (blockIdx.x * P::GROUPS + warp / P::SPLIT) * C;
    const S *rows[C];
#pragma unroll
    for (int c = 0; c < C; ++c) rows[c] = w + (long long)(column0 + c < P::n ? column0 + c : 0) * P::w_row;

    float sums[C][P::m];
#pragma unroll
    for (int c = 0; c < C; ++c)
#pragma unroll
        for (int r = 0; r < P::m; ++r) sums[c][r] = 0;

    for (int at0 = (part * 32 + lane) * E; at0 < P::k; at0 += P::AHEAD * STEP) {
        Quad loaded[P::AHEAD][C];
#pragma unroll
        for (int s = 0; s < P::AHEAD; ++s)
#pragma unroll
            for (int c = 0; c < C; ++c) loaded[s][c] = read<P::ALIGNED, true>(rows[c], at0 + s * STEP, P::k);
#pragma unroll
        for (int s = 0; s < P::AHEAD; ++s)
#pragma unroll
            for (int r = 0; r < P::m; ++r) {
                float a[E];
                Chunk<S>::open(a, read<P::ALIGNED, false>(x + (long long)r * P::x_row, at0 + s * STEP, P::k));
#pragma unroll
                for (int c = 0; c < C; ++c) {
                    float b[E];
                    Chunk<S>::open(b, loaded[s][c]);
#pragma unroll
                    for (int e = 0; e < E; ++e) sums[c][r] += a[e] * b[e];
                }
            }
    }

#pragma unroll
    for (int c = 0; c < C; ++c)
#pragma unroll
        for (int r = 0; r < P::m; ++r)
#pragma unroll
            for (int far = 16; far > 0; far /= 2) sums[c][r] += __shfl_xor_sync(0xffffffffu, sums[c][r], far);

    if (P::SPLIT > 1) {
        __shared__ float parts[P::GROUPS * P::SPLIT][C * P::m];
        if (lane == 0)
#pragma unroll
            for (int c = 0; c < C; ++c)
#pragma unroll
                for (int r = 0; r < P::m; ++r) parts[warp][c * P::m + r] = sums[c][r];
        __syncthreads();
        for (int i = threadIdx.x; i < P::GROUPS * C * P::m; i += P::GROUPS * P::SPLIT * 32) {
            const int group = i / (C * P::m), c = i / P::m % C, r = i % P::m;
            float sum = 0;
#pragma unroll
            for (int s = 0; s < P::SPLIT; ++s) sum += parts[group * P::SPLIT + s][c * P::m + r];
            const int column = (blockIdx.x * P::GROUPS + group) * C + c;
            if (column < P::n) finish.keep(r, column, sum);
        }
    } else {
#pragma unroll
        for (int c = 0; c < C; ++c)
#pragma unroll
            for (int r = 0; r < P::m; ++r)
                if (lane == c * P::m + r && column0 + c < P::n) finish.keep(r, column0 + c, sums[c][r]);
    }
}

}  // namespace gemv
