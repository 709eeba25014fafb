// turn: 16 x 16 words of 32 bits with rows and columns exchanged, in registers.
//
// Four rounds exchange the off-diagonal parts of blocks of 16, 8, 4 and 2 (Eklundh, "A fast computer method for matrix transposing",
// 1972): 64 permutations of two registers.

typedef vec<uint32_t, 16> TurnRow;

template <int... J> struct TurnLanes {
    template <int S> static INLINE_MEMBER void exchange(TurnRow &a, TurnRow &b) {
        const TurnRow first = __builtin_shufflevector(a, b, ((J & S) ? 16 + J - S : J)...);
        b = __builtin_shufflevector(a, b, ((J & S) ? 16 + J : J + S)...);
        a = first;
    }
};
typedef TurnLanes<0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15> TurnAll;

template <int S> INLINE void turn_round(TurnRow (&r)[16]) {
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++)
        if ((i & S) == 0) TurnAll::exchange<S>(r[i], r[i + S]);
}
INLINE void turn(TurnRow (&r)[16]) {
    turn_round<8>(r);
    turn_round<4>(r);
    turn_round<2>(r);
    turn_round<1>(r);
}

// Two rows of 16 16-bit elements as one row of pairs, and the first n of 32 such elements in their order, padded with zeros.
INLINE TurnRow turn_pairs(vec<uint16_t, 16> even, vec<uint16_t, 16> odd) { return raw<uint32_t>(even) | raw<uint32_t>(odd) << 16; }
INLINE vec<uint16_t, 16> turn_load(const bf16 *p, int64_t n) {
    if (n >= 16) {
        vec<uint16_t, 16> r;
        __builtin_memcpy(&r, p, 32);
        return r;
    }
    return load_first<16>((const uint16_t *)p, n < 0 ? 0 : n);
}
INLINE TurnRow turn_words(const bf16 *p, int64_t n) {
    struct { vec<uint16_t, 16> first, second; } both = {turn_load(p, n), turn_load(p + 16, n - 16)};
    return bitcast<TurnRow>(both);
}
