// needs: conv arith tile
// int8: products of 8-bit codes with exact sums in int32, then scale, bias, activation and rounding to codes again.
//
// Rows of the left side are read four bytes at a time (a word), which every lane multiplies by its own word of the packed right side:
//
//   Bytes   a word is four codes: VPDPBUSD, SDOT, or AMX tiles. Zero points are corrected by the sums of the columns.
//   Pairs   a word is two codes as int16, less their zero point: VPMADDWD (or VPDPWSSD). VPMADDUBSW would saturate its sums in int16.
//   panel   [words][NV * L] words; columns beyond the matrix and words beyond the depth are zeros

namespace int8 {

constexpr int L = VECTOR_BYTES / 4;
typedef vec<int32_t, L> I;
typedef vec<float, L> F;

struct Bytes {
    typedef uint8_t row;
    static INLINE_MEMBER I madd(I sum, I a, I w) {
#if defined(__AVX512VNNI__)
        __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(w));
#elif defined(__ARM_FEATURE_DOTPROD)
        __asm__("sdot %0.4s, %1.16b, %2.16b" : "+w"(sum) : "w"(a), "w"(w));
#else
        __builtin_trap();  // chosen only where these instructions are
#endif
        return sum;
    }
};
struct Pairs {
    typedef int16_t row;
    static INLINE_MEMBER I madd(I sum, I a, I w) {
#if defined(__AVX512VNNI__)
        __asm__("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(w));
        return sum;
#elif defined(__AVX2__)
        I both;
        __asm__("vpmaddwd %2, %1, %0" : "=x"(both) : "x"(a), "x"(w));
        return sum + both;
#elif defined(__x86_64__)
        __asm__("pmaddwd %1, %0" : "+x"(a) : "x"(w));
        return sum + a;
#else
        return sum + ((a << 16) >> 16) * ((w << 16) >> 16) + (a >> 16) * (w >> 16);
#endif
    }
};

// sums[R][NV * L] = rows x panel. Rows from `count` on repeat the last one. FLIP: change the sign of codes, which moves their zero point by 128.
template <class M, int R, int NV, bool FLIP>
static __attribute__((noinline)) void product(const void *rows, int64_t pitch, int64_t count, const void *panel, int64_t words, int32_t *sums) {
    const char *p[R], *b = (const char *)panel;
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) p[r] = (const char *)rows + (r < count ? r : count - 1) * pitch;
    I acc[R][NV];
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int v = 0; v < NV; v++) acc[r][v] = I{};
    for (int64_t k = 0; k < words; k++, b += NV * VECTOR_BYTES) {
        I w[NV];
#pragma GCC unroll 8
        for (int v = 0; v < NV; v++) w[v] = ::load<L>((const int32_t *)(b + v * VECTOR_BYTES));
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) {
            int32_t word;
            __builtin_memcpy(&word, p[r] + 4 * k, 4);
            I a = splat<I>(word);
            if constexpr (FLIP) a ^= splat<I>((int32_t)0x80808080);
#pragma GCC unroll 8
            for (int v = 0; v < NV; v++) acc[r][v] = M::madd(acc[r][v], a, w[v]);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int v = 0; v < NV; v++) ::store<L>(sums + (r * NV + v) * L, acc[r][v]);
}

// ── rows ──

// n codes as a row's elements: bytes as they are, or int16 less the zero point.
template <class M, class X> INLINE void take(typename M::row *to, const X *from, int64_t n, int64_t step, int32_t zero) {
    if constexpr (same<M, Bytes>) {
        const uint8_t *bytes = (const uint8_t *)from;
        if (step == 1) return conv::copy<VECTOR_BYTES>(to, bytes, n);
        for (int64_t i = 0; i < n; i++) to[i] = bytes[i * step];
    } else {
        constexpr int H = VECTOR_BYTES / 2;
        typedef vec<int16_t, H> V;
        const V z = splat<V>((int16_t)zero);
        int64_t i = 0;
        if (step == 1)
            for (; i + H <= n; i += H) ::store<H>(to + i, raw<int16_t>(::load<H>(from + i)) - z);
        for (; i < n; i++) {
            asm("" : "+r"(i));
            to[i] = (int16_t)(from[i * step] - zero);
        }
    }
}
template <class M> INLINE void fill(typename M::row *to, int64_t n, int32_t zero) {
    constexpr int N = VECTOR_BYTES / sizeof(typename M::row);
    typedef vec<typename M::row, N> V;
    const typename M::row value = same<M, Bytes> ? (typename M::row)zero : 0;
    int64_t i = 0;
    for (; i + N <= n; i += N) ::store<N>(to + i, splat<V>(value));
    for (; i < n; i++) {
        asm("" : "+r"(i));
        to[i] = value;
    }
}

