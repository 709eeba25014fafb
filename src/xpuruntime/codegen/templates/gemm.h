// Products of matrices: register tiles, packed panels, and the loop around them.
//
//   rows of A                   any strides, in the type of the sums (or bfloat16 pairs, see gemm_tile_pairs)
//   panel of B                  [k][NV * L]: NV vectors of L lanes; columns beyond the matrix are zeros
//   tile [R][NV * L]            sums, in registers over one block of k, in scratch between blocks
//
// A tile leaves the registers once per block of k (hundreds of FMAs for each store), so that one tile function serves
// every call of a program whatever its epilogue does. The scheme is that of Goto and van de Geijn, "Anatomy of
// high-performance matrix multiplication" (2008), with B's panel kept in the second-level cache.

#define GEMM_UNROLL _Pragma("GCC unroll 64")

template <class T> constexpr int GEMM_LANES = VECTOR_BYTES / sizeof(T);
template <class T> using gemm_vec = vec<T, GEMM_LANES<T>>;

// n of L elements of storage in the sums' type, and back.
template <class T, class S> INLINE gemm_vec<T> gemm_load(const S *p, int64_t n) {
    constexpr int L = GEMM_LANES<T>;
    return raw<T>(n == L ? load<L>(p) : load<L>(p, n));
}
template <class T, class S> INLINE void gemm_store(S *p, gemm_vec<T> x, int64_t n) {
    constexpr int L = GEMM_LANES<T>;
    const auto y = raw<typename storage_<S>::compute>(x);
    if (n == L) store<L>(p, y);
    else store<L>(p, y, n);
}

// B in the sums' type. Bytes go by way of 16 bits: compilers have instructions for each step, and take lanes one by one for all at once.
template <class T, class V> INLINE auto gemm_widened(V x) {
    if constexpr (sizeof(elem<V>) == 1) return raw<T>(raw<int32_t>(raw<int16_t>(x)));
    else return raw<T>(x);
}

// Codes of float8_e4m3fn, of which no NaN is stored: a row with one has a scale of NaN.
struct e4m3 { uint8_t bits; };

// L elements of a panel of B in the sums' type. e4m3 is converted by way of float16, whose exponent has one more bit and which has e4m3's subnormal numbers,
// too: sign, exponent and mantissa in its places are 1/256 of the number, and the epilogue multiplies sums with 256.
template <class T, int L, class B> INLINE vec<T, L> gemm_panel(const B *p) {
    if constexpr (same<B, e4m3>) {
        const vec<int16_t, L> high = raw<int16_t>(raw<uint16_t>(load<L>((const uint8_t *)p)) << 8);
        return raw<T>(widen_f16<L>(raw<uint16_t>(high >> 1) & 0xbf80u));
    } else {
        return gemm_widened<T>(load<L>(p));
    }
}

// Products that one register sums up before its sum joins that of a group, and those of a group before it joins the tile's: rounding errors
// grow with the root of a run's length and with the few joints, not with the root of k. Of random products, against one register from end to
// end: 0.31 of its error for k = 768, 0.16 for 3072; runs half as long, 0.25 and 0.13, would take a hundredth more time.
constexpr int64_t GEMM_RUN = 64, GEMM_GROUP = 8 * GEMM_RUN;
constexpr int64_t GEMM_PAIRS_RUN = 128;  // bfloat16: rounding of the operands is the larger error

