// needs: arith gemm decoder
// Products of codes: weights of four or eight bits in groups of inputs, times rows of 8-bit codes with a scale per row and group. Sums of a group
// are exact in int32; then they are scaled in float.
//
//   row     [k] codes, and GroupScale[groups]. For weights of four bits, each eight codes are in the order 0 2 4 6 1 3 5 7.
//   panel   of each group [group * BITS / 32 + N::WORDS][NV * L] words: codes (four bits: eight steps of k, the even ones in the low halves of the four
//           bytes; eight bits: four steps, signed), then the group's numbers. Columns and steps beyond the matrix have zeros.
//   N       the numbers of a group. SYMMETRIC: its codes have eight bits, from -127 to 127.

namespace codes {

constexpr int L = VECTOR_BYTES / 4;
typedef vec<int32_t, L> I;
typedef vec<float, L> F;

struct GroupScale {
    float scale, sum;  // of a code; of the group's values
    int32_t offset;    // minus 128 times the sum of the codes: corrects products with weights that are stored plus 128
};
static_assert(sizeof(GroupScale) == 12, "SCALE_BYTES of kernels/cpu/matmul/group_panels.py");

// Scale and low of a group, of L columns, `pitch` columns of the panel apart.
struct Numbers { F scale, low; };
struct Bfloat16Pair {  // low bytes first, then high ones
    static constexpr int WORDS = 1;
    static constexpr bool SYMMETRIC = false;
    static INLINE_MEMBER Numbers read(const uint8_t *at, int64_t) {
        const vec<uint32_t, L> w = bitcast<vec<uint32_t, L>>(load<L>((const int32_t *)at));
        return {bitcast<F>((w & 0xffu) << 16 | (w & 0xff0000u) << 8), bitcast<F>((w & 0xff00u) << 8 | (w & 0xff000000u))};
    }
};
INLINE F half_word(I w, int shift) { return widen_f16<L>(raw<uint16_t>(w >> shift & 0xffff)); }
struct Float16Pair {
    static constexpr int WORDS = 1;
    static constexpr bool SYMMETRIC = false;
    static INLINE_MEMBER Numbers read(const uint8_t *at, int64_t) {
        const I w = load<L>((const int32_t *)at);
        return {half_word(w, 0), half_word(w, 16)};
    }
};
struct Float16Product {
    static constexpr int WORDS = 1;
    static constexpr bool SYMMETRIC = false;
    static INLINE_MEMBER Numbers read(const uint8_t *at, int64_t) {
        const I w = load<L>((const int32_t *)at);
        return {half_word(w, 0) * half_word(w, 16), F{}};
    }
};
struct Float32Pair {
    static constexpr int WORDS = 2;
    static constexpr bool SYMMETRIC = false;
    static INLINE_MEMBER Numbers read(const uint8_t *at, int64_t pitch) {
        return {bitcast<F>(load<L>((const int32_t *)at)), bitcast<F>(load<L>((const int32_t *)(at + 4 * pitch)))};
    }
};
struct OfChannel {  // the scale of a column is a factor of its finished sum
    static constexpr int WORDS = 0;
    static constexpr bool SYMMETRIC = true;
};

// ── sum += four products of each lane: unsigned weights, signed rows ──

#if defined(__x86_64__) && !defined(__AVX512VNNI__)
INLINE I pairs_of_bytes(I w, I a) {  // sums of two products in int16, which must not saturate
#if defined(__AVX2__)
    I y;
    __asm__("vpmaddubsw %2, %1, %0" : "=v"(y) : "v"(w), "v"(a));
    return y;
#else
    __asm__("pmaddubsw %1, %0" : "+x"(w) : "x"(a));
    return w;
#endif
}
INLINE I pairs_of_words(I x, int32_t factors) {
    const I f = splat<I>(factors);
#if defined(__AVX2__)
    I y;
    __asm__("vpmaddwd %2, %1, %0" : "=v"(y) : "v"(x), "v"(f));
    return y;
#else
    __asm__("pmaddwd %1, %0" : "+x"(x) : "x"(f));
    return x;
#endif
}
INLINE I magnitudes_of_bytes(I w) {
#if defined(__AVX2__)
    I y;
    __asm__("vpabsb %1, %0" : "=v"(y) : "v"(w));
    return y;
#else
    I y;
    __asm__("pabsb %1, %0" : "=x"(y) : "x"(w));
    return y;
#endif
}
INLINE I with_signs_of(I w, I a) {  // bytes of `a`, negated where w is negative
#if defined(__AVX512BW__)
    uint64_t negative;
    __asm__("vpmovb2m %1, %0" : "=Yk"(negative) : "v"(w));
    __asm__("vpsubb %1, %2, %0 %{%3%}" : "+v"(a) : "v"(a), "v"(I{}), "Yk"(negative));
    return a;
#elif defined(__AVX2__)
    I y;
    __asm__("vpsignb %2, %1, %0" : "=x"(y) : "x"(a), "x"(w));
    return y;
#else
    __asm__("psignb %1, %0" : "+x"(a) : "x"(w));
    return a;
#endif
}
#endif

// Weights of eight bits are their codes plus 128, for processors whose products need an unsigned side.
template <class N> constexpr bool PLUS_128 =
#if defined(__AVX512VNNI__)
    true;
#elif defined(__x86_64__)
    !N::SYMMETRIC;  // two products of at most 127 * 127 fit int16
#else
    false;
#endif

template <class N, int BITS> INLINE I madd(I sum, I w, I a) {
#if defined(__AVX512VNNI__)
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(w), "v"(a));
    return sum;
#elif defined(__x86_64__)
    if constexpr (BITS == 4) return sum + pairs_of_words(pairs_of_bytes(w, a), 0x00010001);
    if constexpr (N::SYMMETRIC) return sum + pairs_of_words(pairs_of_bytes(magnitudes_of_bytes(w), with_signs_of(w, a)), 0x00010001);
    // Two products of eight bits exceed int16.
    const I low = w & 0x0f0f0f0f, high = (w >> 4) & 0x0f0f0f0f;
    return sum + pairs_of_words(pairs_of_bytes(low, a), 0x00010001) + pairs_of_words(pairs_of_bytes(high, a), 0x00100010);
#elif defined(__ARM_FEATURE_DOTPROD)
    __asm__("sdot %0.4s, %1.16b, %2.16b" : "+w"(sum) : "w"(w), "w"(a));
    return sum;
#else
    GEMM_UNROLL for (int i = 0; i < 4; ++i) {
        const I code = BITS == 4 ? w >> 8 * i & 255 : w << (24 - 8 * i) >> 24;
        sum += code * (a << (24 - 8 * i) >> 24);
    }
    return sum;
#endif
}

