// arith: arithmetic of floats and integers, rounding, comparison by sign; scalars and vectors. Integers wrap.

template <class V> INLINE V abs(V x) {
    if constexpr (is_float<V>) return bitcast<V>(bitcast<uints<V>>(x) & (elem<uints<V>>)(~(elem<uints<V>>)0 >> 1));
    else if constexpr (!is_signed<V>) return x;
    else return select(x < 0, (V)-x, x);
}
template <class V> INLINE V copysign(V size, V sign) {
    typedef uints<V> U;
    constexpr elem<U> rest = (elem<U>)(~(elem<U>)0 >> 1);
    return bitcast<V>((bitcast<U>(size) & rest) | (bitcast<U>(sign) & (elem<U>)~rest));
}
template <class V> INLINE V sign(V x) {  // NaN gives 0
    return select(x > 0, splat<V>(1), select(x < 0, splat<V>((elem<V>)-1), splat<V>(0)));
}
// a > b ? a : b and a < b ? a : b, which give b where either is NaN: one instruction on x86, where compilers may not see it.
#if defined(__x86_64__) && !defined(__clang__)
#define EXTREME(NAME, SIGN)                                                                                              \
    template <class V> INLINE V NAME(V a, V b) {                                                                         \
        constexpr int bytes = sizeof(V);                                                                                 \
        if constexpr (same<V, vec<float, 4>>) return EXTREME_PS(NAME)(a, b);                                             \
        else if constexpr (same<V, vec<double, 2>>) return EXTREME_PD(NAME)(a, b);                                       \
        EXTREME_WIDE(NAME)                                                                                               \
        else return select(a SIGN b, a, b);                                                                              \
    }
#define EXTREME_PS(NAME) NAME##_ps
#define EXTREME_PD(NAME) NAME##_pd
#define larger_ps __builtin_ia32_maxps
#define larger_pd __builtin_ia32_maxpd
#define smaller_ps __builtin_ia32_minps
#define smaller_pd __builtin_ia32_minpd
#define larger_ps256 __builtin_ia32_maxps256
#define larger_pd256 __builtin_ia32_maxpd256
#define smaller_ps256 __builtin_ia32_minps256
#define smaller_pd256 __builtin_ia32_minpd256
#define larger_ps512(a, b) __builtin_ia32_maxps512_mask(a, b, a, -1, 4)
#define larger_pd512(a, b) __builtin_ia32_maxpd512_mask(a, b, a, -1, 4)
#define smaller_ps512(a, b) __builtin_ia32_minps512_mask(a, b, a, -1, 4)
#define smaller_pd512(a, b) __builtin_ia32_minpd512_mask(a, b, a, -1, 4)
#if defined(__AVX512F__)
#define EXTREME_WIDE(NAME)                                                                                               \
        else if constexpr (same<V, vec<float, 8>>) return NAME##_ps256(a, b);                                            \
        else if constexpr (same<V, vec<double, 4>>) return NAME##_pd256(a, b);                                           \
        else if constexpr (same<V, vec<float, 16>>) return NAME##_ps512(a, b);                                           \
        else if constexpr (same<V, vec<double, 8>>) return NAME##_pd512(a, b);
#elif defined(__AVX__)
#define EXTREME_WIDE(NAME)                                                                                               \
        else if constexpr (same<V, vec<float, 8>>) return NAME##_ps256(a, b);                                            \
        else if constexpr (same<V, vec<double, 4>>) return NAME##_pd256(a, b);
#else
#define EXTREME_WIDE(NAME)
#endif
EXTREME(larger, >)
EXTREME(smaller, <)
#else
template <class V> INLINE V larger(V a, V b) { return select(a > b, a, b); }
template <class V> INLINE V smaller(V a, V b) { return select(a < b, a, b); }
#endif
template <class V> INLINE V maximum(V a, V b) {  // NaN if either is
    if constexpr (is_float<V>) return select(a != a, a, larger(a, b));
    else return select(a > b, a, b);
}
template <class V> INLINE V minimum(V a, V b) {
    if constexpr (is_float<V>) return select(a != a, a, smaller(a, b));
    else return select(a < b, a, b);
}
template <class V> INLINE V relu(V x) { return larger(splat<V>(0), x); }  // NaN stays
template <class V> INLINE V clip(V x, V low, V high) { return smaller(high, larger(low, x)); }  // NaN stays

// Keep a product from becoming part of an FMA: each operation rounds, as in the reference.
template <class V> INLINE V rounded(V x) {
#if defined(__x86_64__)
    __asm__("" : "+x"(x));
#else
    __asm__("" : "+w"(x));
#endif
    return x;
}

// ── to whole numbers; the sign of zero stays ──

