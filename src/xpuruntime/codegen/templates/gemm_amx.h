// needs: gemm tile
// gemm_amx: products of bfloat16 by tiles: A straight from its rows, B in pairs of k, sums through the first cache to the epilogue.

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
            gemm_pack<bf16, NR>(b + at * P::b_k, P::b_k, P::b_n, k, columns, true, own);
            for (int64_t i = (k + 1) / 2 * 2 * NR; i < (steps + (left > 0)) * TILE_DEPTH * NR; i++) own[i].bits = 0;
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