// tile (+)= a x panel. Each of U steps of k has its own accumulators: with few rows that hides the FMA latency, and the
// panel, which is then read from memory, is prefetched. Steps and loops over sums are macros: sums handed to a function by reference
// would live in memory.
// STEP: elements from a row of the panel to the next, which are NV * L if it is packed.
template <class T, class B, int R, int NV, int U, int64_t STEP = NV * GEMM_LANES<T>>
__attribute__((noinline)) static void gemm_tile(
    const T *RESTRICT a, int64_t row_stride, int64_t k_stride, const B *RESTRICT panel, int64_t k, T *RESTRICT tile, bool more) {
    constexpr int L = GEMM_LANES<T>;
    typedef vec<T, L> V;
    alignas(64) T together[R * NV * L];  // a group's sums between its runs
#define GEMM_STEP(u)                                                                                                 \
    {                                                                                                                \
        V b[NV];                                                                                                     \
        if constexpr (U > 1)                                                                                         \
            for (int byte = 0; byte < (int)sizeof(B) * NV * L; byte += 64)                                           \
                __builtin_prefetch((const char *)panel + 8192 + byte, 0, 2);                                         \
        GEMM_UNROLL for (int v = 0; v < NV; ++v) b[v] = gemm_panel<T, L>(panel + v * L);                             \
        GEMM_UNROLL for (int r = 0; r < R; ++r) {                                                                    \
            const V x = splat<V>(a[r * row_stride]);                                                                 \
            GEMM_UNROLL for (int v = 0; v < NV; ++v) sum[u][r][v] += x * b[v];                                       \
        }                                                                                                            \
        a += k_stride;                                                                                               \
        panel += STEP;                                                                                               \
    }
#define GEMM_EACH GEMM_UNROLL for (int r = 0; r < R; ++r) GEMM_UNROLL for (int v = 0; v < NV; ++v)
    do {
        const int64_t group = k < U * GEMM_GROUP ? k : U * GEMM_GROUP;
        int64_t done = 0;
        do {
            const int64_t run = group - done < U * GEMM_RUN ? group - done : U * GEMM_RUN;
            V sum[U][R][NV];
            GEMM_UNROLL for (int u = 0; u < U; ++u) GEMM_EACH sum[u][r][v] = V{};
            int64_t i = 0;
            for (; i + U <= run; i += U) GEMM_UNROLL for (int u = 0; u < U; ++u) GEMM_STEP(u)
            if constexpr (U > 1)
                for (; i < run; ++i) GEMM_STEP(0)
            GEMM_UNROLL for (int u = 1; u < U; ++u) GEMM_EACH sum[0][r][v] += sum[u][r][v];
            if (done) GEMM_EACH sum[0][r][v] += load<L>(together + (r * NV + v) * L);
            done += run;
            const bool whole = done == group;
            if (whole && more) GEMM_EACH sum[0][r][v] += load<L>(tile + (r * NV + v) * L);
            T *to = whole ? tile : together;
            GEMM_EACH store<L>(to + (r * NV + v) * L, sum[0][r][v]);
        } while (done < group);
        more = true;
        k -= group;
    } while (k > 0);
#undef GEMM_STEP
#undef GEMM_EACH
}

#if defined(__AVX512BF16__)
INLINE uint32_t gemm_both(const bf16 *p) {
    uint32_t bits;
    __builtin_memcpy(&bits, p, 4);
    return bits;
}
INLINE uint32_t gemm_first(const bf16 *p) { return p->bits; }

// The same in bfloat16 by vdpbf16ps, two steps of k at once: rows have k stride 1, a panel is [k / 2][NV * L][2].
template <int R, int NV, int U>
__attribute__((noinline)) static void gemm_tile_pairs(
    const bf16 *RESTRICT a, int64_t row_stride, const bf16 *RESTRICT panel, int64_t k, float *RESTRICT tile, bool more) {
    constexpr int L = GEMM_LANES<float>;
    typedef vec<float, L> V;
#define GEMM_PAIR_STEP(u, pair)                                                                                   \
    {                                                                                                             \
        V b[NV];                                                                                                  \
        GEMM_UNROLL for (int v = 0; v < NV; ++v) b[v] = load<L>((const float *)panel + v * L);                    \
        GEMM_UNROLL for (int r = 0; r < R; ++r) {                                                                 \
            const V x = bitcast<V>(splat<vec<uint32_t, L>>(pair(a + r * row_stride)));                            \
            GEMM_UNROLL for (int v = 0; v < NV; ++v)                                                              \
                __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum[u][r][v]) : "v"(x), "v"(b[v]));                         \
        }                                                                                                         \
        a += 2;                                                                                                   \
        panel += 2 * NV * L;                                                                                      \
    }
    do {
        const int64_t run = k < 2 * U * GEMM_PAIRS_RUN ? k : 2 * U * GEMM_PAIRS_RUN;
        V sum[U][R][NV];
        GEMM_UNROLL for (int u = 0; u < U; ++u)
            GEMM_UNROLL for (int r = 0; r < R; ++r)
                GEMM_UNROLL for (int v = 0; v < NV; ++v) sum[u][r][v] = V{};
        int64_t i = 0;
        for (; i + 2 * U <= run; i += 2 * U) {
            GEMM_UNROLL for (int u = 0; u < U; ++u) {
                if constexpr (U > 1)
                    for (int byte = 0; byte < 4 * NV * L; byte += 64) __builtin_prefetch((const char *)panel + 8192 + byte, 0, 2);
                GEMM_PAIR_STEP(u, gemm_both)
            }
        }
        if constexpr (U > 1)
            for (; i + 2 <= run; i += 2) GEMM_PAIR_STEP(0, gemm_both)
        if (i < run) GEMM_PAIR_STEP(0, gemm_first)  // for an odd k: the element after the row may be a NaN
        GEMM_UNROLL for (int r = 0; r < R; ++r)
            GEMM_UNROLL for (int v = 0; v < NV; ++v) {
                float *to = tile + (r * NV + v) * L;
                GEMM_UNROLL for (int u = 1; u < U; ++u) sum[0][r][v] += sum[u][r][v];
                store<L>(to, more ? load<L>(to) + sum[0][r][v] : sum[0][r][v]);
            }
        more = true;
        k -= run;
    } while (k > 0);
