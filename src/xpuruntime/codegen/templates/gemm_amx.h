// needs: gemm tile transpose
// gemm_amx: bfloat16 GEMM with AMX tiles: A is read in place, B is interleaved in pairs of k, sums go through the L1 cache to the epilogue.

// Pack a B that is not a packed weight: k rows of n columns -> [k / 2][32][2], zero-padded, k to a whole tile step.
static __attribute__((noinline)) void gemm_pack_tiles(const bf16 *b, int64_t k_stride, int64_t n_stride, int64_t k, int64_t n, bf16 *to) {
    const int64_t whole = (k + TILE_DEPTH - 1) / TILE_DEPTH * TILE_DEPTH;
    if (n_stride == 1) {
        for (int64_t i = 0; i < whole; i += 2)
            for (int64_t j = 0; j < TILE_COLUMNS; j += 16) {
                const auto row = [&](int64_t at) { return at < k ? transpose_load(b + at * k_stride + j, n - j) : vec<uint16_t, 16>{}; };
                const TransposeRow r = interleave_pairs(row(i), row(i + 1));
                __builtin_memcpy(to + (i * TILE_COLUMNS / 2 + j) * 2, &r, 64);
            }
    } else if (k_stride == 1) {
        for (int64_t j = 0; j < TILE_COLUMNS; j += 16)
            for (int64_t i = 0; i < k; i += TILE_DEPTH) {
                TransposeRow r[16];
                for (int l = 0; l < 16; l++) r[l] = j + l < n ? transpose_load_words(b + (j + l) * n_stride + i, k - i) : TransposeRow{};
                transpose_16x16(r);
                for (int l = 0; l < 16; l++) __builtin_memcpy(to + ((i / 2 + l) * TILE_COLUMNS + j) * 2, &r[l], 64);
            }
    } else {
        gemm_pack<bf16, TILE_COLUMNS>(b, k_stride, n_stride, k, n, true, to);
        for (int64_t i = (k + 1) / 2 * 2 * TILE_COLUMNS; i < whole * TILE_COLUMNS; i++) to[i].bits = 0;
    }
}

// `rows` rows of one panel's 32 columns, as gemm_block (see there). The sums begin with `bias`, one for each column, if it is not null. P also has
//   depth                       k of a step; if not 32, no tail remains
//   prefetch_lines                cache lines of the next block of B to prefetch in each step
//   single_block                whether one block covers all of k: then scratch holds the sums of one tile only
template <class P, class Emit>
INLINE void gemm_block_tiles(Tiles &tiles, const bf16 *a, const typename P::B *b, int64_t rows, int64_t columns, const bf16 *bias, void *scratch,
                             Emit emit) {
    constexpr int NR = TILE_COLUMNS;
    constexpr bool dequantizes = gemm_dequantizes<typename P::B>;
    alignas(64) float start[NR];
    for (int64_t c = 0; bias && c < NR; c++) start[c] = c < columns ? (float)load<1>(bias + c) : 0;
    float *sums = (float *)scratch;
    bf16 *tail = (bf16 *)(sums + (P::single_block ? TILE_ROWS : rows) * NR), *operand_b = tail + TILE_ROWS * TILE_DEPTH;
    int64_t at = 0;
    do {  // once even when k is 0: the sums are zeros
        const int64_t k = P::k - at < P::block ? P::k - at : P::block, steps = k / P::depth, left = k % P::depth;
        const bool last = at + k == P::k;
        const bf16 *panel = operand_b;
        if constexpr (dequantizes) {
            if (k % TILE_DEPTH)  // zeros behind the last steps
                for (int64_t i = 0; i < TILE_DEPTH * NR; ++i) operand_b[k / TILE_DEPTH * TILE_DEPTH * NR + i].bits = 0;
            P::B::template dequantize<NR>(b, at, k, operand_b);
        } else if constexpr (!P::packed) {
            gemm_pack_tiles(b + at * P::b_k, P::b_k, P::b_n, k, columns, operand_b);
        } else {
            panel = b + at * NR;
        }
        const bf16 *prefetch = panel + k * NR;
        for (int64_t row = 0; row < rows; row += TILE_ROWS) {
            const int64_t count = rows - row < TILE_ROWS ? rows - row : TILE_ROWS;
            const bf16 *from = a + row * P::a_row + at;
            float *t = P::single_block ? sums : sums + row * NR;
            if (left) tile_tail(from + steps * P::depth, P::a_row, count, left, tail);
            const float *first = at ? t : bias ? start : nullptr;
            tile_product(tiles, count, from, 2 * P::a_row, panel, steps, left ? tail : nullptr, first, at ? TILE_SUMS : 0, t, prefetch,
                         P::packed && !dequantizes ? P::prefetch_lines : 0, P::depth);
            prefetch += steps * P::prefetch_lines * 32;
            if (last)
                for (int64_t r = 0; r < count; r++) emit((const float *)t + r * NR, row + r);
        }
        at += k;
    } while (at < P::k);
}
