// needs: pool
// pool_window: pooling over windows of one size in up to two spatial dims, with all sizes known when the kernel is compiled.
//
// A thread computes V x R results: V contiguous channels (one, if channels are not contiguous) in R consecutive output lines of a column. The
// windows of these lines overlap, so a row of the input is read and reduced once for all of them.
//
// W has the sizes of one call (kernels/cuda/pool.py). Per spatial dim: out, kernel, stride, dilation, begin (padding before the input), limit
// (end of the input) and divisor_end (end of the elements that an average's divisor counts). Strides x and y of image, channel, line and
// column. `along`: the number of channels if they are contiguous, else 1. `gathers`: true to use `window_gathered`. `divides`: the divisor of
// an average if the model fixes it, else 0.

namespace pool {

// a / n, correctly rounded, from inverse = 1 / n: the remainder of the approximate quotient corrects its last bit (Markstein, 1990).
INLINE float quotient(float a, float n, float inverse) {
    const float approximate = a * inverse, remainder = fma(-approximate, n, a);
    return remainder == remainder ? fma(remainder, inverse, approximate) : approximate;  // the remainder of an infinity is NaN
}

// The accumulators of V windows, which one reduction Op (Max, FloatMean ...) of the part `pool` updates.
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
        const float inverse = 1.0f / (float)n;
#pragma unroll
        for (int u = 0; u < V; ++u) {
            if constexpr (same<Op, FloatMean> && same<value, float>) v.at[u] = quotient(at[u], (float)n, inverse);
            else v.at[u] = raw<value>(Op::end(at[u], n, w));
        }
        return encoded(v);
    }
};

#if defined(__CUDACC_RTC__)  // maxima by PTX instructions that propagate NaN; a host compiler uses the template above
INLINE float max_nan(float a, float b) {
    float y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}
