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