#undef GEMM_PAIR_STEP
}
#endif

// ── packing of operands that are not constant weights ──

// k rows of n columns -> [k][NR], zeros beyond n; pairs: [k / 2][NR][2], a zero beyond an odd k.
template <class S, int NR>
static void gemm_pack(const S *b, int64_t k_stride, int64_t n_stride, int64_t k, int64_t n, bool pairs, S *to) {
    typedef typename bits_of_<S>::type Bits;
    const Bits *from = (const Bits *)b;
    Bits *out = (Bits *)to;
    constexpr int L = VECTOR_BYTES / (sizeof(S) < 4 ? 4 : sizeof(S));
    const int64_t across = pairs ? 2 : 1;
    int64_t i = 0;
    if constexpr (sizeof(S) == 2)
        if (n_stride == 1 && pairs && n == NR)  // two contiguous rows at once
            for (; i + 2 <= k; i += 2)
                GEMM_UNROLL for (int j = 0; j < NR; j += L) {
                    const auto even = raw<uint32_t>(load<L>(from + i * k_stride + j)), odd = raw<uint32_t>(load<L>(from + (i + 1) * k_stride + j));
                    store<L>((uint32_t *)(out + i * NR) + j, even | odd << 16);
                }
    for (; i < (pairs ? (k + 1) / 2 * 2 : k); ++i) {
        Bits *row = pairs ? out + i / 2 * 2 * NR + i % 2 : out + i * NR;
        const int64_t filled = i < k ? n : 0;
        if (n_stride == 1 && !pairs && filled == NR)
            GEMM_UNROLL for (int j = 0; j < NR; j += L) store<L>(row + j, load<L>(from + i * k_stride + j));
        else
            for (int64_t j = 0; j < filled; ++j) row[j * across] = from[i * k_stride + j * n_stride];
        for (int64_t j = filled; j < NR; ++j) row[j * across] = 0;
    }
}

// gemm_pack of columns that are contiguous along k, 16 rows at once, so that each cache line is read once. Returns the rows that it packed.
template <int NR, class S>
__attribute__((noinline)) static int64_t gemm_pack_columns(const S *b, int64_t n_stride, int64_t k, int64_t n, bool pairs, S *to) {
    typedef typename bits_of_<S>::type Bits;
    const Bits *from = (const Bits *)b;
    int64_t i = 0;
    for (; i + 16 <= k; i += 16)
        for (int64_t j = 0; j < NR; ++j) {
            Bits *column = (Bits *)to + i * NR + (pairs ? 2 * j : j);
            GEMM_UNROLL for (int64_t x = 0; x < 16; ++x)
                column[pairs ? x / 2 * 2 * NR + x % 2 : x * NR] = j < n ? from[i + x + j * n_stride] : Bits(0);
        }
    return i;
}

// Convert rows x k elements to the accumulator type, contiguous.
template <class T, class S>
static void gemm_widen(const S *a, int64_t row_stride, int64_t k_stride, int64_t rows, int64_t k, T *to) {
    constexpr int L = GEMM_LANES<T>;
    for (int64_t r = 0; r < rows; ++r) {
        const S *row = a + r * row_stride;
        int64_t i = 0;
        if (k_stride == 1)
            for (; i + L <= k; i += L) store<L>(to + r * k + i, raw<T>(load<L>(row + i)));
        for (; i < k; ++i) to[r * k + i] = raw<T>(load<1>(row + i * k_stride));
    }
}

