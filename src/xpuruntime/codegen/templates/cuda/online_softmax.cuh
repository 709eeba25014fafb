// needs: reduce
// online_softmax: the maximum of a row and the sum of exp(x - maximum) in one pass over its elements.

INLINE float quick_exponential(float x) { return quick_power_of_two(x * 1.4426950408889634f); }
INLINE float quick_maximum(float a, float b) {  // NaN if either is
#if defined(__CUDACC_RTC__) && SM >= 80
    float y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
#else
    return maximum(a, b);
#endif
}

// Add N elements to the maximum and the sum of a thread.
template <int N> INLINE void softmax_add(const float (&x)[N], float &top, float &sum) {
    float now = top, more = 0;
#pragma unroll
    for (int u = 0; u < N; ++u) now = quick_maximum(now, x[u]);
    const float from = now == -__builtin_inff() ? 0.0f : now;  // exp(-inf - -inf) would be NaN
#pragma unroll
    for (int u = 0; u < N; ++u) more += quick_exponential(x[u] - from);
    sum = sum * quick_exponential(top - from) + more;
    top = now;
}
// Give every thread of a block the row's maximum and sum. A row of -inf has the sum NaN, as exp(-inf - -inf) is.
template <int WARPS> INLINE void softmax_join(float &top, float &sum, void *smem) {
    const float all = block_reduce<WARPS>(top, amax_of(), smem);
    sum = block_reduce<WARPS>(sum * quick_exponential(top - all), sum_of(), smem);
    top = all;
}
