// needs: pool
// pool_window: windows of up to two dims, their sizes known: V output elements a thread that lie side by side, channels or (V = 1) columns.
//
// W names the sizes of one call (kernels/cuda/pool.py): out, kernel, stride, dilation, begin (padding before the input), limit (where the
// input ends), counted (where an average's divisor stops counting), strides of x and y, `along` (channels, where they are side by side, else 1).

namespace pool {

// What windows are reduced by, over V elements.
template <class Op, class S, int V> struct Beside {
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
    INLINE_MEMBER void join(const Beside &other) {
#pragma unroll
        for (int u = 0; u < V; ++u) at[u] = Op::join(at[u], other.at[u]);
    }
    INLINE_MEMBER pack<S, V> end(double n, const Windows &w) const {
        unpacked<S, V> v;
#pragma unroll
        for (int u = 0; u < V; ++u) v.at[u] = raw<value>(Op::end(at[u], n, w));
        return encoded(v);
    }
};

#if defined(__CUDACC_RTC__)
INLINE float with_nan(float a, float b) {
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
template <int V> struct Beside<Max, float, V> {
    float at[V];
    INLINE_MEMBER void start() {
#pragma unroll
        for (int u = 0; u < V; ++u) at[u] = lowest<float>();
    }
    INLINE_MEMBER void add(const pack<float, V> &x, const Windows &) {
#pragma unroll
        for (int u = 0; u < V; ++u) at[u] = with_nan(at[u], x.at[u]);
    }
    INLINE_MEMBER void join(const Beside &other) {
#pragma unroll
        for (int u = 0; u < V; ++u) at[u] = with_nan(at[u], other.at[u]);
    }
    INLINE_MEMBER pack<float, V> end(double, const Windows &) const {
        pack<float, V> y;
#pragma unroll
        for (int u = 0; u < V; ++u) y.at[u] = at[u];
        return y;
    }
};
template <class S, int V> struct Pairs {  // maxima of 16 bits are found in pairs, as they lie
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
template <int V> struct Beside<Max, bf16, V> : Pairs<bf16, V> {};
template <int V> struct Beside<Max, f16, V> : Pairs<f16, V> {};
#endif

// Along one dim: the first place, and how many count in a divisor.
template <class W, int D> INLINE int inside(int o) {  // taps in the input
    constexpr bool always = W::begin[D] <= 0 && (W::out[D] - 1) * W::stride[D] - W::begin[D] + (W::kernel[D] - 1) * W::dilation[D] < W::limit[D];
    if constexpr (always) return W::kernel[D];
    int n = 0;
#pragma unroll
    for (int k = 0; k < W::kernel[D]; ++k) n += (uint32_t)(o + k * W::dilation[D]) < (uint32_t)W::limit[D];
    return n;
}
template <class W, int D> INLINE int counting(int o) {
    if constexpr (!W::padding_counts) return inside<W, D>(o);
    else if constexpr ((W::out[D] - 1) * W::stride[D] - W::begin[D] + (W::kernel[D] - 1) * W::dilation[D] < W::counted[D]) return W::kernel[D];
    else {
        const int n = (W::counted[D] - 1 - o) / W::dilation[D] + 1;
        return o >= W::counted[D] ? 0 : n < W::kernel[D] ? n : W::kernel[D];
    }
}

// Item e of the result.
template <class Op, class S, int V, class W> INLINE void window(const S *x, S *y, uint32_t e, const Windows &w) {
    typedef typename W::index I;
    typedef Beside<Op, S, V> Sums;
    I from = 0, to = 0;
    if (W::along > 1) {
        const uint32_t c = e % (W::along / V) * V;
        from += c, to += c, e /= W::along / V;
    }
    const uint32_t column = e % W::out[1], line = e / W::out[1] % W::out[0];
    e /= W::out[0] * W::out[1];
    if (W::along == 1) {
        const uint32_t c = e % W::channels;
        from += c * (I)W::x[1], to += c * (I)W::y[1], e /= W::channels;
    }
    from += e * (I)W::x[0], to += e * (I)W::y[0] + line * (I)W::y[2] + column * (I)W::y[3];
    const int h = (int)line * W::stride[0] - W::begin[0], v = (int)column * W::stride[1] - W::begin[1];
    const double n = W::divides ? W::divides : (double)(counting<W, 0>(h) * counting<W, 1>(v));
    constexpr int taps = W::kernel[0] * W::kernel[1];
    constexpr bool few = taps <= 64;
    Sums total;
    total.start();
#pragma unroll(few ? W::kernel[0] : 1)
    for (int a = 0; a < W::kernel[0]; ++a) {
        const int row = h + a * W::dilation[0];
        if ((uint32_t)row >= (uint32_t)W::limit[0]) continue;
        Sums own;  // rows on their own: errors of long sums stay small
        own.start();
#pragma unroll(few ? W::kernel[1] : 4)
        for (int b = 0; b < W::kernel[1]; ++b) {
            const int place = v + b * W::dilation[1];
            if ((uint32_t)place >= (uint32_t)W::limit[1]) continue;
            own.add(fetch<V>(x + (from + (I)row * (I)W::x[2] + (I)place * (I)W::x[3]), true), w);
        }
        total.join(own);
    }
    put<V>(y + to, total.end(n, w), true);
}

}  // namespace pool
