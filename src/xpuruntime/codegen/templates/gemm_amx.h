// needs: gemm tile turn
// gemm_amx: products of bfloat16 by tiles: A straight from its rows, B in pairs of k, sums through the first cache to the epilogue.

// Of what is no weight: k rows of n columns -> [k / 2][32][2], zeros beyond, k to a whole step of a tile.
static __attribute__((noinline)) void gemm_pack_tiles(const bf16 *b, int64_t k_stride, int64_t n_stride, int64_t k, int64_t n, bf16 *to) {
    const int64_t whole = (k + TILE_DEPTH - 1) / TILE_DEPTH * TILE_DEPTH;
    if (n_stride == 1) {
        for (int64_t i = 0; i < whole; i += 2)
            for (int64_t j = 0; j < TILE_COLUMNS; j += 16) {
                const auto row = [&](int64_t at) { return at < k ? turn_load(b + at * k_stride + j, n - j) : vec<uint16_t, 16>{}; };
                const TurnRow r = turn_pairs(row(i), row(i + 1));
                __builtin_memcpy(to + (i * TILE_COLUMNS / 2 + j) * 2, &r, 64);
            }
    } else if (k_stride == 1) {
        for (int64_t j = 0; j < TILE_COLUMNS; j += 16)
            for (int64_t i = 0; i < k; i += TILE_DEPTH) {
                TurnRow r[16];
                for (int l = 0; l < 16; l++) r[l] = j + l < n ? turn_words(b + (j + l) * n_stride + i, k - i) : TurnRow{};
                turn(r);
                for (int l = 0; l < 16; l++) __builtin_memcpy(to + ((i / 2 + l) * TILE_COLUMNS + j) * 2, &r[l], 64);
            }
    } else {
        gemm_pack<bf16, TILE_COLUMNS>(b, k_stride, n_stride, k, n, true, to);
        for (int64_t i = (k + 1) / 2 * 2 * TILE_COLUMNS; i < whole * TILE_COLUMNS; i++) to[i].bits = 0;
    }
}

// `rows` rows of one panel's 32 columns, as gemm_block does it (see there); P says besides
//   ahead                lines of B that are fetched in each step, of what is read after this block of k
//   alone                whether one block is all of k: then the sums of one tile are all that wait
template <class P, class Emit>
INLINE void gemm_block_tiles(Tiles &tiles, const bf16 *a, const bf16 *b, int64_t rows, int64_t columns, void *scratch, Emit emit) {
    constexpr int NR = TILE_COLUMNS;
    float *sums = (float *)scratch;
    bf16 *rest = (bf16 *)(sums + (P::alone ? TILE_ROWS : rows) * NR), *own = rest + TILE_ROWS * TILE_DEPTH;
    int64_t at = 0;
    do {  // once even when k is 0: the sums are zeros
        const int64_t k = P::k - at < P::block ? P::k - at : P::block, steps = k / TILE_DEPTH, left = k % TILE_DEPTH;
        const bool last = at + k == P::k;
        const bf16 *panel = b + at * NR;
        if constexpr (!P::packed) {
            gemm_pack_tiles(b + at * P::b_k, P::b_k, P::b_n, k, columns, own);
            panel = own;
        }
        const bf16 *ahead = panel + k * NR;
        for (int64_t row = 0; row < rows; row += TILE_ROWS) {
            const int64_t count = rows - row < TILE_ROWS ? rows - row : TILE_ROWS;
            const bf16 *from = a + row * P::a_row + at;
            float *t = P::alone ? sums : sums + row * NR;
            if (left) tile_rest(from + steps * TILE_DEPTH, P::a_row, count, left, rest);
            tile_product(tiles, count, from, 2 * P::a_row, panel, steps, left ? rest : nullptr, at ? t : nullptr, TILE_SUMS, t, ahead,
                         P::packed ? P::ahead : 0);
            ahead += steps * P::ahead * 32;
            if (last)
                for (int64_t r = 0; r < count; r++) emit((const float *)t + r * NR, row + r);
        }
        at += k;
    } while (at < P::k);
}
