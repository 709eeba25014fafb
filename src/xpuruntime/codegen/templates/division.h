// needs: arith
// division: whole quotients, remainders, whole powers and shifts, lane by lane. An integer divided by zero gives 0 (a kernel
// cannot raise an error), and the smallest integer over -1 wraps to itself.

template <class T> INLINE T quotient_trunc(T a, T b) {
    if (b == 0) return 0;
    if constexpr (is_signed<T>) if (b == (T)-1) return (T)-a;
    return (T)(a / b);
}
template <class T> INLINE T quotient_floor(T a, T b) {
    const T q = quotient_trunc(a, b);
    return b != 0 && (T)(q * b) != a && ((a < 0) != (b < 0)) ? (T)(q - 1) : q;
}
// Vectors of integers of up to 32 bits divide as floats of twice as many: floor and trunc of the rounded quotient are those of the exact one, which is a
// whole number or differs from one by at least 1 / b.
template <class V> constexpr bool DIVIDES_AS_FLOATS = !is_float<V> && lanes<V> > 1 && sizeof(elem<V>) <= 4;
template <class F, class V> INLINE V as_floats(F f, V a, V b) {
    typedef elem<V> T;
    if constexpr (sizeof(T) < 4) return raw<T>(raw<int32_t>(f(raw<float>(a), raw<float>(b))));
    else if constexpr (8 * lanes<V> > VECTOR_BYTES) {
        auto h = bitcast<halves<V>>(a), g = bitcast<halves<V>>(b);
        h.low = as_floats(f, h.low, g.low), h.high = as_floats(f, h.high, g.high);
        return bitcast<V>(h);
    } else if constexpr (is_signed<T>) return raw<T>(f(raw<double>(a), raw<double>(b)));
    else return raw<T>(raw<int64_t>(f(raw<double>(a), raw<double>(b))));
}
// Exact remainder of doubles: long division of the fractions.
INLINE double fmod_one(double x, double y) {
    const double infinity = __builtin_inf();
    double a = x < 0 ? -x : x, b = y < 0 ? -y : y;
    if (!(a < infinity) || b != b || b == 0) return __builtin_nan("");
    if (a < b) return x;
    uint64_t m = bitcast<uint64_t>(a), n = bitcast<uint64_t>(b);
    int64_t e = (int64_t)(m >> 52), f = (int64_t)(n >> 52);
    const uint64_t one = (uint64_t)1 << 52;
    m = e ? (m & (one - 1)) | one : (e = 1, m);
    n = f ? (n & (one - 1)) | one : (f = 1, n);
    for (; e > f; --e) {
        if (m >= n) m -= n;
        m <<= 1;
    }
    if (m >= n) m -= n;
    const int64_t k = f - 1075, half = k / 2;  // in two steps: neither overflows
    const double r = (double)m * two_to<double>(half) * two_to<double>(k - half);
    return x < 0 || (x == 0 && bitcast<int64_t>(x) < 0) ? -r : r;
}
// Bits of a whole quotient whose product with the divisor is exact in double: a float's has at most 52 bits, a double's is part of an FMA.
#if defined(__FMA__) || defined(__aarch64__)
template <class T> constexpr int QUOTIENT_BITS = 28;
#else
template <class T> constexpr int QUOTIENT_BITS = same<T, float> ? 28 : 0;
#endif
// The same in vectors, where quotients have at most BITS bits. The difference is exact, too; it is negative where the quotient was rounded up.
template <int BITS, class V> INLINE V fmod_near(V x, V y) {
    const V a = abs(x), b = abs(y), r = fma((V)-rint(a / b), b, a);
    const auto near = a < b * splat<V>((double)((int64_t)1 << BITS));
    const V y_near = copysign(select(a < b, a, select(r < 0, r + b, r)), x);
    if (__builtin_expect(every(near), 1)) return y_near;
    return lanewise([](double s, double t) { return fmod_one(s, t); }, x, y);
}
template <class V> INLINE V fmod(V a, V b) {  // the sign of a
    typedef elem<V> T;
    if constexpr (is_float<V>) return by_double([](auto x, auto y) { return fmod_near<QUOTIENT_BITS<T>>(x, y); }, a, b);
    else if constexpr (DIVIDES_AS_FLOATS<V>)
        return as_floats([](auto x, auto y) { return select(y == 0, decltype(x){}, x - trunc((decltype(x))(x / y)) * y); }, a, b);
    else return lanewise([](T x, T y) { return y == 0 ? (T)0 : (T)(x - quotient_trunc(x, y) * y); }, a, b);
}
template <class V> INLINE V whole_quotient(V q, V b) {  // the smallest integer of 32 bits over -1 wraps; so do shorter ones when they are stored
    return select(b == 0, V{}, select(b == -1, select(q == 0x1p31, -q, q), q));
}
template <class V> INLINE V floor_divide(V a, V b) {  // NumPy's: floor of the exact quotient
    const V r = fmod(a, b), fraction = (a - r) / b;
    const V q = select((r != 0) & ((b < 0) != (r < 0)), fraction - splat<V>(1), fraction), low = floor(q);
    const V whole = select(q - low > splat<V>((elem<V>)0.5), low + splat<V>(1), low);
    const V y = select(q == 0, copysign(splat<V>(0), (V)(a / b)), whole);
    return select(b == 0, a / b, select(r != r, r, y));
}