// ── rows ──

struct maximum_ { template <class V> INLINE_MEMBER V operator()(V a, V b) const { return maximum(a, b); } };
INLINE vec<int8_t, L> bytes(I q) {
    if constexpr (L == 16) return raw<int8_t>(q);
    else return raw<int8_t>(raw<int16_t>(q));
}

// One row of floats, k a multiple of the group. The scale is the largest magnitude over 127; a group with an infinity or NaN gets NaN, and one
// below 2^-120 zeros.
template <int BITS>
__attribute__((noinline)) static void code_row(const float *RESTRICT x, int64_t k, int64_t group, int8_t *RESTRICT to, GroupScale *RESTRICT scales) {
    const F magic = splat<F>(0x1.8p23f);
    for (int64_t g = 0; g < k; g += group, ++scales) {
        F largest = abs(load<L>(x + g));
        for (int64_t i = L; i < group; i += L) largest = maximum(largest, abs(load<L>(x + g + i)));
        const float size = across(largest, maximum_{});
        const F inverse = splat<F>(size >= 0x1p-120f ? 127 / size : 0);
        F sum = F{};
        for (int64_t i = 0; i < group; i += L) {
            const F whole = rounded(load<L>(x + g + i) * inverse) + magic;
            store<L>(to + g + i, bytes(bitcast<I>(whole) - bitcast<I>(magic)));
            sum += whole - magic;
        }
        const float total = sum_across(sum), scale = size / 127 + (size - size);
        *scales = {scale, total * scale, size - size == 0 ? -128 * (int32_t)total : 0};
    }
    if constexpr (BITS == 4) {
        typedef vec<int8_t, 16> B;
        for (int64_t i = 0; i < k; i += 16) {
            const B b = load<16>(to + i);
            store<16>(to + i, __builtin_shufflevector(b, b, 0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15));
        }
    }
}

// ── products ──

