// needs: math
// narrow: functions for results of 16-bit type S (bf16 or f16). They take one or two special function unit (SFU) instructions, where
// full float precision takes tens of instructions. Their own error (narrow_functions of the tests holds it against the exact value, at every
// number of 16 bits) is below an eighth of the rounding error of S for every normal result. NaN, infinity and signed zeros follow
// PyTorch.
//
// SFU instructions flush float subnormals to zero, and tails in bf16 come close to those. So decaying results are computed scaled by 2**16,
// and the final product removes the factor.

// The binary logarithm of the normal distribution's tail at t from 0 to 16, by Remez's algorithm for the least error of the tail, relative to
// its size, up to where gelu's result is no number of S any more: 1.4e-4 for bf16 (t up to 13.3), 4e-6 for f16 (up to 5.75). Beyond, it falls on.
template <class S> INLINE float log_of_tail(float t) {
    if constexpr (same<S, bf16>) {
        float p = 2.646874186e-08f;
        p = p * t - 1.697216703e-06f;
        p = p * t + 4.687617184e-05f;
        p = p * t - 7.365943748e-04f;
        p = p * t + 7.377543487e-03f;
        p = p * t - 5.067773536e-02f;
        p = p * t - 4.629623592e-01f;
        p = p * t - 1.148940325e+00f;
        return p * t + (16 - 1.000192404e+00f);
    } else {
        float p = -1.825478762e-06f;
        p = p * t + 6.143982318e-05f;
        p = p * t - 9.294875199e-04f;
        p = p * t + 8.504598401e-03f;
        p = p * t - 5.395485088e-02f;
        p = p * t - 4.584681988e-01f;
        p = p * t - 1.151250005e+00f;
        return p * t + (16 - 9.999953508e-01f);
    }
}
template <class S> INLINE float gelu_narrow(float x) {
    const float t = -quick_larger(-abs(x), -16.0f), tail = quick_power_of_two(log_of_tail<S>(t));
    return x * 0x1p-16f * (x > 0 ? 0x1p16f - tail : tail);
}

// 2**-16 / (2**-16 + 2**(z - 16)): the logistic function of -z ln 2, 2**16 times too large.
INLINE float logistic_large(float z) { return quick_reciprocal(0x1p-16f + quick_power_of_two(z - 16.0f)); }

template <class S> INLINE float sigmoid_narrow(float x) { return 0x1p-16f * logistic_large(x * -1.4426950408889634f); }
template <class S> INLINE float silu_narrow(float x) { return x * 0x1p-16f * logistic_large(x * -1.4426950408889634f); }
template <class S> INLINE float gelu_tanh_narrow(float x) {
    return x * 0x1p-16f * logistic_large(x * (-2.302208198f - 0.1029432397f * (x * x)));  // 2 sqrt(2 / pi) / ln 2, and 0.044715 of it
}
