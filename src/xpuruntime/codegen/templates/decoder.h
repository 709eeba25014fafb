// needs: arith gemm
// Layers of decoders with few rows: the norm before a product, and products whose weights are codes of four or eight bits.

// RMS norm of the rows that a product of few rows reads: contiguous, in the product's operand type.
template <class T, class S, class A>
static void normed_rows(const S *x, int64_t row_stride, const S *scale, int64_t rows, int64_t k, T eps, A *to) {
    constexpr int L = GEMM_LANES<T>;
    typedef gemm_vec<T> V;
    for (int64_t r = 0; r < rows; ++r, x += row_stride, to += k) {
        V sum[4] = {};
        int64_t j = 0;
        for (; j + 4 * L <= k; j += 4 * L)
            GEMM_UNROLL for (int u = 0; u < 4; ++u) {
                const V v = raw<T>(load<L>(x + j + u * L));
                sum[u] += v * v;
            }
        for (; j < k; j += L) {
            const V v = gemm_load<T>(x + j, k - j < L ? k - j : L);
            sum[0] += v * v;
        }
        const T root = 1 / sqrt(sum_across((sum[0] + sum[1]) + (sum[2] + sum[3])) / (T)k + eps);
        for (j = 0; j < k; j += L) {
            const int64_t n = k - j < L ? k - j : L;
            gemm_store<T>(to + j, gemm_load<T>(x + j, n) * splat<V>(root) * gemm_load<T>(scale + j, n), n);
        }
    }
}

// Numbers whose bytes are in separate arrays, NR columns apart. Compilers widen bytes well to 16 bits and those to 32, not at once.
template <int L> INLINE vec<uint16_t, L> two_bytes(const uint8_t *low, const uint8_t *high) {
    return raw<uint16_t>(load<L>(low)) | raw<uint16_t>(load<L>(high)) << 8;
}
template <int L, int NR> INLINE vec<float, L> four_bytes(const uint8_t *at) {
    return bitcast<vec<float, L>>(raw<uint32_t>(two_bytes<L>(at, at + NR)) | raw<uint32_t>(two_bytes<L>(at + 2 * NR, at + 3 * NR)) << 16);
}

// Scale and low of a group, of L columns: pairs of bfloat16 (low bytes first, then high ones), float16 or float32; or float16 factors of the scale.
template <int L> struct GroupNumbers { vec<float, L> scale, low; };
struct Bfloat16Pair {
    static constexpr int BYTES = 4;
    template <int L, int NR> INLINE GroupNumbers<L> read(const uint8_t *at) {
        typedef vec<float, L> V;
        return {bitcast<V>(raw<uint32_t>(two_bytes<L>(at, at + 2 * NR)) << 16), bitcast<V>(raw<uint32_t>(two_bytes<L>(at + NR, at + 3 * NR)) << 16)};
    }
};
struct Float16Pair {
    static constexpr int BYTES = 4;
    template <int L, int NR> INLINE GroupNumbers<L> read(const uint8_t *at) {
        return {widen_f16<L>(two_bytes<L>(at, at + NR)), widen_f16<L>(two_bytes<L>(at + 2 * NR, at + 3 * NR))};
    }
};
struct Float16Product {
    static constexpr int BYTES = 4;
    template <int L, int NR> INLINE GroupNumbers<L> read(const uint8_t *at) {
        return {widen_f16<L>(two_bytes<L>(at, at + NR)) * widen_f16<L>(two_bytes<L>(at + 2 * NR, at + 3 * NR)), vec<float, L>{}};
    }
};
struct Float32Pair {
    static constexpr int BYTES = 8;
    template <int L, int NR> INLINE GroupNumbers<L> read(const uint8_t *at) {
        return {four_bytes<L, NR>(at), four_bytes<L, NR>(at + 4 * NR)};
    }
};

// Codes of two steps of k, of L columns: of four bits (0 to 15) in pairs, the even step in the low half; of eight bits, signed, NR bytes apart.
template <int L> struct CodePair { vec<float, L> even, odd; };
template <int BITS, int L, int NR> INLINE CodePair<L> code_pair(const uint8_t *at) {
    if constexpr (BITS == 4) {
        const vec<int32_t, L> both = raw<int32_t>(raw<uint16_t>(load<L>(at)));
        return {raw<float>(both & 15), raw<float>(both >> 4)};
    } else {
        return {gemm_widened<float>(load<L>((const int8_t *)at)), gemm_widened<float>(load<L>((const int8_t *)at + NR))};
    }
}

