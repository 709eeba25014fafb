// needs: decoder
// Panels of codes that a task dequantizes: they become operands of gemm_block once for all of its rows, where few rows convert them in each tile.
// `dequantize` writes steps `at` to `at + k` of NR columns of a panel of PANEL, the first at `panel`, as [k][NR] floats, or as bfloat16 pairs [k / 2][NR][2].
// After an odd k it writes some number.

// Two steps of k of one vector of columns.
template <int NR, int L> INLINE void gemm_put(vec<float, L> even, vec<float, L> odd, float *to) {
    store<L>(to, even);
    store<L>(to + NR, odd);
}
#if defined(__AVX512BF16__)
template <int NR, int L> INLINE void gemm_put(vec<float, L> even, vec<float, L> odd, bf16 *to) {
    vec<uint16_t, 2 * L> apart;
    __asm__("vcvtne2ps2bf16 %2, %1, %0" : "=v"(apart) : "v"(odd), "v"(even));
    store<2 * L>((uint16_t *)to, __builtin_shufflevector(apart, apart, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23, 8, 24, 9, 25, 10, 26,
                                                         11, 27, 12, 28, 13, 29, 14, 30, 15, 31));
}
#endif

// Codes whose outputs have one scale, which the epilogue multiplies: [k][NR]. bfloat16 has all of their bits.
template <class C, int PANEL> struct dequantized_codes {
    C code;
    template <int NR, class O> static __attribute__((noinline)) void dequantize(const dequantized_codes *panel, int64_t at, int64_t k, O *to) {
        constexpr int L = GEMM_LANES<float>, across = sizeof(O) == 2 ? 2 : 1;
        const C *from = (const C *)panel + at * PANEL;
        for (int64_t i = 0; i < k; i += 2, from += 2 * PANEL, to += 2 * NR)
            GEMM_UNROLL for (int j = 0; j < NR; j += L)
                gemm_put<NR, L>(gemm_panel<float, L>(from + j), gemm_panel<float, L>(from + (i + 1 < k ? PANEL : 0) + j), to + across * j);
    }
};
template <class C, int PANEL> constexpr bool gemm_dequantizes<dequantized_codes<C, PANEL>> = true;

// Groups as grouped_tile reads them. `at` is a multiple of the group, and whole groups are dequantized.
template <class N, int BITS, int64_t GROUP, int PANEL> struct dequantized_groups {
    uint8_t byte;
    template <int NR, class O> static __attribute__((noinline)) void dequantize(const dequantized_groups *panel, int64_t at, int64_t k, O *to) {
        constexpr int L = GEMM_LANES<float>, across = sizeof(O) == 2 ? 2 : 1;
        constexpr int64_t code_bytes = GROUP * BITS / 8 * PANEL, bytes = code_bytes + N::BYTES * PANEL;
        const uint8_t *from = (const uint8_t *)panel + at / GROUP * bytes;
        for (int64_t i = 0; i < k; i += GROUP, from += bytes, to += GROUP * NR)
            for (int j = 0; j < NR; j += L) {
                const GroupNumbers<L> numbers = N::template read<L, PANEL>(from + code_bytes + j);
                for (int64_t step = 0; step < GROUP; step += 2) {
                    const CodePair<L> codes = code_pair<BITS, L, PANEL>(from + step * BITS / 8 * PANEL + j);
                    gemm_put<NR, L>(codes.even * numbers.scale + numbers.low, codes.odd * numbers.scale + numbers.low, to + step * NR + across * j);
                }
            }
    }
};
template <class N, int BITS, int64_t GROUP, int PANEL> constexpr bool gemm_dequantizes<dequantized_groups<N, BITS, GROUP, PANEL>> = true;