template <class V> INLINE V div_trunc(V a, V b) {
    if constexpr (is_float<V>) return trunc(a / b);
    else if constexpr (DIVIDES_AS_FLOATS<V>)
        return as_floats([](auto x, auto y) { return whole_quotient(trunc((decltype(x))(x / y)), y); }, a, b);
    else return lanewise([](elem<V> x, elem<V> y) { return quotient_trunc(x, y); }, a, b);
}
template <class V> INLINE V div_floor(V a, V b) {
    typedef elem<V> T;
    if constexpr (is_float<V>) return floor_divide(a, b);
    else if constexpr (DIVIDES_AS_FLOATS<V>)
        return as_floats([](auto x, auto y) { return whole_quotient(floor((decltype(x))(x / y)), y); }, a, b);
    else return lanewise([](T x, T y) { return quotient_floor(x, y); }, a, b);
}
template <class V> INLINE V remainder(V a, V b) {  // the sign of b
    typedef elem<V> T;
    if constexpr (is_float<V>) {
        const V r = fmod(a, b);
        return select(r == 0, copysign(splat<V>(0), b), select((r < 0) != (b < 0), r + b, r));
    } else if constexpr (DIVIDES_AS_FLOATS<V>)
        return as_floats([](auto x, auto y) { return select(y == 0, decltype(x){}, x - floor((decltype(x))(x / y)) * y); }, a, b);
    else return lanewise([](T x, T y) { return y == 0 ? (T)0 : (T)(x - quotient_floor(x, y) * y); }, a, b);
}
template <class T> INLINE T power_one(T x, T n) {  // of integers; a negative power is 0 unless x is 1 or -1
    if constexpr (is_signed<T>) if (n < 0) return x == 1 ? 1 : x == -1 ? (n & 1 ? -1 : 1) : 0;
    T y = 1;
    for (; n != 0; n = (T)(n >> 1)) {
        if (n & 1) y = (T)(y * x);
        x = (T)(x * x);
    }
    return y;
}
template <class V> INLINE V int_pow(V a, V b) {
    return lanewise([](elem<V> x, elem<V> n) { return power_one(x, n); }, a, b);
}
template <class V> INLINE V shift_left(V a, V b) {  // a shift outside of the type's bits leaves nothing
    typedef elem<V> T;
    constexpr int bits = sizeof(T) * 8;
    return lanewise([](T x, T s) { return (T)(s >= 0 && (uint64_t)s < bits ? (T)((uint64_t)x << s) : 0); }, a, b);
}
template <class V> INLINE V shift_right(V a, V b) {  // the sign moves in
    typedef elem<V> T;
    constexpr int bits = sizeof(T) * 8;
    return lanewise([](T x, T s) { return (T)(s >= 0 && (uint64_t)s < bits ? x >> s : x < 0 ? -1 : 0); }, a, b);
}
