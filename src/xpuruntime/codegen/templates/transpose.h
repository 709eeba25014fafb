// transpose: 16 x 16 words of 32 bits, transposed in registers.
//
// Four rounds exchange the off-diagonal parts of blocks of 16, 8, 4 and 2 (Eklundh, "A fast computer method for matrix transposing",
// 1972): 64 permutations of two registers.

typedef vec<uint32_t, 16> TransposeRow;

template <int... J> struct TransposeLanes {
    template <int S> static INLINE_MEMBER void exchange(TransposeRow &a, TransposeRow &b) {
        const TransposeRow first = __builtin_shufflevector(a, b, ((J & S) ? 16 + J - S : J)...);
        b = __builtin_shufflevector(a, b, ((J & S) ? 16 + J : J + S)...);
        a = first;
    }
};
typedef TransposeLanes<0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15> TransposeAll;

template <int S> INLINE void transpose_round(TransposeRow (&r)[16]) {
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++)
        if ((i & S) == 0) TransposeAll::exchange<S>(r[i], r[i + S]);
}
INLINE void transpose_16x16(TransposeRow (&r)[16]) {
    transpose_round<8>(r);
    transpose_round<4>(r);
    transpose_round<2>(r);
    transpose_round<1>(r);
}

// Squares of 4 x 4 and 8 x 8 words of 32 bits: halves of 8 change places, the rest are shuffles within 128 bits.
template <class V> INLINE void transpose_square(V (&x)[4]) {
    const V ab = __builtin_shufflevector(x[0], x[1], 0, 4, 1, 5), cd = __builtin_shufflevector(x[2], x[3], 0, 4, 1, 5);
    const V ab2 = __builtin_shufflevector(x[0], x[1], 2, 6, 3, 7), cd2 = __builtin_shufflevector(x[2], x[3], 2, 6, 3, 7);
    x[0] = __builtin_shufflevector(ab, cd, 0, 1, 4, 5), x[1] = __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
    x[2] = __builtin_shufflevector(ab2, cd2, 0, 1, 4, 5), x[3] = __builtin_shufflevector(ab2, cd2, 2, 3, 6, 7);
}
template <class V> INLINE void transpose_square(V (&x)[8]) {
    V low[4], high[4];
    _Pragma("GCC unroll 8") for (int l = 0; l < 4; ++l) {
        low[l] = __builtin_shufflevector(x[l], x[l + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        high[l] = __builtin_shufflevector(x[l], x[l + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
    _Pragma("GCC unroll 8") for (int half = 0; half < 2; ++half) {
        V *r = half ? high : low;
        const V ab = __builtin_shufflevector(r[0], r[1], 0, 8, 1, 9, 4, 12, 5, 13), cd = __builtin_shufflevector(r[2], r[3], 0, 8, 1, 9, 4, 12, 5, 13);
        const V ab2 = __builtin_shufflevector(r[0], r[1], 2, 10, 3, 11, 6, 14, 7, 15), cd2 = __builtin_shufflevector(r[2], r[3], 2, 10, 3, 11, 6, 14, 7, 15);
        x[4 * half] = __builtin_shufflevector(ab, cd, 0, 1, 8, 9, 4, 5, 12, 13), x[4 * half + 1] = __builtin_shufflevector(ab, cd, 2, 3, 10, 11, 6, 7, 14, 15);
        x[4 * half + 2] = __builtin_shufflevector(ab2, cd2, 0, 1, 8, 9, 4, 5, 12, 13), x[4 * half + 3] = __builtin_shufflevector(ab2, cd2, 2, 3, 10, 11, 6, 7, 14, 15);
    }
}

// interleave_pairs: two rows of 16 16-bit elements as one row of pairs. transpose_load, transpose_load_words: the first n of 16 or 32
// elements, padded with zeros.
INLINE TransposeRow interleave_pairs(vec<uint16_t, 16> even, vec<uint16_t, 16> odd) { return raw<uint32_t>(even) | raw<uint32_t>(odd) << 16; }
INLINE vec<uint16_t, 16> transpose_load(const bf16 *p, int64_t n) {
    if (n >= 16) {
        vec<uint16_t, 16> r;
        __builtin_memcpy(&r, p, 32);
        return r;
    }
    return load_first<16>((const uint16_t *)p, n < 0 ? 0 : n);
}
INLINE TransposeRow transpose_load_words(const bf16 *p, int64_t n) {
    struct { vec<uint16_t, 16> first, second; } both = {transpose_load(p, n), transpose_load(p + 16, n - 16)};
    return bitcast<TransposeRow>(both);
}
