// needs: exp log
// pow: x**y by squaring or by exp(y * log|x|), in double, with the special cases of C99 (annex F.9.4.4). Above 1e-15 * |y * log x| it is not exact.

// exp(y * log(x)) of a positive finite x. For results in float32, polynomials have the terms that it needs.
template <class S, class V> INLINE V power_near(V x, V y) {
    if constexpr (same<S, float>) {
        typedef ints<V> I;
        const V magic = splat<V>(0x1.8p52);  // adds a whole number to its low bits
        const I root = bitcast<I>(splat<V>(0.70710678118654752)), i = bitcast<I>(x), e = (i - root) >> 52;
        const V f = bitcast<V>((I)(i - (e << 52))) - splat<V>(1), s = f / (splat<V>(2) + f), z = s * s;
        const V tail = horner(z, 0.11666381476855774, 0.14275368181641562, 0.20000061292476209, 0.33333333276792554);
        const V log = fma(bitcast<V>((I)(e + bitcast<I>(magic))) - magic, splat<V>(0.6931471805599453), (s + s) * fma(z, tail, splat<V>(1)));
        const auto [r, k] = by_ln2(within(y * log, -160.0, 140.0));
        const V next = horner(r, 0.00019890990815546128, 0.0013933649994898347, 0.0083333109254930468, 0.04166646492529931,
                              0.16666666681623196, 0.50000000134658085);
        return (fma(r * r, next, r) + splat<V>(1)) * two_to<V>(k);
    } else return exp((V)(y * log(x)));
}

// a**y of a >= 0. Whole powers up to 64 by squaring: where the result is a whole number it is exact, as pow of integers must be.
template <class V, class M> INLINE V power_size(V a, V y, M whole) {
    V n = select(abs(y) <= splat<V>(64), abs(y), splat<V>(0)), product = splat<V>(1), square = a;
    for (int bit = 0; bit < 7; ++bit) {
        const V half = floor((V)(n * splat<V>(0.5)));
        product = select(n != half + half, product * square, product);
        square = square * square;
        n = half;
    }
    const V powered = select(y < 0, splat<V>(1) / product, product);
    const auto fits = whole & (abs(y) <= splat<V>(64)) & (product > 0) & (product < splat<V>(__builtin_inf()));
    return every(fits) ? powered : select(fits, powered, exp((V)(y * log(a))));
}
template <class S, class V> INLINE V pow_double(V x, V y) {
    if (every((x > 0) & (x < splat<V>(__builtin_inf())) & (y != rint(y)))) return power_near<S>(x, y);  // no special case
    const V a = abs(x), half = y * splat<V>(0.5);
    const auto whole = y == rint(y), odd = whole & (half != rint(half));
    const V size = power_size(a, y, whole);
    V z = select((x < 0) & !whole, splat<V>(__builtin_nan("")), select(odd, copysign(size, x), size));
    z = select((x < 0) & (a == splat<V>(__builtin_inf())) & !whole, size, z);
    z = select((a == splat<V>(1)) & (abs(y) == splat<V>(__builtin_inf())), splat<V>(1), z);
    z = select((x != x) | (y != y), x + y, z);
    return select((y == 0) | (x == splat<V>(1)), splat<V>(1), z);
}
template <class V> INLINE V pow(V x, V y) {
    return by_double([](auto a, auto b) { return pow_double<elem<V>>(a, b); }, x, y);
}
