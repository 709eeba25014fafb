// needs: gemm transpose
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

constexpr int GEMM_SQUARE = VECTOR_BYTES >= 32 ? 8 : 4;

// R rows of A times N vectors of Q columns of B, both contiguous along k. Lanes are columns: sums are those of gemm_tile with one accumulator for
// each, bit by bit. Lines of B are read by whole cache lines, because strides of powers of two map many lines to few cache sets.
// columns: how many there are; lanes beyond read the first.
template <class T, int R, int N>
INLINE void gemm_column_tile(const T *a, int64_t row_stride, const T *b, int64_t column_stride, int64_t columns, int64_t k, T *sums, int64_t width, bool more) {
    constexpr int LINE = 64 / sizeof(T), Q = GEMM_SQUARE;
    const auto line = [&](int c) __attribute__((always_inline)) { return b + (c < columns ? c : 0) * column_stride; };
    typedef vec<T, Q> V;
#define GEMM_EACH GEMM_UNROLL for (int r = 0; r < R; ++r) GEMM_UNROLL for (int v = 0; v < N; ++v)
    do {
        const int64_t whole = k < GEMM_GROUP ? k : GEMM_GROUP;
        V group[R][N];
        int64_t done = 0;
        do {
            const int64_t run = whole - done < GEMM_RUN ? whole - done : GEMM_RUN;
            V sum[R][N];
            GEMM_EACH sum[r][v] = V{};
            int64_t i = 0;
            for (; i + LINE <= run; i += LINE)
                GEMM_UNROLL for (int v = 0; v < N; ++v)
                    GEMM_UNROLL for (int at = 0; at < LINE; at += Q) {
                        V x[Q];
                        GEMM_UNROLL for (int l = 0; l < Q; ++l) x[l] = load<Q>(line(v * Q + l) + i + at);
                        transpose_square(x);
                        GEMM_UNROLL for (int w = 0; w < Q; ++w)
                            GEMM_UNROLL for (int r = 0; r < R; ++r) sum[r][v] += splat<V>(a[r * row_stride + i + at + w]) * x[w];
                    }
            for (; i < run; ++i)
                GEMM_UNROLL for (int v = 0; v < N; ++v) {
                    V x;
                    GEMM_UNROLL for (int l = 0; l < Q; ++l) x[l] = line(v * Q + l)[i];
                    GEMM_UNROLL for (int r = 0; r < R; ++r) sum[r][v] += splat<V>(a[r * row_stride + i]) * x;
                }
            GEMM_EACH group[r][v] = done ? sum[r][v] + group[r][v] : sum[r][v];
            done += run, a += run, b += run;
        } while (done < whole);
        GEMM_EACH {
            T *to = sums + r * width + v * Q;
            store<Q>(to, more ? group[r][v] + load<Q>(to) : group[r][v]);
        }
        more = true;
        k -= whole;
    } while (k > 0);
#undef GEMM_EACH
}

// The rows of A times `columns` columns of B that are contiguous along k. P says how (see kernels/cpu/matmul/dots.py, which writes it):
//   T, A, B        types of the sums, of A and of B in storage
//   rows, C        rows of A, and columns of a tile
//   by_columns     lanes are columns; else they run along k
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
        const auto tile_of = [&](auto rows, int64_t row_stride, int64_t j, auto count) {
            constexpr int C = decltype(count)::value;
            const auto *from = b + j * P::b_n + at;
            if constexpr (P::by_columns)
                gemm_column_tile<T, P::rows, C / GEMM_SQUARE>(
                    (const T *)rows, row_stride, (const T *)from, P::b_n, columns - j < C ? columns - j : C, k, sums + j, P::width, at > 0);
            else gemm_dot_tile<T, P::rows, C>(rows, row_stride, from, P::b_n, k, sums + j, P::width, at > 0);
        };
        const auto tile = [&](int64_t j, auto count) {
            if constexpr (P::a_k != 1) tile_of((const T *)copy, k, j, count);
            else tile_of(a + at, P::a_row, j, count);
        };
        constexpr int LAST = P::by_columns ? GEMM_SQUARE : 1;  // sums of columns beyond the last are not stored
        int64_t j = 0;
        for (; j + P::C <= columns; j += P::C) tile(j, gemm_rows<P::C>{});
        for (; j < columns; j += LAST) tile(j, gemm_rows<LAST>{});
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
