// needs: exp log
// pow: x**y by squaring or by exp(y * log|x|), in double, with the special cases of C99 (annex F.9.4.4). Above 1e-15 * |y * log x| it is not exact.

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
template <class V> INLINE V pow_double(V x, V y) {
    if (every((x > 0) & (x < splat<V>(__builtin_inf())) & (y != rint(y)))) return exp((V)(y * log(x)));  // no special case
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
    return by_double([](auto a, auto b) { return pow_double(a, b); }, x, y);
}