// ── blocks ──

template <int R> struct gemm_rows { static constexpr int value = R; };

// Whether B is codes that a task turns into operands (gemm_dequantized.h), and the elements that tiles then read.
template <class B> constexpr bool gemm_dequantizes = false;
template <bool dequantizes, bool pairs, class B> struct gemm_operand_ { typedef B type; };
template <class B> struct gemm_operand_<true, true, B> { typedef bf16 type; };
template <class B> struct gemm_operand_<true, false, B> { typedef float type; };

// `rows` rows of one panel's columns. P says how (see kernels/cpu/matmul/gemm_text.py, which writes it):
//   T, A, B              types of the sums, of A and of B in storage
//   R, NV, U, tail       rows and vectors of a tile, unrolled steps, rows of the last tile (0: it is a whole one)
//   k, block             length of the sums, and how much of it is summed up in registers
//   a_row, a_k           strides of A
//   packed, b_k, b_n     B is in panels, as codes always are; else its strides
//   pairs                bfloat16 pairs
// emit(sums, row) gets the finished sums of a row, NV * L of them. scratch: sums, then A widened, then B packed or dequantized.
template <class P, class Emit>
INLINE void gemm_block(const typename P::A *a, const typename P::B *b, int64_t rows, int64_t columns, void *scratch, Emit emit) {
    typedef typename P::T T;
    constexpr int NR = P::NV * GEMM_LANES<T>;
    constexpr bool widen = !P::pairs && !same<typename P::A, T>;
    T *sums = (T *)scratch;
    T *wide = sums + rows * NR;
    constexpr bool dequantizes = gemm_dequantizes<typename P::B>;
    typedef typename gemm_operand_<dequantizes, P::pairs, typename P::B>::type B;
    B *const operand_b = (B *)(wide + (widen ? (rows * P::block + 15) / 16 * 16 : 0));
    int64_t at = 0;
    do {  // once even when k is 0: the sums are zeros
        const int64_t k = P::k - at < P::block ? P::k - at : P::block;
        const bool last = at + k == P::k;
        const bool in_place = !P::packed && !P::pairs && P::b_n == 1 && columns == NR && rows <= P::R;  // read once, so a copy is not repaid
        const B *panel = operand_b;
        if constexpr (dequantizes) {
            P::B::template dequantize<NR>(b, at, k, operand_b);
        } else if constexpr (P::packed) {
            panel = b + at * NR;
        } else if (in_place) {
            panel = b + at * P::b_k;
        } else {
            const B *from = b + at * P::b_k;
            int64_t done = 0;
            if constexpr (P::b_k == 1 && P::b_n != 1) done = gemm_pack_columns<NR>(from, P::b_n, k, columns, P::pairs, operand_b);
            gemm_pack<B, NR>(from + done * P::b_k, P::b_k, P::b_n, k - done, columns, P::pairs, operand_b + done * NR);
        }
        if constexpr (widen) gemm_widen(a + at * P::a_k, P::a_row, P::a_k, rows, k, wide);
        const auto tile = [&](int64_t row, auto count) {
            constexpr int R = decltype(count)::value;
            T *t = sums + row * NR;
#if defined(__AVX512BF16__)
            if constexpr (P::pairs)
                gemm_tile_pairs<R, P::NV, P::U>(a + row * P::a_row + at, P::a_row, panel, k, t, at > 0);
            else
#endif
            {
                const T *x;
                int64_t row_stride = P::a_row, k_stride = P::a_k;
                if constexpr (widen) x = wide + row * k, row_stride = k, k_stride = 1;
                else x = (const T *)a + row * P::a_row + at * P::a_k;
                if constexpr (!P::packed && P::b_n == 1)
                    if (in_place) gemm_tile<T, B, R, P::NV, P::U, P::b_k>(x, row_stride, k_stride, panel, k, t, at > 0);
                if (!in_place) gemm_tile<T, B, R, P::NV, P::U>(x, row_stride, k_stride, panel, k, t, at > 0);
            }
            if (last)
                for (int r = 0; r < R; ++r) emit((const T *)t + r * NR, row + r);
        };
        int64_t row = 0;
        for (; row + P::R <= rows; row += P::R) tile(row, gemm_rows<P::R>{});
        if constexpr (P::tail > 0)
            if (row < rows) tile(row, gemm_rows<P::tail>{});
        at += k;
    } while (at < P::k);
}
