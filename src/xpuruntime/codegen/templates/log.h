// needs: arith
// log: logarithms. x = 2**e * m with m within sqrt(1/2) and sqrt(2); float32 by a polynomial in m - 1, float64 by the series of
// 2 * artanh(f / (2 + f)). Polynomials are Chebyshev interpolations made with 50 digits.

template <class V> struct parted { V f, e; };
template <class V> INLINE parted<V> part(V x) {  // of positive finite numbers: m - 1 and e
    typedef ints<V> I;
    constexpr bool f32 = same<elem<V>, float>;
    constexpr int fraction = f32 ? 23 : 52;
    const auto tiny = x < splat<V>(f32 ? (elem<V>)0x1p-126 : (elem<V>)0x1p-1022);
    const V y = select(tiny, x * splat<V>(f32 ? (elem<V>)0x1p25 : (elem<V>)0x1p54), x);
    const I root = bitcast<I>(splat<V>((elem<V>)0.70710678118654752)), i = bitcast<I>(y);
    const I e = (i - root) >> fraction;
    const V m = bitcast<V>(i - (e << fraction));
    const I offset = select(tiny, splat<I>(f32 ? 25 : 54), splat<I>(0));
    return {m - splat<V>(1), raw<elem<V>>(e - offset)};
}
template <class V> INLINE V log_ends(V x, V y) {  // log of 0 is -inf, of inf inf, of less NaN
    const V infinity = splat<V>((elem<V>)__builtin_inf());
    y = select(x == 0, -infinity, y);
    y = select(x == infinity, infinity, y);
    return select((x < 0) | (x != x), splat<V>((elem<V>)__builtin_nan("")), y);
}
template <class V> INLINE V log(V x) {
    const auto [f, e] = part(x);
    V y;
    if constexpr (same<elem<V>, float>) {
        const V tail = horner(f, 0.0697161147, -0.114797338, 0.116854199, -0.124256873, 0.142490576, -0.166678023,
                              0.200007157, -0.24999997, 0.333333312);
        const V low = fma(f * f * f, tail, fma(f * f, splat<V>(-0.5f), e * splat<V>(-2.12194440e-4f)));
        y = fma(e, splat<V>(0.693359375f), f + low);
    } else {
        const V s = f / (splat<V>(2) + f), z = s * s;
        const V tail = horner(z, 0.065436180983298111631, 0.066343573961740483333, 0.076931209409692977534,
                              0.090908978000303962205, 0.11111111196044503968, 0.14285714285400978471,
                              0.20000000000000439843, 0.33333333333333333232) * z;
        const V half = splat<V>(0.5) * f * f;  // log(1 + f) = f - (f*f/2 - s * (f*f/2 + 2 * tail))
        const V low = s * (half + splat<V>(2) * tail) + e * splat<V>(1.9082149292705877e-10);
        y = fma(e, splat<V>(0.6931471803691238), f - (half - low));
    }
    return log_ends(x, y);
}
template <class V> INLINE V log2(V x) {
    return by_double([](auto d) {
        typedef decltype(d) D;
        const auto [f, e] = part(d);
        return log_ends(d, (D)(e + log((D)(f + 1)) * 1.4426950408889634));
    }, x);
}
template <class V> INLINE V log10(V x) {
    return by_double([](auto d) { return log(d) * 0.43429448190325182765; }, x);
}
template <class V> INLINE V log1p(V x) {  // first-order correction of the rounding error of 1 + x
    const V u = splat<V>(1) + x, lost = x - (u - splat<V>(1));
    const V y = log(u) + lost / u;
    const auto plain = (u == splat<V>(1)) | (x == splat<V>((elem<V>)__builtin_inf()));
    const V ends = select(u == 0, splat<V>((elem<V>)-__builtin_inf()), y);
    return select(plain, x, ends);
}
