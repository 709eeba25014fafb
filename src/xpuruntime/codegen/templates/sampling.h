// needs: arith
// sampling: positions of a grid's numbers and weights of their neighbors, of one or of several positions. In double: floor decides which neighbors they are.

// -1 and 1 are the centers of the border places, or (not aligned) their outer edges.
template <bool ALIGNED, class V> INLINE V unnormalized(V g, double size) {
    return ALIGNED ? (V)((g + 1.0) / 2.0 * (size - 1)) : (V)(((g + 1.0) * size - 1.0) / 2.0);
}

template <class V> INLINE V reflected(V x, double low, double high) {
    const double span = high - low;
    if (span <= 0) return splat<V>(0);
    const V away = abs((V)(x - low));
    const V folded = away - floor((V)(away / (2 * span))) * (2 * span);
    return select(folded > span, (V)(2 * span - folded), folded) + low;
}

// PAD: 0 zeros (coordinate unchanged), 1 border, 2 reflection, as in grid_sample. NaN is the first place, as in PyTorch.
template <int PAD, bool ALIGNED, class V> INLINE V padded(V x, double size) {
    if (PAD == 2) x = ALIGNED ? reflected(x, 0, size - 1) : reflected(x, -0.5, size - 0.5);
    return PAD == 0 ? x : select(x > 0, select(x > size - 1, splat<V>(size - 1), x), splat<V>(0));
}

template <class V> INLINE V triangle(V distance) {
    const V share = 1.0 - abs(distance);
    return select(share < 0, splat<V>(0), share);
}

// The cubic convolution kernel (Keys, 1981) with a = -0.75.
template <class V> INLINE V keys(V distance) {
    const double a = -0.75;
    const V d = abs(distance);
    const V inner = (V)((V)((a + 2) * d - (a + 3)) * d * d + 1.0), outer = (V)((V)((V)(a * d - 5 * a) * d + 8 * a) * d - 4 * a);
    return select(d <= 1, inner, select(d < 2, outer, select(d != d, d, splat<V>(0))));
}
