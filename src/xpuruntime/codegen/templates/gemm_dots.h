// needs: gemm
// Products of few rows whose other side is read in place: dot products along k, and products of tiny matrices.

// R rows of A times C columns of B, both contiguous along k. A register sums GEMM_RUN products before its sum joins the total.
template <class T, int R, int C, class A, class B>
INLINE void gemm_dot_tile(const A *a, int64_t row_stride, const B *b, int64_t column_stride, int64_t k, T *sums, int64_t width, bool more) {
    constexpr int L = GEMM_LANES<T>;
    typedef vec<T, L> V;
    V total[R][C];
#define GEMM_EACH GEMM_UNROLL for (int r = 0; r < R; ++r) GEMM_UNROLL for (int c = 0; c < C; ++c)
#define GEMM_DOT_STEP(...)                                                                                \
    {                                                                                                     \
        V x[R];                                                                                           \
        GEMM_UNROLL for (int r = 0; r < R; ++r) x[r] = raw<T>(load<L>(a + r * row_stride + __VA_ARGS__)); \
        GEMM_UNROLL for (int c = 0; c < C; ++c) {                                                         \
            const V y = raw<T>(load<L>(b + c * column_stride + __VA_ARGS__));                             \
            GEMM_UNROLL for (int r = 0; r < R; ++r) sum[r][c] += x[r] * y;                                \
        }                                                                                                 \
    }
    GEMM_EACH total[r][c] = V{};
    const int64_t whole = k / L * L;
    int64_t i = 0;
    do {
        const int64_t end = whole - i < GEMM_RUN * L ? whole : i + GEMM_RUN * L;
        V sum[R][C];
        GEMM_EACH sum[r][c] = V{};
        for (; i < end; i += L) GEMM_DOT_STEP(i)
        if (end == whole && whole < k) GEMM_DOT_STEP(whole, k - whole)  // elements behind a row may be NaN
        GEMM_EACH total[r][c] += sum[r][c];
    } while (i < whole);
    GEMM_EACH {
        const T sum = sum_across(total[r][c]);
        T *to = sums + r * width + c;
        *to = more ? *to + sum : sum;
    }
#undef GEMM_DOT_STEP
#undef GEMM_EACH
}

// The rows of A times `columns` columns of B that are contiguous along k. P says how (see kernels/cpu/matmul/dots.py, which writes it):
//   T, A, B        types of the sums, of A and of B in storage
//   rows, C        rows of A, and columns of a tile
//   width          columns of a task
//   k, block       length of the sums, and how much of it is copied if A is strided along k
//   a_row, a_k     strides of A
//   b_k, b_n       strides of B
// emit(sums, row) as gemm_block's. scratch: sums, then A copied.
template <class P, class Emit>
INLINE void gemm_dots(const typename P::A *a, const typename P::B *b, int64_t columns, void *scratch, Emit emit) {
    typedef typename P::T T;
    T *sums = (T *)scratch, *copy = sums + P::rows * P::width;
    int64_t at = 0;
    do {  // once even when k is 0: the sums are zeros
        const int64_t k = P::k - at < P::block ? P::k - at : P::block;
        if constexpr (P::a_k != 1) gemm_widen(a + at * P::a_k, P::a_row, P::a_k, P::rows, k, copy);
        const auto tile = [&](int64_t j, auto count) {
            constexpr int C = decltype(count)::value;
            if constexpr (P::a_k != 1)
                gemm_dot_tile<T, P::rows, C>((const T *)copy, k, b + j * P::b_n + at, P::b_n, k, sums + j, P::width, at > 0);
            else
                gemm_dot_tile<T, P::rows, C>(a + at, P::a_row, b + j * P::b_n + at, P::b_n, k, sums + j, P::width, at > 0);
        };
        int64_t j = 0;
        for (; j + P::C <= columns; j += P::C) tile(j, gemm_rows<P::C>{});
        for (; j < columns; ++j) tile(j, gemm_rows<1>{});
        at += k;
    } while (at < P::k);
    for (int r = 0; r < P::rows; ++r) emit((const T *)sums + r * P::width, r);
}

// A product of tiny matrices, whose loops are unrolled.
template <class P, class Emit>
INLINE void gemm_tiny(const typename P::A *a, const typename P::B *b, int64_t, void *, Emit emit) {
    typedef typename P::T T;
    GEMM_UNROLL for (int r = 0; r < P::rows; ++r) {
        alignas(64) T sums[P::width] = {};
        GEMM_UNROLL for (int j = 0; j < P::columns; ++j)
            GEMM_UNROLL for (int i = 0; i < P::k; ++i)
                sums[j] += raw<T>(load<1>(a + r * P::a_row + i * P::a_k)) * raw<T>(load<1>(b + i * P::b_k + j * P::b_n));
        emit((const T *)sums, r);
    }
}