template <class V> INLINE V rint(V x) {  // half to even: adding 2**23 (2**52) leaves no bits for a fraction
    if constexpr (!is_float<V>) return x;
#if defined(__SSE4_1__) || defined(__aarch64__)
    else if constexpr (same<V, float>) return __builtin_rintf(x);
    else if constexpr (same<V, double>) return __builtin_rint(x);
#endif
#if defined(__AVX2__) && !defined(__clang__)
    else if constexpr (same<V, vec<float, 8>>) return __builtin_ia32_roundps256(x, 8);
    else if constexpr (same<V, vec<double, 4>>) return __builtin_ia32_roundpd256(x, 8);
#endif
#if defined(__AVX512F__) && !defined(__clang__)
    else if constexpr (same<V, vec<float, 16>>) return __builtin_ia32_rndscaleps_mask(x, 8, x, -1, 4);
    else if constexpr (same<V, vec<double, 8>>) return __builtin_ia32_rndscalepd_mask(x, 8, x, -1, 4);
#endif
    else {
        constexpr elem<V> magic = sizeof(elem<V>) == 4 ? (elem<V>)0x1p23 : (elem<V>)0x1p52;
        const V size = abs(x), whole = (size + splat<V>(magic)) - splat<V>(magic);
        return copysign(select(size < splat<V>(magic), whole, size), x);
    }
}
template <class V> INLINE V floor(V x) {
    if constexpr (!is_float<V>) return x;
    else {
        const V near = rint(x);
        return copysign(select(near > x, near - splat<V>(1), near), x);
    }
}
template <class V> INLINE V ceil(V x) {
    if constexpr (!is_float<V>) return x;
    else return -floor((V)-x);
}
template <class V> INLINE V trunc(V x) {
    if constexpr (!is_float<V>) return x;
    else return copysign(floor(abs(x)), x);
}
template <class V> INLINE V round_to(V x, elem<V> scale, bool up) {  // to decimals: scale is a power of ten
    return up ? rint(x * splat<V>(scale)) / splat<V>(scale) : rint(x / splat<V>(scale)) * splat<V>(scale);
}

// ── roots ──

template <class V> INLINE V sqrt(V x) {
    typedef elem<V> T;
    constexpr int N = lanes<V>;
    if constexpr (N == 1 && sizeof(T) == 4) return __builtin_sqrtf(x);
    else if constexpr (N == 1) return __builtin_sqrt(x);
#if defined(__clang__) && __has_builtin(__builtin_elementwise_sqrt)
    else return __builtin_elementwise_sqrt(x);
#else
#if defined(__x86_64__) && !defined(__clang__)
#if defined(__AVX512F__)
    else if constexpr (sizeof(T) == 4 && N == 16) return __builtin_ia32_sqrtps512_mask(x, x, -1, 4);
    else if constexpr (sizeof(T) == 8 && N == 8) return __builtin_ia32_sqrtpd512_mask(x, x, -1, 4);
#endif
#if defined(__AVX__)
    else if constexpr (sizeof(T) == 4 && N == 8) return __builtin_ia32_sqrtps256(x);
    else if constexpr (sizeof(T) == 8 && N == 4) return __builtin_ia32_sqrtpd256(x);
#endif
    else if constexpr (sizeof(T) == 4 && N == 4) return __builtin_ia32_sqrtps(x);
    else if constexpr (sizeof(T) == 8 && N == 2) return __builtin_ia32_sqrtpd(x);
#endif
    else return lanewise([](T a) { return (T)(sizeof(T) == 4 ? __builtin_sqrtf(a) : __builtin_sqrt(a)); }, x);
#endif
}
template <class V> INLINE V rsqrt(V x) { return splat<V>(1) / sqrt(x); }
template <class V> INLINE V reciprocal(V x) { return splat<V>(1) / x; }

// ── multiply and add: one rounding where the machine has the instruction ──

template <class V> INLINE V fma(V a, V b, V c) { return a * b + c; }
template <class V> INLINE V poly(V x, V sum) { return sum; }
template <class V, class... C> INLINE V poly(V x, V sum, double c, C... rest) {
    return poly(x, fma(sum, x, splat<V>((elem<V>)c)), rest...);
}
template <class V, class... C> INLINE V horner(V x, double c, C... rest) {  // coefficients from the highest power
    return poly(x, splat<V>((elem<V>)c), rest...);
}
// The same of an even number of coefficients in two sums, of even and of odd powers: half as long a way for a little more work, where many of
// these wait for each other.
template <class V> INLINE V two_sums(V x, V z, V odd, V even) { return fma(odd, x, even); }
template <class V, class... C> INLINE V two_sums(V x, V z, V odd, V even, double a, double b, C... rest) {
    return two_sums(x, z, fma(odd, z, splat<V>((elem<V>)a)), fma(even, z, splat<V>((elem<V>)b)), rest...);
}
template <class V, class... C> INLINE V horner2(V x, double a, double b, C... rest) {
    static_assert(sizeof...(rest) % 2 == 0, "as many odd powers as even ones");
    return two_sums(x, (V)(x * x), splat<V>((elem<V>)a), splat<V>((elem<V>)b), rest...);
}
// A function of doubles for floats: by halves of the vector, rounded once.
template <class V, class F> INLINE V by_double(F f, V x) {
    if constexpr (same<elem<V>, double>) return f(x);
    else if constexpr (lanes<V> <= 2) return raw<float>(f(raw<double>(x)));
    else {
        auto h = bitcast<halves<V>>(x);
        h.low = raw<float>(f(raw<double>(h.low)));
        h.high = raw<float>(f(raw<double>(h.high)));
        return bitcast<V>(h);
    }
}
template <class V, class F> INLINE V by_double(F f, V x, V y) {
    if constexpr (same<elem<V>, double>) return f(x, y);
    else if constexpr (lanes<V> <= 2) return raw<float>(f(raw<double>(x), raw<double>(y)));
    else {
        auto h = bitcast<halves<V>>(x), g = bitcast<halves<V>>(y);
        h.low = raw<float>(f(raw<double>(h.low), raw<double>(g.low)));
        h.high = raw<float>(f(raw<double>(h.high), raw<double>(g.high)));
        return bitcast<V>(h);
    }
}
template <class V> INLINE V two_to(ints<V> k) {  // 2**k of normal numbers
    constexpr int fraction = sizeof(elem<V>) == 4 ? 23 : 52, bias = sizeof(elem<V>) == 4 ? 127 : 1023;
    return bitcast<V>((k + bias) << fraction);
}
