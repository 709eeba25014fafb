// needs: exp softplus
// recurrent: what every step of a recurrent layer does with its gates.

// A row of a matrix with a vector, in lanes and then the rest: a fixed order, so equal inputs give equal bits.
template <int N, class S, class A> INLINE A dot(const S *row, const A *x, int64_t n) {
    vec<A, N> lanes_sum = splat<vec<A, N>>(0);
    int64_t k = 0;
    for (; k + N <= n; k += N) lanes_sum += load<N>(row + k) * load<N>(x + k);
    A total = sum_across(lanes_sum);
    for (; k < n; ++k) total += load<1>(row + k) * x[k];
    return total;
}

// gates[g] += rows of w by x + bias
template <int N, class S, class A> INLINE void add_product(A *gates, const S *w, const S *bias, const A *x, int64_t rows, int64_t n) {
    for (int64_t g = 0; g < rows; ++g) gates[g] += dot<N>(w + g * n, x, n) + (bias ? load<1>(bias + g) : 0);
}
