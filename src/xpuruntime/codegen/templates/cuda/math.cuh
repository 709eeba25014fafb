// math: arithmetic and functions of one scalar. CUDA has the functions themselves (their full-precision forms); what is defined here is
// what it lacks, and what means something else there. Integers wrap.

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
template <class V> INLINE V gelu(V x) {  // erfc keeps the digits of small values below zero
    return (V)0.5 * x * erfc(x * (V)-0.70710678118654752);
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
