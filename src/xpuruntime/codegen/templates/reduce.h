// needs: arith
// reduce: combine functions of reductions, their neutral elements, and inactive lanes.

struct sum_of { template <class V> INLINE_MEMBER V operator()(V a, V b) const { return a + b; } };
struct prod_of { template <class V> INLINE_MEMBER V operator()(V a, V b) const { return a * b; } };
struct amax_of { template <class V> INLINE_MEMBER V operator()(V a, V b) const { return maximum(a, b); } };
struct amin_of { template <class V> INLINE_MEMBER V operator()(V a, V b) const { return minimum(a, b); } };
struct top_of { template <class V> INLINE_MEMBER V operator()(V a, V b) const { return larger(a, b); } };  // NaN may get lost
struct any_of { template <class V> INLINE_MEMBER V operator()(V a, V b) const { return a | b; } };
struct all_of { template <class V> INLINE_MEMBER V operator()(V a, V b) const { return a & b; } };

// The first n lanes of v, and a neutral value in the others; without n all of v.
template <class V> INLINE V only(V v, V neutral) { return v; }
template <class V> INLINE V only(V v, V neutral, int64_t n) {
    if constexpr (lanes<V> == 1) return v;
    else {
        ints<V> at;
        for (int i = 0; i < lanes<V>; ++i) at[i] = (elem<ints<V>>)i;
        return select(at < splat<ints<V>>((elem<ints<V>>)n), v, neutral);
    }
}
// Accumulators of a loop that was unrolled, and their lanes, to one value; the order is always the same.
template <class V, class F> INLINE elem<V> gathered(const V (&a)[4], F f) { return across(f(f(a[0], a[1]), f(a[2], a[3])), f); }

// f(0), f(1) ... f(U - 1), each inlined, so that arrays indexed by its argument live in registers.
template <int U> struct width { static constexpr int value = U; };
template <int U, class F> INLINE void repeat(F f) {
    if constexpr (U > 1) repeat<U - 1>(f);
    f(U - 1);
}

// from, from + step, from + 2 * step ...
template <int N, class T> INLINE vec<T, N> iota(T from, T step) {
    if constexpr (N == 1) return from;
    else {
        vec<T, N> at;
        for (int i = 0; i < N; ++i) at[i] = (T)i;
        return at * step + from;
    }
}
