// needs: exp log
// pow: x**y by exp(y * log|x|) in double, with the special cases of C99 (annex F.9.4.4). Above 1e-15 * |y * log x| it is not exact.

template <class V> INLINE V pow_double(V x, V y) {
    const V a = abs(x), half = y * splat<V>(0.5);
    const auto whole = y == rint(y), odd = whole & (half != rint(half));
    const V size = exp((V)(y * log(a)));
    V z = select((x < 0) & !whole, splat<V>(__builtin_nan("")), select(odd, copysign(size, x), size));
    z = select((x < 0) & (a == splat<V>(__builtin_inf())) & !whole, size, z);
    z = select((a == splat<V>(1)) & (abs(y) == splat<V>(__builtin_inf())), splat<V>(1), z);
    z = select((x != x) | (y != y), x + y, z);
    return select((y == 0) | (x == splat<V>(1)), splat<V>(1), z);
}
template <class V> INLINE V pow(V x, V y) {
    return by_double([](auto a, auto b) { return pow_double(a, b); }, x, y);
}