// Rows of a matrix with any strides.
template <class M, class X>
static __attribute__((noinline)) void copy_rows(const X *x, int64_t row_stride, int64_t k_stride, int64_t count, int64_t depth, int64_t whole,
                                                int32_t zero, typename M::row *rows, int64_t pitch) {
    for (int64_t r = 0; r < count; r++, rows += pitch) {
        take<M>(rows, x + r * row_stride, depth, k_stride, zero);
        for (int64_t i = depth; i < whole; i++) rows[i] = 0;
    }
}

// Rows of a convolution: the window of each pixel, taps by channels, with the zero point for padding.
template <class M, class X>
static __attribute__((noinline)) void gather(const conv::Shape &s, const X *x, int32_t zero, int64_t pixel, int64_t count, int64_t whole,
                                             typename M::row *rows, int64_t pitch) {
    const bool lines = s.x[1] == 1 && s.dilation[2] == 1 && s.x[4] == s.channels;
    const int64_t c = s.channels, run = s.kernel[2] * c, depth = s.kernel[0] * s.kernel[1] * run;
    conv::Pixel at(s, pixel);
    for (int64_t p = 0; p < count; p++, at.next(s), rows += pitch) {
        const X *image = x + at.n * s.x[0];
        typename M::row *out = rows;
        const int64_t column = at.at[2] * s.stride[2] - s.begin[2];
        int64_t left = column < 0 ? -column : 0, right = s.in[2] - column < s.kernel[2] ? s.in[2] - column : s.kernel[2];
        if (left > s.kernel[2]) left = s.kernel[2];
        if (right < left) right = left;
        for (int64_t d = 0; d < s.kernel[0]; d++)
            for (int64_t h = 0; h < s.kernel[1]; h++, out += run) {
                const int64_t z = conv::input_index(s, at, 0, d), y = conv::input_index(s, at, 1, h);
                if (conv::outside(z, s.in[0]) || conv::outside(y, s.in[1])) {
                    fill<M>(out, run, zero);
                    continue;
                }
                const X *line = image + z * s.x[2] + y * s.x[3];
                if (lines) {
                    if (left) fill<M>(out, left * c, zero);
                    take<M>(out + left * c, line + (column + left) * c, (right - left) * c, 1, zero);
                    if (right < s.kernel[2]) fill<M>(out + right * c, (s.kernel[2] - right) * c, zero);
                } else
                    for (int64_t w = 0; w < s.kernel[2]; w++) {
                        const int64_t v = conv::input_index(s, at, 2, w);
                        if (conv::outside(v, s.in[2])) fill<M>(out + w * c, c, zero);
                        else take<M>(out + w * c, line + v * s.x[4], c, s.x[1], zero);
                    }
            }
        for (int64_t i = depth; i < whole; i++) rows[i] = 0;
    }
}

// ── the right side, if it is not a constant: k rows of n columns with any strides -> panels of pairs ──

template <class W, int NV>
static __attribute__((noinline)) void pack(const W *b, int64_t k_stride, int64_t n_stride, int64_t depth, int64_t columns, int32_t zero, int16_t *to) {
    constexpr int N = NV * L;
    for (int64_t k = 0; k < depth; k += 2, to += 2 * N) {
        const W *first = b + k * k_stride, *second = first + k_stride;
        const bool both = k + 1 < depth;
        for (int64_t j = 0; j < N; j++) {
            to[2 * j] = j < columns ? (int16_t)(first[j * n_stride] - zero) : 0;
            to[2 * j + 1] = both && j < columns ? (int16_t)(second[j * n_stride] - zero) : 0;
        }
    }
}

// ── the end of a sum ──

INLINE I nearest(F x) {  // half to even, for |x| < 2^22
    const F magic = splat<F>(0x1.8p23f);
    return bitcast<I>(x + magic) - bitcast<I>(magic);
}
template <class Y> INLINE void store_codes(Y *to, int64_t step, I q, int64_t n) {
    vec<Y, L> y;
#if defined(MASKED)
    if constexpr (L == 16) y = bitcast<vec<Y, L>>(__builtin_ia32_pmovdb512_mask((v16si)q, v16qi{}, (unsigned short)-1));
    else
#endif
        y = raw<Y>(raw<int16_t>(q));
    if (step != 1) scatter<L>(to, step, y, n < L ? n : L);
    else if (n >= L) ::store<L>(to, y);
    else ::store<L>(to, y, n);
}

// What a call multiplies and adds, in addition to codes. Pointers are null where an operand is absent.
struct Scales {
    float x, y;                   // of a code
    int32_t zero_x, zero_y;       // zero_x: of the rows, as the product sees them
    const int32_t *column_sums;   // of B, for Bytes
    const float *weight;          // scales of the columns, weight_step apart
    int64_t weight_step;
    const void *bias;             // int32 in units of the sums, or float; bias_step apart
    int64_t bias_step;
};

