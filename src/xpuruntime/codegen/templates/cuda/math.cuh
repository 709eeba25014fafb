// math: arithmetic and functions of one scalar. CUDA has most functions in full precision; this file defines those that it lacks or that differ
// in meaning. Integers wrap.

template <class V> INLINE V abs(V x) {
    if constexpr (is_float<V>) return bitcast<V>(bitcast<uints<V>>(x) & (uints<V>)(~(uints<V>)0 >> 1));
    else if constexpr (!is_signed<V>) return x;
    else return x < 0 ? (V)(-(uints<V>)x) : x;
}
template <class V> INLINE V sign(V x) { return x > 0 ? (V)1 : x < 0 ? (V)-1 : (V)0; }  // NaN gives 0
template <class V> INLINE V larger(V a, V b) { return a > b ? a : b; }                 // b where either is NaN
template <class V> INLINE V smaller(V a, V b) { return a < b ? a : b; }
template <class V> INLINE V maximum(V a, V b) {  // NaN if either is
    if constexpr (is_float<V>) return a != a ? a : larger(a, b);
    else return a > b ? a : b;
}
template <class V> INLINE V minimum(V a, V b) {
    if constexpr (is_float<V>) return a != a ? a : smaller(a, b);
    else return a < b ? a : b;
}
template <class V> INLINE V relu(V x) { return larger((V)0, x); }  // NaN stays
template <class V> INLINE V clip(V x, V low, V high) { return smaller(high, larger(low, x)); }

// Whole numbers are whole already.
#define WHOLE(NAME)                                      \
    template <class V> INLINE V NAME(V x) {              \
        static_assert(!is_float<V>, "CUDA has floats'"); \
        return x;                                        \
    }
WHOLE(rint) WHOLE(floor) WHOLE(ceil) WHOLE(trunc)
#undef WHOLE
template <class V> INLINE V round_to(V x, V scale, bool up) {  // to decimals: scale is a power of ten
    return up ? rint(x * scale) / scale : rint(x / scale) * scale;
}

template <class V> INLINE V reciprocal(V x) { return (V)1 / x; }
template <class V> INLINE V inverse_root(V x) { return (V)1 / sqrt(x); }
template <class V> INLINE V sigmoid(V x) { return (V)1 / ((V)1 + exp(-x)); }
template <class V> INLINE V silu(V x) { return x / ((V)1 + exp(-x)); }
// The special function unit's own: normal numbers only, others are flushed to zero.
INLINE float quick_power_of_two(float x) {  // within 2 units of the last place
#if defined(__CUDACC_RTC__)
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    const float y = exp2(x);
    return y < 0x1p-126f ? 0.0f : y;
#endif
}
INLINE float quick_reciprocal(float x) {  // within 1 unit of the last place
#if defined(__CUDACC_RTC__)
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    const float y = 1.0f / x;
    return y < 0x1p-126f && y > -0x1p-126f ? y * 0.0f : y;
#endif
}
INLINE float quick_larger(float a, float b) {  // the number where one is none
#if defined(__CUDACC_RTC__)
    float y;
    asm("max.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
#else
    return a > b || b != b ? a : b;
#endif
}

// gelu of one float. A normal result is within 10 units in the last place (by erfc: 90, since its argument is rounded), in two thirds of the
// time of erfc. The normal distribution's tail at t is s P(t s) exp(-t*t/2) with s = 1 / (1 + 0.36 t), after Abramowitz
// and Stegun, 7.1.26; P is fitted by Remez's algorithm for the least relative error up to t = 14: 2e-8. The power of two is split into
// 2**(f + k), and f includes the rounding error of t*t.
INLINE float gelu_single(float x) {
    const float t = -quick_larger(-abs(x), -13.27f), s = quick_reciprocal(1.0f + 0.36f * t), w = t * s;
    float p = -1.113558824e-06f;
    p = p * w + 3.437186706e-06f;
    p = p * w + 2.671191578e-05f;
    p = p * w - 7.517375343e-05f;
    p = p * w - 1.925257093e-04f;
    p = p * w - 7.177168154e-04f;
    p = p * w + 5.270460155e-03f;
    p = p * w + 2.755441330e-02f;
    p = p * w - 2.189416587e-01f;
    p = p * w + 5.000000000e-01f;
    const float square = t * t, lost = fma(t, t, -square), whole = fma(square, -7.213475108e-01f, 12583039.0f);  // 1.5 * 2**23 + 127 + k
    float f = fma(square, -7.213475108e-01f, 12583039.0f - whole);
    f = fma(square, -9.629815e-09f, f);
    f = fma(lost, -7.213475108e-01f, f);
    const float tail = p * s * quick_power_of_two(f) * bitcast<float>(bitcast<uint32_t>(whole) << 23);  // at t = 13.27 k is -127: zero
    return x * (x > 0 ? 1.0f - tail : tail);
}
template <class V> INLINE V gelu(V x) {  // erfc keeps the digits of small values below zero
    if constexpr (same<V, float>) return gelu_single(x);
    else return (V)0.5 * x * erfc(x * (V)-0.70710678118654752);
}
template <class V> INLINE V gelu_tanh(V x) {
    const V inner = (V)0.7978845608028654 * (x + (V)0.044715 * x * x * x);
    return x * sigmoid((V)2 * inner);
}

// Powers of floats in double: where the result is a whole number it is exact, as pow of integers must be.
INLINE float power(float x, float y) { return (float)pow((double)x, (double)y); }
INLINE double power(double x, double y) { return pow(x, y); }

// Names that CUDA has for something else, or for something less exact.
#define pow power
#define rsqrt inverse_root
#define remainder modulo

template <class V> INLINE V two_to(ints<V> k) {  // 2**k of normal numbers
    constexpr int fraction = sizeof(V) == 4 ? 23 : 52, bias = sizeof(V) == 4 ? 127 : 1023;
    return bitcast<V>((ints<V>)((k + bias) << fraction));
}
