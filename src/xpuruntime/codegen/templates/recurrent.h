// needs: exp softplus
// recurrent: the gate products of a recurrent layer.

// Dot product of a row and a vector: vectors, then the tail. The order is fixed, so equal inputs give equal bits.
template <int N, class S, class A> INLINE A dot(const S *row, const A *x, int64_t n) {
    vec<A, N> lanes_sum = splat<vec<A, N>>(0);
    int64_t k = 0;
    for (; k + N <= n; k += N) lanes_sum += load<N>(row + k) * load<N>(x + k);
    A sum = sum_across(lanes_sum);
    for (; k < n; ++k) sum += load<1>(row + k) * x[k];
    return sum;
}

// gates[g] += rows of w by x + bias
template <int N, class S, class A> INLINE void add_product(A *gates, const S *w, const S *bias, const A *x, int64_t rows, int64_t n) {
    for (int64_t g = 0; g < rows; ++g) gates[g] += dot<N>(w + g * n, x, n) + (bias ? load<1>(bias + g) : 0);
}