// tile += a x panel, the panel's elements being codes of BITS bits that encode low + scale * code. Of each `group` steps of k, in bytes
// [group * BITS / 8 + N::BYTES][NV * L]: codes (code_pair), then the bytes of the group's numbers. So sums of codes are scaled once a group, and low is
// multiplied with the sum of the rows' elements. With S = 2, odd steps have sums of their own. S is that of a whole block of rows, also in its tail, so
// that a row has the same bits wherever it is.
template <class N, int BITS, class T, int R, int NV, int S>
__attribute__((noinline)) static void grouped_tile(const T *RESTRICT a, int64_t row_stride, const uint8_t *RESTRICT panel, int64_t groups,
                                                   int64_t group, T *RESTRICT tile) {
    constexpr int L = GEMM_LANES<T>, NR = NV * L;
    typedef vec<T, L> V;
    for (int64_t g = 0; g < groups; ++g) {
        V sum[S][R][NV];
        GEMM_UNROLL for (int s = 0; s < S; ++s)
            GEMM_UNROLL for (int r = 0; r < R; ++r)
                GEMM_UNROLL for (int v = 0; v < NV; ++v) sum[s][r][v] = V{};
        for (int64_t i = 0; i < group; i += 2) {
            GEMM_UNROLL for (int byte = 0; byte < NR; byte += 64) __builtin_prefetch((const char *)panel + 4096 + byte, 0, 2);
            GEMM_UNROLL for (int v = 0; v < NV; ++v) {
                const CodePair<L> codes = code_pair<BITS, L, NR>(panel + v * L);
                GEMM_UNROLL for (int r = 0; r < R; ++r) {
                    sum[0][r][v] += splat<V>(a[r * row_stride + i]) * codes.even;
                    sum[S - 1][r][v] += splat<V>(a[r * row_stride + i + 1]) * codes.odd;
                }
            }
            panel += NR * BITS / 4;
        }
        V a_sum[R];
        GEMM_UNROLL for (int r = 0; r < R; ++r) {
            V all = load<L>(a + r * row_stride);
            for (int64_t i = L; i < group; i += L) all += load<L>(a + r * row_stride + i);
            a_sum[r] = splat<V>(sum_across(all));
        }
        GEMM_UNROLL for (int v = 0; v < NV; ++v) {
            const GroupNumbers<L> numbers = N::template read<L, NR>(panel + v * L);
            GEMM_UNROLL for (int r = 0; r < R; ++r) {
                T *to = tile + (r * NV + v) * L;
                const V codes = S == 2 ? sum[0][r][v] + sum[S - 1][r][v] : sum[0][r][v];
                store<L>(to, load<L>(to) + (codes * numbers.scale + a_sum[r] * numbers.low));
            }
        }
        a += group;
        panel += N::BYTES * NR;
    }
}

// `rows` rows (of k contiguous elements, k a multiple of the group) times one panel. P: T, N, BITS, R, NV, tail, k, group, block (groups that
// are processed before the next rows). emit(sums, row) as gemm_block's.
template <class P, class Emit>
INLINE void grouped_block(const typename P::T *a, const uint8_t *panel, int64_t rows, typename P::T *sums, Emit emit) {
    typedef typename P::T T;
    constexpr int NR = P::NV * GEMM_LANES<T>, S = P::R <= 2 ? 2 : 1;  // few rows: each addition would wait for the last one
    for (int64_t i = 0; i < rows * NR; ++i) sums[i] = 0;
    constexpr int64_t all = P::k / P::group, bytes = (P::group * P::BITS / 8 + P::N::BYTES) * NR;
    for (int64_t g = 0; g < all; g += P::block) {
        const int64_t groups = all - g < P::block ? all - g : P::block;
        const uint8_t *codes = panel + g * bytes;
        int64_t row = 0;
        for (; row + P::R <= rows; row += P::R)
            grouped_tile<typename P::N, P::BITS, T, P::R, P::NV, S>(a + row * P::k + g * P::group, P::k, codes, groups, P::group, sums + row * NR);
        if constexpr (P::tail > 0)
            if (row < rows)
                grouped_tile<typename P::N, P::BITS, T, P::tail, P::NV, S>(a + row * P::k + g * P::group, P::k, codes, groups, P::group, sums + row * NR);
    }
    for (int64_t row = 0; row < rows; ++row) emit((const T *)sums + row * NR, row);
}