template <class S> INLINE uint32_t max_nan_pair(uint32_t a, uint32_t b) {
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
template <class S, int V> struct Pairs {  // maxima of 16-bit floats, two in a register
    static constexpr int N = (V + 1) / 2;
    uint32_t at[N];
    static INLINE_MEMBER Pairs of(const pack<S, V> &x) {
        Pairs r = {};
        __builtin_memcpy(r.at, x.at, sizeof x.at);
        return r;
    }
    INLINE_MEMBER void start() {
        const uint32_t least = same<S, bf16> ? 0xff80ff80u : 0xfc00fc00u;  // two times minus infinity
#pragma unroll
        for (int i = 0; i < N; ++i) at[i] = least;
    }
    INLINE_MEMBER void add(const pack<S, V> &x, const Windows &) { join(of(x)); }
    INLINE_MEMBER void join(const Pairs &other) {
#pragma unroll
        for (int i = 0; i < N; ++i) at[i] = max_nan_pair<S>(at[i], other.at[i]);
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

// Tests of one dim D for tap k of a window that begins at input coordinate o, which is negative in the padding. Where a thread has R windows
// along the dim, o is the beginning of the first one, and k continues into the others. A test that is true for all windows of the call is a
// constant, so that no code is generated for it.
template <class W, int D, int R = 1>
constexpr int last_begin = (W::out[D] - 1) / R * R * W::stride[D] - W::begin[D];  // the largest o
// True if every window has an element of the input. Dilation is 1, so the window has the element of the input nearest to each of its taps.
template <class W, int D> constexpr bool never_empty = W::begin[D] < W::kernel[D] && last_begin<W, D> < W::limit[D] && W::dilation[D] == 1;
template <class W, int D, int R = 1> constexpr bool may_precede(int k) { return k * W::dilation[D] < W::begin[D]; }
template <class W, int D, int R = 1> constexpr bool may_pass(int k) { return last_begin<W, D, R> + k * W::dilation[D] >= W::limit[D]; }

template <class W, int D, int R = 1> INLINE bool is_inside(int o, int k) {
    const int coord = o + k * W::dilation[D];
    return (!may_precede<W, D, R>(k) || coord >= 0) && (!may_pass<W, D, R>(k) || coord < W::limit[D]);
}
template <class W, int D, int R = 1> INLINE int nearest_inside(int o, int k) {
    int coord = o + k * W::dilation[D];
    if (may_precede<W, D, R>(k)) coord = larger(coord, 0);
    if (may_pass<W, D, R>(k)) coord = smaller(coord, W::limit[D] - 1);
    return coord;
}
// The number of a window's taps that are inside the input.
template <class W, int D> INLINE int count_inside(int o) {
    int n = 0;
#pragma unroll
    for (int k = 0; k < W::kernel[D]; ++k) n += is_inside<W, D>(o, k);
    return n;
}
// The number of a window's taps that the divisor of an average counts.
template <class W, int D> INLINE int divisor_taps(int o) {
    if constexpr (!W::padding_counts) return count_inside<W, D>(o);
    else if constexpr (last_begin<W, D> + (W::kernel[D] - 1) * W::dilation[D] < W::divisor_end[D]) return W::kernel[D];
    else {
        const int n = (W::divisor_end[D] - 1 - o) / W::dilation[D] + 1;
        return o >= W::divisor_end[D] ? 0 : n < W::kernel[D] ? n : W::kernel[D];
    }
}

// The identity of the reduction in every element.
template <class Op, class S, int V> INLINE pack<S, V> identity_pack() {
    pack<S, V> r = {};
    if constexpr (same<Op, Max>) {
#pragma unroll
        for (int u = 0; u < V; ++u) r.at[u] = encode<1>(lowest<loaded<S>>(), (const S *)0);
    }
    return r;
}
// first ? a : b, by selects of 32-bit words.
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

// True if an input line, counted from the first one of a thread, is in the window of the thread's r-th result.
template <class W> constexpr bool in_window(int line, int r) { return line >= r * W::stride[0] && line < r * W::stride[0] + W::kernel[0]; }

// Reduce the R windows of a thread, the first of which begins at line h and column v. All loads are issued before the first use, so they use
// coordinates that are clamped to the input. What is loaded for the padding is replaced by the identity, except for a maximum whose windows
// are never empty: there clamping gives another element of the window, which may be used twice.
template <class Op, class S, int V, int R, class W>
INLINE void window_gathered(PackReduction<Op, S, V> (&acc)[R], const S *x, int h, int v, const Windows &w) {
    typedef typename W::index I;
    constexpr int ROWS = W::kernel[0] + (R - 1) * W::stride[0], COLUMNS = W::kernel[1];
    constexpr bool clamping_is_exact = same<Op, Max> && never_empty<W, 0> && never_empty<W, 1>;
    pack<S, V> taps[ROWS][COLUMNS];
#pragma unroll
    for (int a = 0; a < ROWS; ++a) {
        const I row = (I)nearest_inside<W, 0, R>(h, a) * (I)W::x[2];
#pragma unroll
        for (int b = 0; b < COLUMNS; ++b) {
            if (R > 1 && a % W::stride[0] >= W::kernel[0]) continue;
            taps[a][b] = fetch<V>(x + (row + (I)nearest_inside<W, 1>(v, b) * (I)W::x[3]), true);
        }
    }
#pragma unroll
    for (int a = 0; a < ROWS; ++a) {
        if (R > 1 && a % W::stride[0] >= W::kernel[0]) continue;
        PackReduction<Op, S, V> row_acc;  // a sum per row keeps rounding errors small, and the R windows share it
        row_acc.start();
#pragma unroll
        for (int b = 0; b < COLUMNS; ++b) {
            const bool is_valid = clamping_is_exact || (is_inside<W, 0, R>(h, a) && is_inside<W, 1>(v, b));
            row_acc.add(select_pack(is_valid, taps[a][b], identity_pack<Op, S, V>()), w);
        }
#pragma unroll
        for (int r = 0; r < R; ++r)
            if (in_window<W>(a, r)) acc[r].join(row_acc);
    }
}

// Reduce one window of any size, which begins at line h and column v.
template <class Op, class S, int V, class W>
INLINE void window_loop(PackReduction<Op, S, V> &acc, const S *x, int h, int v, const Windows &w) {
    typedef typename W::index I;
#pragma unroll 1
    for (int a = 0; a < W::kernel[0]; ++a) {
        if (!is_inside<W, 0>(h, a)) continue;
        PackReduction<Op, S, V> row_acc;
        row_acc.start();
#pragma unroll 4
        for (int b = 0; b < W::kernel[1]; ++b) {
            const I offset = (I)(h + a * W::dilation[0]) * (I)W::x[2] + (I)(v + b * W::dilation[1]) * (I)W::x[3];
            if (is_inside<W, 1>(v, b)) row_acc.add(fetch<V>(x + offset, true), w);
        }
        acc.join(row_acc);
    }
}

// Compute the results of work item e. R is above 1 only where W::gathers is true and dilation is 1.
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
    const int across = divisor_taps<W, 1>(v);
#pragma unroll
    for (int r = 0; r < R; ++r) {
        if (W::out[0] % R && line + r >= W::out[0]) break;
        const double n = W::divides ? W::divides : (double)(divisor_taps<W, 0>(h + r * W::stride[0]) * across);
        put<V>(y + (to + r * (I)W::y[2]), acc[r].end(n, w), true);
    }
}

}  // namespace pool