// tile [R][pitch] += R rows times NV vectors of columns of a panel.
template <class N, int BITS, int R, int NV>
__attribute__((noinline)) static void tile(const int8_t *RESTRICT rows, int64_t row_pitch, const GroupScale *RESTRICT scales, int64_t scale_pitch,
                                           const uint8_t *RESTRICT panel, int64_t groups, int64_t group, int64_t pitch, float *RESTRICT sums) {
    F all[R][NV];
    GEMM_UNROLL for (int r = 0; r < R; ++r)
        GEMM_UNROLL for (int v = 0; v < NV; ++v) all[r][v] = load<L>(sums + r * pitch + v * L);
    for (int64_t g = 0; g < groups; ++g, ++scales) {
        I sum[R][NV];
        GEMM_UNROLL for (int r = 0; r < R; ++r)
            GEMM_UNROLL for (int v = 0; v < NV; ++v)
                sum[r][v] = splat<I>(BITS == 8 && PLUS_128<N> ? scales[r * scale_pitch].offset : 0);
        for (int64_t i = 0; i < group; i += 32 / BITS, rows += 32 / BITS, panel += 4 * pitch) {
            I w[NV];
            GEMM_UNROLL for (int v = 0; v < NV; ++v) {
                __builtin_prefetch((const char *)panel + 4096 + v * VECTOR_BYTES, 0, 2);
                w[v] = load<L>((const int32_t *)(panel + v * VECTOR_BYTES));
            }
            GEMM_UNROLL for (int half = 0; half < 8 / BITS; ++half)
                GEMM_UNROLL for (int r = 0; r < R; ++r) {
                    int32_t word;
                    __builtin_memcpy(&word, rows + r * row_pitch + 4 * half, 4);
                    const I a = splat<I>(word);
                    GEMM_UNROLL for (int v = 0; v < NV; ++v) {
                        const I code = BITS == 4 ? w[v] >> 4 * half & 0x0f0f0f0f : PLUS_128<N> ? w[v] ^ (int32_t)0x80808080 : w[v];
                        sum[r][v] = madd<N, BITS>(sum[r][v], code, a);
                    }
                }
        }
        GEMM_UNROLL for (int v = 0; v < NV; ++v) {
            if constexpr (N::WORDS == 0) {
                GEMM_UNROLL for (int r = 0; r < R; ++r) all[r][v] += raw<float>(sum[r][v]) * splat<F>(scales[r * scale_pitch].scale);
            } else {
                const Numbers numbers = N::read(panel + v * VECTOR_BYTES, pitch);
                GEMM_UNROLL for (int r = 0; r < R; ++r) {
                    const GroupScale s = scales[r * scale_pitch];
                    all[r][v] += raw<float>(sum[r][v]) * (numbers.scale * splat<F>(s.scale));
                    all[r][v] += numbers.low * splat<F>(s.sum);
                }
            }
        }
        panel += 4 * N::WORDS * pitch;
    }
    GEMM_UNROLL for (int r = 0; r < R; ++r)
        GEMM_UNROLL for (int v = 0; v < NV; ++v) store<L>(sums + r * pitch + v * L, all[r][v]);
}

// R rows times a panel of P::NV vectors, as many at a time as registers hold.
template <class P, int R>
INLINE void panel_rows(const int8_t *rows, const GroupScale *scales, const uint8_t *panel, int64_t groups, float *sums) {
    constexpr int NV = R > P::FEW ? P::WIDE : P::NV;
    GEMM_UNROLL for (int v = 0; v < P::NV; v += NV)
        tile<typename P::N, P::BITS, R, NV>(rows, P::k, scales, P::k / P::group, panel + v * VECTOR_BYTES, groups, P::group, P::NV * L, sums + v * L);
}

// `rows` rows times one panel. P: N, BITS, R (rows of a tile), NV (vectors of a panel), WIDE (those of a tile of more than FEW rows), tail, k, group,
// block (groups that are processed before the next rows). emit(sums, row) as gemm_block's.
template <class P, class Emit>
INLINE void block(const int8_t *a, const GroupScale *scales, const uint8_t *panel, int64_t rows, float *sums, Emit emit) {
    constexpr int NR = P::NV * L;
    constexpr int64_t all = P::k / P::group, bytes = 4 * (P::group * P::BITS / 32 + P::N::WORDS) * NR;
    for (int64_t i = 0; i < rows * NR; ++i) sums[i] = 0;
    for (int64_t g = 0; g < all; g += P::block) {
        const int64_t groups = all - g < P::block ? all - g : P::block;
        int64_t row = 0;
        for (; row + P::R <= rows; row += P::R)
            panel_rows<P, P::R>(a + row * P::k + g * P::group, scales + row * all + g, panel + g * bytes, groups, sums + row * NR);
        if constexpr (P::tail > 0)
            if (row < rows)
                panel_rows<P, P::tail>(a + row * P::k + g * P::group, scales + row * all + g, panel + g * bytes, groups, sums + row * NR);
    }
    for (int64_t row = 0; row < rows; ++row) emit((const float *)sums + row * NR, row);
}

}  // namespace codes
