// needs: arith
// exp: exponentials and functions that use them. exp(x) = 2**k * exp(r) with k = round(x / ln 2) and |r| <= ln(2) / 2, ln 2 in two
// parts (W. J. Cody and W. Waite, "Software Manual for the Elementary Functions", 1980). Polynomials are Chebyshev
// interpolations made with 50 digits; float32 within 2 units in the last place, float64 within 1e-15.

// (exp(r) - 1 - r) / r**2
template <class V> INLINE V exp_tail(V r) {
    if constexpr (same<elem<V>, float>)
        return horner(r, 0.000198910805, 0.00139337307, 0.00833331084, 0.0416664642, 0.166666667, 0.5);
    else
        return horner(r, 1.6086677666787361503e-10, 2.0918212319133978201e-9, 2.5052070959803661989e-8,
                      2.7557263077309411451e-7, 2.7557319247344509509e-6, 2.4801587336630946966e-5,
                      1.9841269841263251867e-4, 1.3888888888879003084e-3, 8.3333333333333340131e-3,
                      4.1666666666666676865e-2, 0.16666666666666666667, 0.5);
}
template <class V> struct reduced { V r; ints<V> k; };
template <class V> INLINE reduced<V> by_ln2(V x) {
    constexpr bool f32 = same<elem<V>, float>;
    constexpr elem<V> magic = f32 ? (elem<V>)0x1.8p23 : (elem<V>)0x1.8p52;  // leaves the whole number in the low bits
    constexpr elem<V> high = f32 ? (elem<V>)0.693359375 : (elem<V>)0.6931471803691238;
    constexpr elem<V> low = f32 ? (elem<V>)-2.12194440e-4 : (elem<V>)1.9082149292705877e-10;
    const V t = x * splat<V>((elem<V>)1.4426950408889634) + splat<V>(magic), k = t - splat<V>(magic);
    const V r = fma(k, splat<V>(-low), fma(k, splat<V>(-high), x));
    return {r, bitcast<ints<V>>(t) - bitcast<ints<V>>(splat<V>(magic))};
}
template <class V> INLINE V within(V x, double low, double high) {
    return clip(x, splat<V>((elem<V>)low), splat<V>((elem<V>)high));
}
template <class V> INLINE V scaled(V y, ints<V> k) {  // y * 2**k in two steps: subnormal results and overflow come out right
#if defined(__AVX512F__) && !defined(__clang__)  // the machine has the instruction, and it takes k as a float
    if constexpr (same<V, vec<float, 16>>) return __builtin_ia32_scalefps512_mask(y, raw<float>(k), y, -1, 4);
    else if constexpr (same<V, vec<double, 8>>) return __builtin_ia32_scalefpd512_mask(y, raw<double>(k), y, -1, 4);
    else
#endif
    {
    const ints<V> half = k >> 1;
    return y * two_to<V>(half) * two_to<V>(k - half);
    }
}
template <class V> INLINE V exp(V x) {
    constexpr bool f32 = same<elem<V>, float>;
    const auto [r, k] = by_ln2(within(x, f32 ? -105.0 : -746.0, f32 ? 89.0 : 710.0));
    return scaled(fma(r * r, exp_tail(r), r) + splat<V>(1), k);
}
template <class V> INLINE V exp2(V x) {
    if constexpr (same<elem<V>, float>) return by_double([](auto d) { return exp(d * 0.6931471805599453); }, x);
    else {
        const V k = rint(within(x, -1080.0, 1025.0)), r = (within(x, -1080.0, 1025.0) - k) * splat<V>(0.6931471805599453);
        const auto whole = raw<int64_t>(select(k == k, k, splat<V>(0)));
        return scaled(fma(r * r, exp_tail(r), r) + splat<V>(1), whole);
    }
}
template <class V> INLINE V expm1(V x) {  // 2**k * (exp(r) - 1) + (2**k - 1), by halves so that 2**k does not overflow
    constexpr bool f32 = same<elem<V>, float>;
    const auto [r, k] = by_ln2(within(x, f32 ? -50.0 : -80.0, f32 ? 89.0 : 710.0));
    const V half = two_to<V>(k - 1), y = fma(fma(r * r, exp_tail(r), r), half, half - splat<V>((elem<V>)0.5));
    return select(x == 0, x, y + y);
}
template <class V> INLINE V sigmoid(V x) { return splat<V>(1) / (splat<V>(1) + exp((V)-x)); }
template <class V> INLINE V silu(V x) { return x / (splat<V>(1) + exp((V)-x)); }
template <class V> INLINE V tanh(V x) {
    const V t = expm1(abs(x) * splat<V>((elem<V>)-2));
    return copysign(-t / (t + splat<V>(2)), x);
}
template <class V> INLINE V gelu_tanh(V x) {  // Hendrycks and Gimpel, 2016
    const V u = splat<V>((elem<V>)0.7978845608028654) * fma(splat<V>((elem<V>)0.044715) * x * x, x, x);
    return splat<V>((elem<V>)0.5) * x * (splat<V>(1) + tanh(u));
}
template <class V> INLINE V sinh(V x) {
    if constexpr (same<elem<V>, float>) return by_double([](auto d) { return sinh(d); }, x);
    else {
        const V t = expm1(abs(x)), h = exp(abs(x) * splat<V>(0.5));
        const V small = splat<V>(0.5) * (t + t / (t + splat<V>(1))), large = splat<V>(0.5) * h * h;
        return copysign(select(abs(x) < splat<V>(40.0), small, large), x);
    }
}
template <class V> INLINE V cosh(V x) {
    if constexpr (same<elem<V>, float>) return by_double([](auto d) { return cosh(d); }, x);
    else {
        const V h = exp(abs(x) * splat<V>(0.5));
        return splat<V>(0.5) * h * h + splat<V>(0.5) / h / h;
    }
}
