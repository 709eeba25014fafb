// needs: tensor
// depthwise.cuh: depthwise convolutions, channels-last.
//
// A thread has V channels of Q columns in each of R lines of results. It iterates over the lines of the input that they read; the elements of
// one are read together, once, and serve every result whose window they are in. Filters are [tap, channel], read as results are written.
// M filters read each channel of the input: result channel c reads channel c / M.
//
// W names the sizes of one call (kernels/cuda/conv/depthwise.py): channels of the result, size, out, kernel, stride, dilation, begin (padding
// before the input) of lines and columns, strides x and y of images, lines and columns, and sum, the accumulator type.
// `finish.value(row, column, sum)` is the epilogue of a sum; a row is an output pixel.
namespace depthwise {

template <class W, int D> INLINE bool in(int coord) {  // no bounds check for windows that are always inside the input
    constexpr bool below = W::begin[D] > 0;
    constexpr bool above = (W::out[D] - 1) * W::stride[D] - W::begin[D] + (W::kernel[D] - 1) * W::dilation[D] >= W::size[D];
    return (!below || coord >= 0) && (!above || coord < W::size[D]);
}

template <class S, int V, int R, int Q, class W, int M = 1, class Finish>
INLINE void run(const S *x, const S *filters, S *y, uint32_t e, const Finish &finish) {
    typedef typename W::sum A;
    constexpr int SHARE = (M & -M) < V ? (M & -M) : V;  // adjacent results that surely read one channel: gcd(M, V), V a power of two
    constexpr int L = V / SHARE;                        // channels that are loaded; adjacent ones if SHARE == M
    constexpr int ROWS = (R - 1) * W::stride[0] + (W::kernel[0] - 1) * W::dilation[0] + 1;
    constexpr int COLUMNS = (Q - 1) * W::stride[1] + (W::kernel[1] - 1) * W::dilation[1] + 1;
    constexpr int ACROSS = (W::out[1] + Q - 1) / Q, DOWN = (W::out[0] + R - 1) / R;
    const int c = (int)(e % (W::channels / V)) * V;
    e /= W::channels / V;
    const int column = (int)(e % ACROSS) * Q;
    e /= ACROSS;
    const int line = (int)(e % DOWN) * R, image = (int)(e / DOWN);
    const int h = line * W::stride[0] - W::begin[0], v = column * W::stride[1] - W::begin[1];
    x += image * W::x[0] + c / M, filters += c;

    A sums[R][Q][V];
#pragma unroll
    for (int r = 0; r < R; ++r)
#pragma unroll
        for (int q = 0; q < Q; ++q)
#pragma unroll
            for (int u = 0; u < V; ++u) sums[r][q][u] = 0;

#pragma unroll
    for (int a = 0; a < ROWS; ++a) {
        bool read = false;  // whether any result has a tap here
#pragma unroll
        for (int r = 0; r < R; ++r) {
            const int tap = a - r * W::stride[0];
            read = read || (tap >= 0 && tap % W::dilation[0] == 0 && tap / W::dilation[0] < W::kernel[0]);
        }
        if (!read) continue;
        const bool there = in<W, 0>(h + a);
        A values[COLUMNS][L];
#pragma unroll
        for (int b = 0; b < COLUMNS; ++b) {
            pack<S, L> p = {};
            if constexpr (SHARE == M) {
                if (there && in<W, 1>(v + b)) p = fetch<L>(x + ((h + a) * W::x[1] + (v + b) * W::x[2]), true);
            } else if (there && in<W, 1>(v + b)) {
#pragma unroll
                for (int i = 0; i < L; ++i)
                    p.at[i] = fetch<1>(x + ((h + a) * W::x[1] + (v + b) * W::x[2] + (c + i * SHARE) / M - c / M), true).at[0];
            }
            const auto wide = decoded(p);
#pragma unroll
            for (int i = 0; i < L; ++i) values[b][i] = (A)wide.at[i];
        }
#pragma unroll
        for (int r = 0; r < R; ++r) {
            const int tap = a - r * W::stride[0];
            if (tap < 0 || tap % W::dilation[0] || tap / W::dilation[0] >= W::kernel[0]) continue;
#pragma unroll
            for (int b = 0; b < W::kernel[1]; ++b) {
                const auto w = decoded(fetch<V>(filters + (tap / W::dilation[0] * W::kernel[1] + b) * W::channels, true));
#pragma unroll
                for (int q = 0; q < Q; ++q)
#pragma unroll
                    for (int u = 0; u < V; ++u)
                        sums[r][q][u] += values[q * W::stride[1] + b * W::dilation[1]][u / SHARE] * (A)w.at[u];
            }
        }
    }

#pragma unroll
    for (int r = 0; r < R; ++r)
#pragma unroll
        for (int q = 0; q < Q; ++q) {
            if (line + r >= W::out[0] || column + q >= W::out[1]) continue;
            const int row = (image * W::out[0] + line + r) * W::out[1] + column + q;
            unpacked<S, V> results;
#pragma unroll
            for (int u = 0; u < V; ++u) results.at[u] = finish.value(row, c + u, sums[r][q][u]);
            put<V>(y + (image * W::y[0] + (line + r) * W::y[1] + (column + q) * W::y[2] + c), encoded(results), true);
        }
}

}  // namespace depthwise
