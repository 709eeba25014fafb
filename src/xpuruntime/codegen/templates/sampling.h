// needs: arith
// sampling: positions of a grid's numbers and weights of their neighbors. In double: floor decides which neighbors they are.

// -1 and 1 are the centers of the border places, or (not aligned) their outer edges.
template <bool ALIGNED> INLINE double unnormalized(double g, double size) {
    return ALIGNED ? (g + 1) / 2 * (size - 1) : ((g + 1) * size - 1) / 2;
}

INLINE double reflected(double x, double low, double high) {
    const double span = high - low;
    if (span <= 0) return 0;
    const double away = abs(x - low);
    const double folded = away - floor(away / (2 * span)) * (2 * span);
    return (folded > span ? 2 * span - folded : folded) + low;
}

// PAD: 0 zeros (coordinate unchanged), 1 border, 2 reflection, as in grid_sample. NaN is the first place, as in PyTorch.
template <int PAD, bool ALIGNED> INLINE double padded(double x, double size) {
    if (PAD == 2) x = ALIGNED ? reflected(x, 0, size - 1) : reflected(x, -0.5, size - 0.5);
    return PAD == 0 ? x : x > 0 ? (x > size - 1 ? size - 1 : x) : 0;
}

INLINE double triangle(double distance) {
    const double share = 1 - abs(distance);
    return share < 0 ? 0 : share;
}

// The cubic convolution kernel (Keys, 1981) with a = -0.75.
INLINE double keys(double distance) {
    const double a = -0.75, d = abs(distance);
    if (d <= 1) return ((a + 2) * d - (a + 3)) * d * d + 1;
    if (d < 2) return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a;
    return d != d ? d : 0;
}
