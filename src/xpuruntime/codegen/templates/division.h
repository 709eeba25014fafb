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
INLINE double remainder_one(double x, double y) {
    const double r = fmod_one(x, y);
    if (r == 0) return copysign(0.0, y);
    return (r < 0) != (y < 0) ? r + y : r;
}
template <class T> INLINE T floor_divide_one(T a, T b) {  // NumPy's: floor of the exact quotient
    if (b == 0) return a / b;
    const T r = (T)fmod_one(a, b);
    if (r != r) return r;
    T q = (a - r) / b;
    if (r != 0 && ((b < 0) != (r < 0))) q -= 1;
    if (q == 0) return copysign((T)0, a / b);
    T whole = floor(q);
    if (q - whole > (T)0.5) whole += 1;
    return whole;
}

template <class V> INLINE V div_trunc(V a, V b) {
    if constexpr (is_float<V>) return trunc(a / b);
    else return lanewise([](elem<V> x, elem<V> y) { return quotient_trunc(x, y); }, a, b);
}
template <class V> INLINE V div_floor(V a, V b) {
    typedef elem<V> T;
    if constexpr (is_float<V>) return lanewise([](T x, T y) { return floor_divide_one(x, y); }, a, b);
    else return lanewise([](T x, T y) { return quotient_floor(x, y); }, a, b);
}
template <class V> INLINE V fmod(V a, V b) {  // the sign of a
    typedef elem<V> T;
    if constexpr (is_float<V>) return lanewise([](T x, T y) { return (T)fmod_one(x, y); }, a, b);
    else return lanewise([](T x, T y) { return y == 0 ? (T)0 : (T)(x - quotient_trunc(x, y) * y); }, a, b);
}
template <class V> INLINE V remainder(V a, V b) {  // the sign of b
    typedef elem<V> T;
    if constexpr (is_float<V>) return lanewise([](T x, T y) { return (T)remainder_one(x, y); }, a, b);
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
