// needs: exp log
// inverse: inverses of the hyperbolic functions, by log1p. All in double.

template <class V> INLINE V asinh(V x) {
    return by_double([](auto d) {
        typedef decltype(d) D;
        const D a = abs(d), q = a * a;
        const D y = select(a > 1e150, (D)(log(a) + 0.6931471805599453), log1p((D)(a + q / (1.0 + sqrt((D)(q + 1.0))))));
        return copysign(y, d);
    }, x);
}
template <class V> INLINE V acosh(V x) {
    return by_double([](auto d) {
        typedef decltype(d) D;
        const D t = d - 1.0;
        const D y = log1p((D)(t + sqrt((D)(t + t + t * t))));
        return select(d < 1.0, splat<D>(__builtin_nan("")), select(d > 1e150, (D)(log(d) + 0.6931471805599453), y));
    }, x);
}
template <class V> INLINE V atanh(V x) {
    return by_double([](auto d) {
        typedef decltype(d) D;
        const D a = abs(d);
        return copysign((D)(log1p((D)(2.0 * a / (1.0 - a))) * 0.5), d);
    }, x);
}