// Values of the columns of one tile. P: see kernels/cpu/int8/text.py.
template <class P> struct Columns {
    static constexpr int N = P::NV * L;
    alignas(64) int32_t start[N];
    alignas(64) float factor[N], bias[N];
    float low, high;  // bounds of a result in steps from its zero point
    // first: the first column in the arrays of scales; sums: in the sums of the columns.
    INLINE_MEMBER void set(const Scales &s, int64_t first, int64_t count, int64_t sums) {
        for (int v = 0; v < P::NV; v++) {
            const int64_t at = first + v * L, n = count - v * L < 0 ? 0 : count - v * L < L ? count - v * L : L;
            I sum = I{};
            F scale = splat<F>(0), add = splat<F>(0);
            if (n > 0) {
                if (s.column_sums) sum = -(s.zero_x * ::load<L>(s.column_sums + sums + v * L, n));
                if (P::BIAS == 1) sum += s.bias_step ? ::load<L>((const int32_t *)s.bias + at, n) : splat<I>(*(const int32_t *)s.bias);
                if (P::BIAS == 2) add = s.bias_step ? ::load<L>((const float *)s.bias + at, n) : splat<F>(*(const float *)s.bias);
                if (s.weight) scale = s.weight_step ? ::load<L>(s.weight + at, n) : splat<F>(*s.weight);
                scale = rounded(scale * s.x);
                if (P::ONE) scale = scale / s.y;
            }
            ::store<L>(start + v * L, sum);
            ::store<L>(factor + v * L, scale);
            ::store<L>(bias + v * L, add);
        }
        low = (float)(P::LOW - s.zero_y), high = (float)(P::HIGH - s.zero_y);
        if (P::ONE && P::RELU && low < 0) low = 0;
        if (P::ONE && P::RELU == 6 && high > 6 / s.y) high = 6 / s.y;
    }
    // One row: sums of `count` columns, whose results are `step` elements apart.
    INLINE_MEMBER void finish(const Scales &s, const int32_t *sums, int64_t count, typename P::Y *to, int64_t step) const {
        typedef typename P::Y Y;
#pragma GCC unroll 4
        for (int v = 0; v < P::NV; v++) {
            const int64_t n = count - v * L;
            if (n <= 0) return;
            const I sum = ::load<L>(sums + v * L) + ::load<L>(start + v * L);
            Y *y = to + v * L * step;
            if constexpr (same<Y, int32_t>) {
                if (step != 1) scatter<L>(y, step, sum, n < L ? n : L);
                else if (n >= L) ::store<L>(y, sum);
                else ::store<L>(y, sum, n);
                continue;
            } else {
                F x = rounded(raw<float>(sum) * ::load<L>(factor + v * L));
                if constexpr (!P::ONE) {
                    if constexpr (P::BIAS == 2) x = rounded(x + ::load<L>(bias + v * L));
                    x = P::act(x);
                    if constexpr (!same<Y, float>) x = x / splat<F>(s.y);
                }
                if constexpr (same<Y, float>) {
                    if (step != 1) scatter<L>(y, step, x, n < L ? n : L);
                    else if (n >= L) ::store<L>(y, x);
                    else ::store<L>(y, x, n);
                } else {
                    const F bounded = clip(x, splat<F>(low), splat<F>(high));
                    store_codes(y, step, nearest(bounded) + s.zero_y, n);
                }
            }
        }
    }
};

// ── AMX: 32 rows by 32 columns, 64 codes of the depth per step; panels as for Bytes with NV = 2 ──

template <bool SIGNED>
static __attribute__((noinline)) void product_tiles(Tiles &t, const void *rows, int64_t pitch, int64_t count, const void *panel, int64_t words,
                                                    int32_t *sums) {
    const char *a = (const char *)rows, *b = (const char *)panel;
    t.use(count);
    t.zero<0>(), t.zero<1>(), t.zero<2>(), t.zero<3>();
    for (int64_t k = 0; k < words; k += 16, a += 64, b += 16 * TILE_SUMS) {
        t.load<4>(a, pitch);
        t.load<6>(b, TILE_SUMS);
        t.load<7>(b + 64, TILE_SUMS);
        t.multiply_bytes<0, 4, 6, SIGNED>();
        t.multiply_bytes<1, 4, 7, SIGNED>();
        if (count > 16) {
            t.load<5>(a + 16 * pitch, pitch);
            t.multiply_bytes<2, 5, 6, SIGNED>();
            t.multiply_bytes<3, 5, 7, SIGNED>();
        }
    }
    t.store<0>(sums, TILE_SUMS);
    t.store<1>(sums + 16, TILE_SUMS);
    if (count > 16) {
        t.store<2>(sums + 16 * TILE_COLUMNS, TILE_SUMS);
        t.store<3>(sums + 16 * TILE_COLUMNS + 16, TILE_SUMS);
    }
}

}  // namespace int8
