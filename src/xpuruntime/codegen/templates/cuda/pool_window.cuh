// needs: pool
// pool_window: windows of up to two dims, their sizes known. A thread has V output elements that are contiguous (channels, or one column)
// in R lines below each other, whose windows share rows of the input: each is read and reduced once.
//
// W names the sizes of one call (kernels/cuda/pool.py): out, kernel, stride, dilation, begin (padding before the input), limit (where the
// input ends), divisor_end (where an average's divisor stops counting), strides of x and y, `along` (channels, if they are contiguous, else 1).

namespace pool {

// a / n with 1 / n known: the quotient's rest, times that, mends its last place (Markstein, 1990).
INLINE float quotient(float a, float n, float each) {
    const float near = a * each, rest = fma(-near, n, a);
    return rest == rest ? fma(rest, each, near) : near;  // infinity leaves no rest
}

// A reduction of windows, for V elements at a time.
template <class Op, class S, int V> struct PackReduction {
    typedef loaded<S> value;
    typedef typename Op::template sum<value> sum;
    sum at[V];
    INLINE_MEMBER void start() {
#pragma unroll
        for (int u = 0; u < V; ++u) at[u] = Op::template start<sum>();
    }
    INLINE_MEMBER void add(const pack<S, V> &x, const Windows &w) {
        const auto v = decoded(x);
#pragma unroll
        for (int u = 0; u < V; ++u) at[u] = Op::add(at[u], v.at[u], w);
    }
    INLINE_MEMBER void join(const PackReduction &other) {
#pragma unroll
        for (int u = 0; u < V; ++u) at[u] = Op::join(at[u], other.at[u]);
    }
    INLINE_MEMBER pack<S, V> end(double n, const Windows &w) const {
        unpacked<S, V> v;
        const float each = 1.0f / (float)n;
#pragma unroll
        for (int u = 0; u < V; ++u) {
            if constexpr (same<Op, FloatMean> && same<value, float>) v.at[u] = quotient(at[u], (float)n, each);
            else v.at[u] = raw<value>(Op::end(at[u], n, w));
        }
        return encoded(v);
    }
};

#if defined(__CUDACC_RTC__)
INLINE float max_nan(float a, float b) {
    float y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}
template <class S> INLINE uint32_t largest_pair(uint32_t a, uint32_t b) {
    uint32_t y;
    if constexpr (same<S, bf16>) asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
    else asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
    return y;
}
template <int V> struct PackReduction<Max, float, V> {
    float at[V];
    INLINE_MEMBER void start() {
#pragma unroll
        for (int u = 0; u < V; ++u) at[u] = lowest<float>();
    }
    INLINE_MEMBER void add(const pack<float, V> &x, const Windows &) {
#pragma unroll
        for (int u = 0; u < V; ++u) at[u] = max_nan(at[u], x.at[u]);
    }
    INLINE_MEMBER void join(const PackReduction &other) {
#pragma unroll
        for (int u = 0; u < V; ++u) at[u] = max_nan(at[u], other.at[u]);
    }
    INLINE_MEMBER pack<float, V> end(double, const Windows &) const {
        pack<float, V> y;
#pragma unroll
        for (int u = 0; u < V; ++u) y.at[u] = at[u];
        return y;
    }
};
template <class S, int V> struct Pairs {  // 16-bit maxima are computed in packed pairs
    static constexpr int N = (V + 1) / 2;
    uint32_t at[N];
    static INLINE_MEMBER Pairs of(const pack<S, V> &x) {
        Pairs r = {};
        __builtin_memcpy(r.at, x.at, sizeof x.at);
        return r;
    }
    INLINE_MEMBER void start() {
        const uint32_t least = same<S, bf16> ? 0xff80ff80u : 0xfc00fc00u;
#pragma unroll
        for (int i = 0; i < N; ++i) at[i] = least;
    }
    INLINE_MEMBER void add(const pack<S, V> &x, const Windows &) { join(of(x)); }
    INLINE_MEMBER void join(const Pairs &other) {
#pragma unroll
        for (int i = 0; i < N; ++i) at[i] = largest_pair<S>(at[i], other.at[i]);
    }
    INLINE_MEMBER pack<S, V> end(double, const Windows &) const {
        pack<S, V> y;
        __builtin_memcpy(y.at, at, sizeof y.at);
        return y;
    }
};
template <int V> struct PackReduction<Max, bf16, V> : Pairs<bf16, V> {};
template <int V> struct PackReduction<Max, f16, V> : Pairs<f16, V> {};
#endif

// Along one dim, of windows in groups of R (1 along the second): tap k of a window that begins at o. Taps that are inside the input for every
// window are not checked.
template <class W, int D, int R = 1>
constexpr int last_of = (W::out[D] - 1) / R * R * W::stride[D] - W::begin[D];  // where the last window begins
template <class W, int D> constexpr bool never_empty = W::begin[D] < W::kernel[D] && last_of<W, D> < W::limit[D] && W::dilation[D] == 1;
template <class W, int D, int R = 1> constexpr bool may_precede(int k) { return k * W::dilation[D] < W::begin[D]; }
template <class W, int D, int R = 1> constexpr bool may_pass(int k) { return last_of<W, D, R> + k * W::dilation[D] >= W::limit[D]; }

template <class W, int D, int R = 1> INLINE bool in(int o, int k) {
    const int coord = o + k * W::dilation[D];
    return (!may_precede<W, D, R>(k) || coord >= 0) && (!may_pass<W, D, R>(k) || coord < W::limit[D]);
}
template <class W, int D, int R = 1> INLINE int nearest_in(int o, int k) {
    int coord = o + k * W::dilation[D];
    if (may_precede<W, D, R>(k)) coord = larger(coord, 0);
    if (may_pass<W, D, R>(k)) coord = smaller(coord, W::limit[D] - 1);
    return coord;
}
template <class W, int D> INLINE int inside(int o) {  // taps in the input
    int n = 0;
#pragma unroll
    for (int k = 0; k < W::kernel[D]; ++k) n += in<W, D>(o, k);
    return n;
}
template <class W, int D> INLINE int counting(int o) {
    if constexpr (!W::padding_counts) return inside<W, D>(o);
    else if constexpr (last_of<W, D> + (W::kernel[D] - 1) * W::dilation[D] < W::divisor_end[D]) return W::kernel[D];
    else {
        const int n = (W::divisor_end[D] - 1 - o) / W::dilation[D] + 1;
        return o >= W::divisor_end[D] ? 0 : n < W::kernel[D] ? n : W::kernel[D];
    }
}

// The identity of the reduction.
template <class Op, class S, int V> INLINE pack<S, V> identity_pack() {
    pack<S, V> r = {};
    if constexpr (same<Op, Max>) {
#pragma unroll
        for (int u = 0; u < V; ++u) r.at[u] = encode<1>(lowest<loaded<S>>(), (const S *)0);
    }
    return r;
}
template <class S, int V> INLINE pack<S, V> select_pack(bool first, const pack<S, V> &a, const pack<S, V> &b) {
    if constexpr (sizeof a % 4) return first ? a : b;
    else {
        uint32_t x[sizeof a / 4], y[sizeof a / 4];
        __builtin_memcpy(x, a.at, sizeof a), __builtin_memcpy(y, b.at, sizeof a);
#pragma unroll
        for (int i = 0; i < (int)sizeof a / 4; ++i) x[i] = first ? x[i] : y[i];
        pack<S, V> r;
        __builtin_memcpy(r.at, x, sizeof r);
        return r;
    }
}

// Whether a line is in the window of a thread's r-th result.
template <class W> constexpr bool in_window(int line, int r) { return line >= r * W::stride[0] && line < r * W::stride[0] + W::kernel[0]; }

// R windows below each other, the first at (h, v): all loads are issued before the first use, at indices clamped to the input. Elements in
// the padding are replaced by the identity; a maximum may use its neighbors twice.
template <class Op, class S, int V, int R, class W>
INLINE void window_gathered(PackReduction<Op, S, V> (&acc)[R], const S *x, int h, int v, const Windows &w) {
    typedef typename W::index I;
    constexpr int ROWS = W::kernel[0] + (R - 1) * W::stride[0], COLUMNS = W::kernel[1];
    constexpr bool twice = same<Op, Max> && never_empty<W, 0> && never_empty<W, 1>;
    pack<S, V> taps[ROWS][COLUMNS];
#pragma unroll
    for (int a = 0; a < ROWS; ++a) {
        const I row = (I)nearest_in<W, 0, R>(h, a) * (I)W::x[2];
#pragma unroll
        for (int b = 0; b < COLUMNS; ++b) {
            if (R > 1 && a % W::stride[0] >= W::kernel[0]) continue;
            taps[a][b] = fetch<V>(x + (row + (I)nearest_in<W, 1>(v, b) * (I)W::x[3]), true);
        }
    }
#pragma unroll
    for (int a = 0; a < ROWS; ++a) {
        if (R > 1 && a % W::stride[0] >= W::kernel[0]) continue;
        PackReduction<Op, S, V> row_acc;  // each row is summed apart, so that errors of long sums stay small
        row_acc.start();
#pragma unroll
        for (int b = 0; b < COLUMNS; ++b) {
            const bool there = twice || (in<W, 0, R>(h, a) && in<W, 1>(v, b));
            row_acc.add(select_pack(there, taps[a][b], identity_pack<Op, S, V>()), w);
        }
#pragma unroll
        for (int r = 0; r < R; ++r)
            if (in_window<W>(a, r)) acc[r].join(row_acc);
    }
}

// One window of any size.
template <class Op, class S, int V, class W>
INLINE void window_loop(PackReduction<Op, S, V> &acc, const S *x, int h, int v, const Windows &w) {
    typedef typename W::index I;
#pragma unroll 1
    for (int a = 0; a < W::kernel[0]; ++a) {
        if (!in<W, 0>(h, a)) continue;
        PackReduction<Op, S, V> row_acc;
        row_acc.start();
#pragma unroll 4
        for (int b = 0; b < W::kernel[1]; ++b) {
            const I offset = (I)(h + a * W::dilation[0]) * (I)W::x[2] + (I)(v + b * W::dilation[1]) * (I)W::x[3];
            if (in<W, 1>(v, b)) row_acc.add(fetch<V>(x + offset, true), w);
        }
        acc.join(row_acc);
    }
}

// Item e of the result: lines in groups of R, if `window_gathered` has registers for them and dilation is 1.
template <class Op, class S, int V, int R, class W> INLINE void window(const S *x, S *y, uint32_t e, const Windows &w) {
    typedef typename W::index I;
    constexpr int GROUPS = (W::out[0] + R - 1) / R;
    I from = 0, to = 0;
    if (W::along > 1) {
        const uint32_t c = e % (W::along / V) * V;
        from += c, to += c, e /= W::along / V;
    }
    const uint32_t column = e % W::out[1], line = e / W::out[1] % GROUPS * R;
    e /= GROUPS * W::out[1];
    if (W::along == 1) {
        const uint32_t c = e % W::channels;
        from += c * (I)W::x[1], to += c * (I)W::y[1], e /= W::channels;
    }
    from += e * (I)W::x[0], to += e * (I)W::y[0] + line * (I)W::y[2] + column * (I)W::y[3];
    const int h = (int)line * W::stride[0] - W::begin[0], v = (int)column * W::stride[1] - W::begin[1];
    PackReduction<Op, S, V> acc[R];
#pragma unroll
    for (int r = 0; r < R; ++r) acc[r].start();
    if constexpr (W::gathers && W::limit[0] > 0 && W::limit[1] > 0) window_gathered<Op, S, V, R, W>(acc, x + from, h, v, w);
    else window_loop<Op, S, V, W>(acc[0], x + from, h, v, w);
    const int across = counting<W, 1>(v);
#pragma unroll
    for (int r = 0; r < R; ++r) {
        if (W::out[0] % R && line + r >= W::out[0]) break;
        const double n = W::divides ? W::divides : (double)(counting<W, 0>(h + r * W::stride[0]) * across);
        put<V>(y + (to + r * (I)W::y[2]), acc[r].end(n, w), true);
    }
}

}  // namespace pool
