// needs: conv_shape conv_act
// conv_depthwise: every channel convolved on its own, `multiplier` filters each; vectors run over channels. It reads about as much as
// it computes, so inputs come straight from memory: PX pixels share a load of the filters, padding is clipped and never read. Two ways: `run_rows`
// where a row of the kernel is known when it is compiled and channels are contiguous, `run` for everything else.

namespace depthwise {

using conv::Shape;

struct Tasks { int64_t rows, channels, blocks; };  // rows and channels of a task, blocks of channels

// The taps of dim d that are inside the input at output index o.
struct Taps { int64_t from, to; };
INLINE Taps taps(const Shape &s, int d, int64_t o) {
    const int64_t start = o * s.stride[d] - s.begin[d], step = s.dilation[d];
    const int64_t from = start < 0 ? (step - 1 - start) / step : 0, to = start < s.in[d] ? (s.in[d] - 1 - start) / step + 1 : 0;
    return {from, to < s.kernel[d] ? to : s.kernel[d]};
}

// PX pixels of a row from `ow` on x CV x L channels from c on, for filter j of each channel. All pixels have the same taps `r`.
template <class S, class A, int L, int CV, int PX>
INLINE void pixels(const Shape &s, const S *x, const typename storage_<S>::compute *filters, const S *bias, const S *residual, S *y,
                   const Taps (&r)[3], const int64_t (&o)[3], int64_t c, int64_t j) {
    typedef typename storage_<S>::compute T;
    typedef vec<T, L> V;
    const int64_t across = s.groups, m = s.filters, step = s.stride[2] * s.x[4];
    V acc[PX][CV];
#pragma GCC unroll 4
    for (int v = 0; v < CV; v++) {
        const V start = bias ? (m == 1 ? ::load<L>(bias + c + v * L) : ::gather<L>(bias + (c + v * L) * m + j, m)) : splat<V>(0);
#pragma GCC unroll 8
        for (int p = 0; p < PX; p++) acc[p][v] = start;
    }
    x += c * s.x[1] + (o[2] * s.stride[2] - s.begin[2]) * s.x[4];
    for (int64_t z = r[0].from; z < r[0].to; z++)
        for (int64_t h = r[1].from; h < r[1].to; h++) {
            const S *row = x + (o[0] * s.stride[0] - s.begin[0] + z * s.dilation[0]) * s.x[2] +
                           (o[1] * s.stride[1] - s.begin[1] + h * s.dilation[1]) * s.x[3];
            const T *line = filters + (((j * s.kernel[0] + z) * s.kernel[1] + h) * s.kernel[2]) * across + c;
            for (int64_t w = r[2].from; w < r[2].to; w++) {
                const S *p = row + w * s.dilation[2] * s.x[4];
#pragma GCC unroll 4
                for (int v = 0; v < CV; v++) {
                    const V f = ::load<L>(line + w * across + v * L);
#pragma GCC unroll 8
                    for (int i = 0; i < PX; i++) acc[i][v] += ::load<L>(p + i * step + v * L) * f;
                }
            }
        }
#pragma GCC unroll 8
    for (int i = 0; i < PX; i++)
#pragma GCC unroll 4
        for (int v = 0; v < CV; v++) {
            const int64_t channel = (c + v * L) * m + j, w = o[2] + i;
            V sum = acc[i][v];
            if (residual) {
                const S *add = residual + channel * s.r[1] + o[0] * s.r[2] + o[1] * s.r[3] + w * s.r[4];
                sum += s.r[1] * m == 1 ? ::load<L>(add) : ::gather<L>(add, s.r[1] * m);
            }
            S *to = y + channel * s.y[1] + o[0] * s.y[2] + o[1] * s.y[3] + w * s.y[4];
            if (s.y[1] * m == 1) ::store<L>(to, A::of(sum));
            else ::scatter<L>(to, s.y[1] * m, A::of(sum));
        }
}

// L: lanes where the input's channels are contiguous, else 1.
template <class S, class A, int L, int PX>
INLINE void columns(const Shape &s, const S *x, const typename storage_<S>::compute *filters, const S *bias, const S *residual, S *y,
                    const Taps (&r)[3], const int64_t (&o)[3], int64_t c0, int64_t c1) {
    for (int64_t j = 0; j < s.filters; j++) {
        int64_t c = c0;
        if constexpr (L > 1) {
            for (; c + 2 * L <= c1; c += 2 * L) pixels<S, A, L, 2, PX>(s, x, filters, bias, residual, y, r, o, c, j);
            for (; c + L <= c1; c += L) pixels<S, A, L, 1, PX>(s, x, filters, bias, residual, y, r, o, c, j);
        }
        for (; c < c1; c++) pixels<S, A, 1, 1, PX>(s, x, filters, bias, residual, y, r, o, c, j);
    }
}

template <class S, class A, int L>
static __attribute__((noinline)) void run(const Shape &s, const Tasks &g, const S *x, const void *weights, const S *bias,
                                          const S *residual, S *y, int64_t begin, int64_t end) {
    constexpr int PX = 4;
    const auto *filters = (const typename storage_<S>::compute *)weights;
    const int64_t rows = s.images * s.out[0] * s.out[1], span = (s.kernel[2] - 1) * s.dilation[2];
    // Output columns from `inner` to `outer` of a row have every tap inside the input.
    const int64_t inner = s.begin[2] > 0 ? (s.begin[2] + s.stride[2] - 1) / s.stride[2] : 0;
    const int64_t last_start = s.in[2] - 1 - span + s.begin[2], outer = last_start < 0 ? 0 : last_start / s.stride[2] + 1;
    for (int64_t task = begin; task < end; task++) {
        const int64_t c0 = task % g.blocks * g.channels, c1 = c0 + g.channels < s.groups ? c0 + g.channels : s.groups;
        const int64_t first = task / g.blocks * g.rows, last = first + g.rows < rows ? first + g.rows : rows;
        for (int64_t row = first; row < last; row++) {
            const int64_t image = row / s.out[1] / s.out[0];
            int64_t o[3] = {row / s.out[1] % s.out[0], row % s.out[1], 0};
            const S *from = x + image * s.x[0], *add = residual ? residual + image * s.r[0] : nullptr;
            S *to = y + image * s.y[0];
            Taps r[3] = {taps(s, 0, o[0]), taps(s, 1, o[1])};
            while (o[2] < s.out[2]) {
                if (o[2] >= inner && o[2] + PX <= outer && o[2] + PX <= s.out[2]) {
                    r[2] = {0, s.kernel[2]};
                    columns<S, A, L, PX>(s, from, filters, bias, add, to, r, o, c0, c1);
                    o[2] += PX;
                } else {
                    r[2] = taps(s, 2, o[2]);
                    columns<S, A, L, 1>(s, from, filters, bias, add, to, r, o, c0, c1);
                    o[2]++;
                }
            }
        }
    }
}

// ── planes, and rows of the kernel that are known ──

// Variant for a block of pixels: with all its columns inside the input or not, with all channels of its vectors or the first of them.
enum Edge { INSIDE, AT_EDGE };
enum Channels { ALL, FIRST };
template <int L, Channels C, class S> INLINE auto load(const S *p, int64_t n) {
    if constexpr (C == FIRST) return ::load<L>(p, n);
    else return ::load<L>(p);
}

// PX pixels of a row: pointers to their inputs, residuals and results for channel 0.
template <class S> struct Block {
    const S *x;  // the first tap's row and column; it may be outside the input
    Taps rows;   // rows of the kernel that are inside
    const typename storage_<S>::compute *filters;
    const S *bias, *residual;
    S *y;
    int64_t from, end, count;  // of the columns those inside the input; of the pixels those of the result
};

// Sums of a block: they begin with the bias. The end adds the residual, applies the activation and stores.
template <class S, int L, int CV, int PX, Channels C, class V>
INLINE void start(const Block<S> &b, int64_t c, int64_t n, V (&acc)[PX][CV]) {
#pragma GCC unroll 4
    for (int v = 0; v < CV; v++) {
        const V start = b.bias ? load<L, C>(b.bias + c + v * L, n) : splat<V>(0);
#pragma GCC unroll 8
        for (int p = 0; p < PX; p++) acc[p][v] = start;
    }
}
template <class S, class A, int L, int CV, int PX, Edge E, Channels C, class V>
INLINE void finish(const Shape &s, const Block<S> &b, int64_t c, int64_t n, const V (&acc)[PX][CV]) {
#pragma GCC unroll 8
    for (int p = 0; p < PX; p++) {
        if (E == AT_EDGE && p >= b.count) break;
#pragma GCC unroll 4
        for (int v = 0; v < CV; v++) {
            V sum = acc[p][v];
            if (b.residual) sum += load<L, C>(b.residual + p * s.r[4] + c + v * L, n);
            S *to = b.y + p * s.y[4] + c + v * L;
            if constexpr (C == FIRST) ::store<L>(to, A::of(sum), n);
            else ::store<L>(to, A::of(sum));
        }
    }
}

// CV x L channels from c on (n of them where there are fewer), for KW taps a row, SW columns from pixel to pixel. Columns that are padding
// count as zeros.
template <class S, class A, int L, int CV, int PX, int KW, int SW, Edge E, Channels C>
INLINE void block(const Shape &s, const Block<S> b, int64_t c, int64_t n) {
    typedef typename storage_<S>::compute T;
    typedef vec<T, L> V;
    constexpr int COLUMNS = (PX - 1) * SW + KW;
    constexpr bool RELOAD = E == INSIDE && same<S, T>;  // an operand that needs no conversion is reloaded for each tap instead of kept in registers
    static const S zeros[CV * L] = {};
    V acc[PX][CV];
    start<S, L, CV, PX, C>(b, c, n, acc);
    const S *row = b.x + b.rows.from * s.dilation[1] * s.x[3] + c;
    const T *line = b.filters + b.rows.from * KW * s.groups + c;
    for (int64_t h = b.rows.from; h < b.rows.to; h++, row += s.dilation[1] * s.x[3], line += KW * s.groups) {
        const S *at[COLUMNS];
#pragma GCC unroll 32
        for (int k = 0; k < COLUMNS; k++)
            at[k] = E == AT_EDGE && (k < b.from || k >= b.end) ? zeros : row + k * s.x[4];  // select, no branch: it would be mispredicted
#pragma GCC unroll 4
        for (int v = 0; v < CV; v++) {
            const auto column = [&](int k) { return load<L, C>(at[k] + v * L, n); };
            V read[COLUMNS];
            if constexpr (!RELOAD) {
#pragma GCC unroll 32
                for (int k = 0; k < COLUMNS; k++) read[k] = column(k);
            }
#pragma GCC unroll 8
            for (int w = 0; w < KW; w++) {
                const V f = load<L, C>(line + w * s.groups + v * L, n);
#pragma GCC unroll 8
                for (int p = 0; p < PX; p++) acc[p][v] += (RELOAD ? column(p * SW + w) : read[p * SW + w]) * f;
            }
        }
    }
    finish<S, A, L, CV, PX, E, C>(s, b, c, n, acc);
}

#if defined(__AVX512BF16__)
// Pairs of two rows of bfloat16, a channel in each lane of 32 bits: CV x 16 channels of a column.
template <int CV, Channels C, bool BOTH> INLINE void pair_rows(const bf16 *p, const bf16 *q, int64_t n, vec<uint32_t, 16> (&pair)[CV]) {
    typedef vec<uint32_t, 16> P;
    const auto *x = (const uint16_t *)p, *y = (const uint16_t *)q;
    if constexpr (BOTH && CV == 2) {
        const auto a = ::load<32>(x), b = ::load<32>(y);
        pair[0] = bitcast<P>(__builtin_shufflevector(a, b, 0, 32, 1, 33, 2, 34, 3, 35, 4, 36, 5, 37, 6, 38, 7, 39, 8, 40, 9, 41, 10, 42, 11, 43,
                                                     12, 44, 13, 45, 14, 46, 15, 47));
        pair[1] = bitcast<P>(__builtin_shufflevector(a, b, 16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55, 24, 56, 25, 57, 26,
                                                     58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63));
    } else {
#pragma GCC unroll 4
        for (int v = 0; v < CV; v++) {
            pair[v] = raw<uint32_t>(load<16, C>(x + v * 16, n));
            if constexpr (BOTH) pair[v] |= raw<uint32_t>(load<16, C>(y + v * 16, n)) << 16;
        }
    }
}

// The taps of rows h and h + 1 of the kernel, or of row h alone, by vdpbf16ps: filters are packed as [pair of rows, column, channel, 2].
// Rows and columns that are padding count as zeros.
template <int CV, int PX, int KW, int SW, Edge E, Channels C, bool BOTH>
INLINE void add_pairs(const Shape &s, const Block<bf16> &b, int64_t c, int64_t n, int64_t h, vec<float, 16> (&acc)[PX][CV]) {
    constexpr int COLUMNS = (PX - 1) * SW + KW;
    static const bf16 zeros[CV * 16] = {};
    const bool first = h >= b.rows.from, second = h + 1 < b.rows.to;
    const bf16 *p = b.x + h * s.dilation[1] * s.x[3] + c, *q = second ? p + s.dilation[1] * s.x[3] : zeros;
    const int64_t q_step = second ? s.x[4] : 0, p_step = first ? s.x[4] : 0;
    if (!first) p = zeros;
    const auto *line = (const uint32_t *)b.filters + h / 2 * KW * s.groups + c;
    vec<uint32_t, 16> f[KW][CV];
#pragma GCC unroll 8
    for (int w = 0; w < KW; w++)
#pragma GCC unroll 4
        for (int v = 0; v < CV; v++) f[w][v] = load<16, C>(line + w * s.groups + v * 16, n);
#pragma GCC unroll 32
    for (int k = 0; k < COLUMNS; k++, p += p_step, q += q_step) {
        const bool outside = E == AT_EDGE && (k < b.from || k >= b.end);
        vec<uint32_t, 16> pair[CV];
        pair_rows<CV, C, BOTH>(outside ? zeros : p, outside ? zeros : q, n, pair);
#pragma GCC unroll 8
        for (int w = 0; w < KW; w++) {
            if ((k - w) % SW || k < w || (k - w) / SW >= PX) continue;
#pragma GCC unroll 4
            for (int v = 0; v < CV; v++) __asm__("vdpbf16ps %2, %1, %0" : "+v"(acc[(k - w) / SW][v]) : "v"(pair[v]), "v"(f[w][v]));
        }
    }
}
template <class A, int CV, int PX, int KW, int SW, Edge E, Channels C>
INLINE void block_of_pairs(const Shape &s, const Block<bf16> &b, int64_t c, int64_t n) {
    vec<float, 16> acc[PX][CV];
    start<bf16, 16, CV, PX, C>(b, c, n, acc);
    int64_t h = b.rows.from / 2 * 2;
    for (; h < b.rows.to && h + 1 < s.kernel[1]; h += 2) add_pairs<CV, PX, KW, SW, E, C, true>(s, b, c, n, h, acc);
    if (h < b.rows.to) add_pairs<CV, PX, KW, SW, E, C, false>(s, b, c, n, h, acc);
    finish<bf16, A, 16, CV, PX, E, C>(s, b, c, n, acc);
}
#endif

// Ways of a block: a product for each tap, or for each pair of rows.
struct ByTap {
    template <class S, class A, int L, int CV, int PX, int KW, int SW, Edge E, Channels C>
    static INLINE_MEMBER void run(const Shape &s, const Block<S> &b, int64_t c, int64_t n) { block<S, A, L, CV, PX, KW, SW, E, C>(s, b, c, n); }
};
#if defined(__AVX512BF16__)
struct ByPairs {
    template <class S, class A, int L, int CV, int PX, int KW, int SW, Edge E, Channels C>
    static INLINE_MEMBER void run(const Shape &s, const Block<S> &b, int64_t c, int64_t n) { block_of_pairs<A, CV, PX, KW, SW, E, C>(s, b, c, n); }
};
#endif

template <class Way, class S, class A, int L, int CV, int PX, int KW, int SW, Edge E>
INLINE void blocks(const Shape &s, const Block<S> b, int64_t c, int64_t end) {
    for (; c + CV * L <= end; c += CV * L) Way::template run<S, A, L, CV, PX, KW, SW, E, ALL>(s, b, c, L);
    if constexpr (CV > 1)
        for (; c + L <= end; c += L) Way::template run<S, A, L, 1, PX, KW, SW, E, ALL>(s, b, c, L);
    if (c < end) Way::template run<S, A, L, 1, PX, KW, SW, E, FIRST>(s, b, c, end - c);
}

// One filter a channel; the channels of input, result and residual are contiguous.
template <class S, class A, int L, int CV, int PX, int KW, int SW, class Way = ByTap>
static __attribute__((noinline)) void run_rows(const Shape &s, const Tasks &g, const S *x, const void *weights, const S *bias,
                                               const S *residual, S *y, int64_t begin, int64_t end) {
    const int64_t rows = s.images * s.out[1];
    for (int64_t task = begin; task < end; task++) {
        const int64_t c0 = task % g.blocks * g.channels, c1 = c0 + g.channels < s.groups ? c0 + g.channels : s.groups;
        const int64_t first = task / g.blocks * g.rows, last = first + g.rows < rows ? first + g.rows : rows;
        for (int64_t at = first; at < last; at++) {
            const int64_t image = at / s.out[1], h = at % s.out[1];
            Block<S> b = {nullptr, taps(s, 1, h), (const typename storage_<S>::compute *)weights, bias};
            const S *row = x + image * s.x[0] + (h * s.stride[1] - s.begin[1]) * s.x[3];
            for (int64_t w = 0; w < s.out[2]; w += PX) {
                const int64_t column = w * SW - s.begin[2];
                b.x = row + column * s.x[4];
                b.y = y + image * s.y[0] + h * s.y[3] + w * s.y[4];
                b.residual = residual ? residual + image * s.r[0] + h * s.r[3] + w * s.r[4] : nullptr;
                b.from = -column, b.end = s.in[2] - column, b.count = s.out[2] - w;
                if (b.count >= PX && b.from <= 0 && (PX - 1) * SW + KW <= b.end) blocks<Way, S, A, L, CV, PX, KW, SW, INSIDE>(s, b, c0, c1);
                else blocks<Way, S, A, L, CV, PX, KW, SW, AT_EDGE>(s, b, c0, c1);
            }
        }
    }
}

}  // namespace depthwise
