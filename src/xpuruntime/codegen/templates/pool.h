// needs: conv_shape arith
// pool: windows reduced to one value per channel. Vectors run over channels where these are contiguous, along rows where those are; else outputs are
// computed one by one.
//
// A task is a few rows of output pixels over a block of channels. Windows are clipped to the input: padding is never read, and counts
// only as far as an average says so.

namespace pool {

using conv::Shape;

struct Windows {
    int64_t limit[3];    // the end of the input, without the elements that negative padding crops
    int64_t divisor_end[3];  // the end of the elements that an average's divisor counts
    bool adaptive;       // windows of nearly equal size, floor(i * in / out) to ceil((i + 1) * in / out)
    bool padding_counts;
    double divisor;  // 0: elements that count
    double power;
};
struct Tasks { int64_t rows, channels, blocks; };  // rows and channels of a task, blocks of channels

struct Range { int64_t from, count, step, divisor_taps; };
INLINE Range range(const Shape &s, const Windows &w, int d, int64_t o) {
    if (w.adaptive) {
        const int64_t from = o * s.in[d] / s.out[d], n = ((o + 1) * s.in[d] + s.out[d] - 1) / s.out[d] - from;
        return {from, n, 1, n};
    }
    const int64_t step = s.dilation[d], start = o * s.stride[d] - s.begin[d];
    const int64_t first = start < 0 ? (step - 1 - start) / step : 0;
    auto taps = [&](int64_t end) {
        const int64_t n = start < end ? (end - 1 - start) / step + 1 : 0;
        return n < s.kernel[d] ? n : s.kernel[d];
    };
    const int64_t n = taps(w.limit[d]) - first;
    return {start + first * step, n > 0 ? n : 0, step, w.padding_counts ? taps(w.divisor_end[d]) : n > 0 ? n : 0};
}

// ── reductions of windows: values of V to accumulators of A ──

template <class T> constexpr T lowest() {
    if constexpr (is_float<T>) return -(T)__builtin_inff();
    else return T(-1) < T(1) ? (T)((T)1 << (8 * sizeof(T) - 1)) : T(0);
}
struct Max {  // NaN wins
    static constexpr bool BY_ROWS = false;
    template <class V> using sum = V;
    template <class V> static INLINE_MEMBER V start() { return splat<V>(lowest<elem<V>>()); }
    template <class V> static INLINE_MEMBER V add(V a, V x, const Windows &) { return select((x > a) | (x != x), x, a); }
    template <class V> static INLINE_MEMBER V join(V a, V b) { return select((b > a) | (b != b), b, a); }
    template <class V> static INLINE_MEMBER V end(V a, double, const Windows &) { return a; }
};
// The maximum of T, bf16 or f16, from its bits as integers: three instructions per tap, without a conversion or a compare. As signed
// integers, positive floats are ordered and above all negative ones; as unsigned integers, negative floats are ordered downwards. NaNs are
// beyond the infinity of their sign. NaN wins, and of zeros +0 wins.
template <class V> struct Extremes {
    ints<V> highest;   // the result unless it is negative, that is: unless every value is
    V nearest, last;   // of negative values the one nearest to zero, and the last in order: a NaN if it is above -Inf
};
template <class T> struct MaxOfHalves {
    static constexpr bool BY_ROWS = false;
    static constexpr uint16_t MINUS_INF = same<T, bf16> ? 0xff80 : 0xfc00;
    template <class V> using sum = Extremes<V>;
    template <class A> static INLINE_MEMBER A start() {
        A a;
        a.nearest = a.last = splat<decltype(a.last)>(MINUS_INF);
        a.highest = bitcast<decltype(a.highest)>(a.last);
        return a;
    }
    template <class V> static INLINE_MEMBER Extremes<V> add(Extremes<V> a, V x, const Windows &) {
        const ints<V> i = bitcast<ints<V>>(x);
        return {i > a.highest ? i : a.highest, x < a.nearest ? x : a.nearest, x > a.last ? x : a.last};
    }
    template <class V> static INLINE_MEMBER V end(Extremes<V> a, double, const Windows &) {
        const V most = select(a.highest >= 0, bitcast<V>(a.highest), a.nearest);
        return select(a.last > splat<V>(MINUS_INF), a.last, most);
    }
};
struct Mean {
    static constexpr bool BY_ROWS = true;  // each row of a window is added on its own: errors of long sums stay small
    template <class V> using sum = typename vec_<typename bits_<8>::s, 1>::type;  // whole numbers: exact in int64
    template <class A> static INLINE_MEMBER A start() { return splat<A>(0); }
    template <class A, class V> static INLINE_MEMBER A add(A a, V x, const Windows &) { return a + raw<elem<A>>(x); }
    template <class A> static INLINE_MEMBER A join(A a, A b) { return a + b; }
    template <class A> static INLINE_MEMBER A end(A a, double n, const Windows &) {
        if constexpr (is_float<A>) return a / splat<A>((elem<A>)n);
        else return n ? a / (int64_t)n : 0;
    }
};
struct FloatMean : Mean {
    template <class V> using sum = V;
};
struct Norm1 : FloatMean {
    template <class V> static INLINE_MEMBER V add(V a, V x, const Windows &) { return a + abs(x); }
    template <class V> static INLINE_MEMBER V end(V a, double, const Windows &) { return a; }
};
struct Norm2 : FloatMean {
    template <class V> static INLINE_MEMBER V add(V a, V x, const Windows &) { return a + x * x; }
    template <class V> static INLINE_MEMBER V end(V a, double, const Windows &) { return ::sqrt(a); }
};

// ── one pixel: CV x L channels, or with FEWER the first `channels` of L ──

template <class Op, class S, int L, int CV, bool FEWER = false>
INLINE void pixel(const Shape &s, const Windows &w, const S *x, const Range (&r)[3], double n, S *y, int64_t channels = L) {
    typedef loaded<S, L> V;
    typedef typename Op::template sum<V> A;
    A acc[CV], rows[CV];  // loops over v are unrolled: their accumulators are registers
#pragma GCC unroll 4
    for (int v = 0; v < CV; v++) acc[v] = rows[v] = Op::template start<A>();
    for (int64_t z = 0; z < r[0].count; z++)
        for (int64_t h = 0; h < r[1].count; h++) {
            const S *row = x + (r[0].from + z * r[0].step) * s.x[2] + (r[1].from + h * r[1].step) * s.x[3] + r[2].from * s.x[4];
            for (int64_t t = 0; t < r[2].count; t++, row += r[2].step * s.x[4])
#pragma GCC unroll 4
                for (int v = 0; v < CV; v++) {
                    if constexpr (FEWER) acc[v] = Op::add(acc[v], ::load<L>(row, channels), w);
                    else acc[v] = Op::add(acc[v], ::load<L>(row + v * L), w);
                }
            if constexpr (Op::BY_ROWS)
#pragma GCC unroll 4
                for (int v = 0; v < CV; v++) rows[v] = Op::join(rows[v], acc[v]), acc[v] = Op::template start<A>();
        }
#pragma GCC unroll 4
    for (int v = 0; v < CV; v++) {
        const V result = raw<elem<V>>(Op::end(Op::BY_ROWS ? rows[v] : acc[v], n, w));
        if constexpr (FEWER) ::store<L>(y, result, channels);
        else ::store<L>(y + v * L, result);
    }
}

// L: lanes where channels are contiguous in both, else 1.
template <class Op, class S, int L>
static __attribute__((noinline)) void run(const Shape &s, const Windows &w, const Tasks &g, const S *x, S *y, int64_t begin, int64_t end) {
    const int64_t rows = s.images * s.out[0] * s.out[1];
    for (int64_t task = begin; task < end; task++) {
        const int64_t c0 = task % g.blocks * g.channels, c1 = c0 + g.channels < s.channels ? c0 + g.channels : s.channels;
        const int64_t first = task / g.blocks * g.rows, last = first + g.rows < rows ? first + g.rows : rows;
        for (int64_t row = first; row < last; row++) {
            const int64_t oh = row % s.out[1], od = row / s.out[1] % s.out[0], image = row / s.out[1] / s.out[0];
            Range r[3] = {range(s, w, 0, od), range(s, w, 1, oh)};
            for (int64_t ow = 0; ow < s.out[2]; ow++) {
                r[2] = range(s, w, 2, ow);
                const double n = w.divisor ? w.divisor : (double)(r[0].divisor_taps * r[1].divisor_taps * r[2].divisor_taps);
                const S *from = x + image * s.x[0];
                S *to = y + image * s.y[0] + od * s.y[2] + oh * s.y[3] + ow * s.y[4];
                int64_t c = c0;
                if constexpr (L > 1) {
                    for (; c + 4 * L <= c1; c += 4 * L) pixel<Op, S, L, 4>(s, w, from + c, r, n, to + c);
                    for (; c + 2 * L <= c1; c += 2 * L) pixel<Op, S, L, 2>(s, w, from + c, r, n, to + c);
                    for (; c + L <= c1; c += L) pixel<Op, S, L, 1>(s, w, from + c, r, n, to + c);
                    if (c < c1 && c1 - c0 >= L) pixel<Op, S, L, 1>(s, w, from + c1 - L, r, n, to + c1 - L), c = c1;  // some channels twice
                    if (c < c1) pixel<Op, S, L, 1, true>(s, w, from + c, r, n, to + c, c1 - c), c = c1;
                }
                for (; c < c1; c++) pixel<Op, S, 1, 1>(s, w, from + c * s.x[1], r, n, to + c * s.y[1]);
            }
        }
    }
}

// Rows of adjacent outputs, L at once where all taps are inside. STRIDE: from a window to the next, whose elements are adjacent.
template <class Op, class S, int L, int64_t STRIDE>
INLINE void windows_of_row(const Shape &s, const Windows &w, const S *x, const Range (&r)[3], int64_t first, double n, S *y) {
    typedef loaded<S, L> V;
    typedef typename Op::template sum<V> A;
    A acc = Op::template start<A>(), rows = acc;
    for (int64_t z = 0; z < r[0].count; z++)
        for (int64_t h = 0; h < r[1].count; h++) {
            const S *row = x + (r[0].from + z * r[0].step) * s.x[2] + (r[1].from + h * r[1].step) * s.x[3] + first * STRIDE - s.begin[2];
            for (int64_t t = 0; t < s.kernel[2]; t++, row += s.dilation[2]) acc = Op::add(acc, STRIDE == 1 ? ::load<L>(row) : gather<L>(row, STRIDE), w);
            if constexpr (Op::BY_ROWS) rows = Op::join(rows, acc), acc = Op::template start<A>();
        }
    ::store<L>(y + first, raw<elem<V>>(Op::end(Op::BY_ROWS ? rows : acc, n, w)));
}
template <class Op, class S, int L, int64_t STRIDE>
static __attribute__((noinline)) void run_along_rows(const Shape &s, const Windows &w, const Tasks &g, const S *x, S *y, int64_t begin, int64_t end) {
    const int64_t rows = s.images * s.out[0] * s.out[1];
    // Outputs whose taps are all inside: the last one begins a window before the end.
    const int64_t room = w.limit[2] - (s.kernel[2] - 1) * s.dilation[2] + s.begin[2];
    int64_t low = (s.begin[2] + STRIDE - 1) / STRIDE, high = room > 0 ? (room + STRIDE - 1) / STRIDE : 0;
    low = low < 0 ? 0 : low, high = high < s.out[2] ? high : s.out[2];
    if (high - low < L) low = high = s.out[2];
    for (int64_t task = begin; task < end; task++) {
        const int64_t c0 = task % g.blocks * g.channels, c1 = c0 + g.channels < s.channels ? c0 + g.channels : s.channels;
        const int64_t first = task / g.blocks * g.rows, last = first + g.rows < rows ? first + g.rows : rows;
        for (int64_t c = c0; c < c1; c++)
            for (int64_t row = first; row < last; row++) {
                const int64_t oh = row % s.out[1], od = row / s.out[1] % s.out[0], image = row / s.out[1] / s.out[0];
                const S *from = x + image * s.x[0] + c * s.x[1];
                S *to = y + image * s.y[0] + c * s.y[1] + od * s.y[2] + oh * s.y[3];
                Range r[3] = {range(s, w, 0, od), range(s, w, 1, oh)};
                const double planes = (double)(r[0].divisor_taps * r[1].divisor_taps);
                for (int64_t ow = 0; ow < s.out[2]; ow++) {
                    if (ow == low && low < high) {
                        const double n = w.divisor ? w.divisor : planes * s.kernel[2];
                        for (; ow + L <= high; ow += L) windows_of_row<Op, S, L, STRIDE>(s, w, from, r, ow, n, to);
                        if (ow < high) windows_of_row<Op, S, L, STRIDE>(s, w, from, r, high - L, n, to), ow = high;  // some outputs twice
                        if (ow == s.out[2]) break;
                    }
                    r[2] = range(s, w, 2, ow);
                    const double n = w.divisor ? w.divisor : planes * r[2].divisor_taps;
                    pixel<Op, S, 1, 1>(s, w, from, r, n, to + ow);
                }
            }
    }
}

// ── the maximum and its place ──

struct Places {  // strides of the indices, and how a place counts: over the plane (row- or column-major) or the whole tensor
    int64_t strides[5], plane, over_d, over_h, over_w;
    bool whole;
};
template <class S, int L>
INLINE void pixel_and_place(const Shape &s, const S *x, const Range (&r)[3], const int64_t (&first)[3], const Places &i, S *y,
                            int64_t *places, int64_t offset) {
    typedef loaded<S, L> V;
    typedef vec<int64_t, L> I;
    V best = splat<V>(lowest<elem<V>>());
    // With nothing above the lowest value the place is the first inside; in an empty window the first of all.
    const bool any = r[0].count && r[1].count && r[2].count;
    auto number = [&](int64_t d, int64_t h, int64_t t) { return d * i.over_d + h * i.over_h + t * i.over_w; };
    I at = splat<I>(any ? number(r[0].from, r[1].from, r[2].from) : number(first[0], first[1], first[2]));
    for (int64_t z = 0; z < r[0].count; z++)
        for (int64_t h = 0; h < r[1].count; h++)
            for (int64_t t = 0; t < r[2].count; t++) {
                const int64_t d = r[0].from + z * r[0].step, e = r[1].from + h * r[1].step, f = r[2].from + t * r[2].step;
                const V v = ::load<L>(x + d * s.x[2] + e * s.x[3] + f * s.x[4]);
                const auto better = (v > best) | (v != v);  // of NaNs the last one
                best = select(better, v, best);
                at = select(better, splat<I>(number(d, e, f)), at);
            }
    ::store<L>(y, best);
    for (int l = 0; l < L; l++) {
        int64_t place;
        if constexpr (L == 1) place = at;
        else place = at[l];
        places[l * i.strides[1]] = place + offset + (i.whole ? l * i.plane : 0);
    }
}

template <class S, int L>
static __attribute__((noinline)) void run_with_places(const Shape &s, const Windows &w, const Tasks &g, const Places &i, const S *x, S *y,
                                                      int64_t *places, int64_t begin, int64_t end) {
    const int64_t rows = s.images * s.out[0] * s.out[1];
    for (int64_t task = begin; task < end; task++) {
        const int64_t c0 = task % g.blocks * g.channels, c1 = c0 + g.channels < s.channels ? c0 + g.channels : s.channels;
        const int64_t first = task / g.blocks * g.rows, last = first + g.rows < rows ? first + g.rows : rows;
        for (int64_t row = first; row < last; row++) {
            const int64_t o[3] = {row / s.out[1] % s.out[0], row % s.out[1], 0}, image = row / s.out[1] / s.out[0];
            Range r[3] = {range(s, w, 0, o[0]), range(s, w, 1, o[1])};
            int64_t start[3] = {o[0] * s.stride[0] - s.begin[0], o[1] * s.stride[1] - s.begin[1]};
            for (int64_t ow = 0; ow < s.out[2]; ow++) {
                r[2] = range(s, w, 2, ow);
                start[2] = ow * s.stride[2] - s.begin[2];
                const S *from = x + image * s.x[0];
                S *to = y + image * s.y[0] + o[0] * s.y[2] + o[1] * s.y[3] + ow * s.y[4];
                int64_t *at = places + image * i.strides[0] + o[0] * i.strides[2] + o[1] * i.strides[3] + ow * i.strides[4];
                auto offset = [&](int64_t c) { return i.whole ? (image * s.channels + c) * i.plane : 0; };
                int64_t c = c0;
                if constexpr (L > 1)
                    for (; c + L <= c1; c += L) pixel_and_place<S, L>(s, from + c, r, start, i, to + c, at + c * i.strides[1], offset(c));
                for (; c < c1; c++)
                    pixel_and_place<S, 1>(s, from + c * s.x[1], r, start, i, to + c * s.y[1], at + c * i.strides[1], offset(c));
            }
        }
    }
}

}  // namespace pool
