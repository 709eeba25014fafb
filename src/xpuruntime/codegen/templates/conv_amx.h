// needs: conv tile
// conv_amx: convolutions of bfloat16 by tiles, 32 pixels by 32 filters at a time: of whole input lines, or of rows as conv.h gathers them.

namespace conv {

struct Bf16Tiles : Bf16Pairs {};                       // rows and sums are those of pairs
template <> constexpr int64_t CHUNK_BYTES<Bf16Tiles> = 1152;  // 3 x 3 taps of 64 channels; 32 filters of it take 36 KiB of the first cache

// As conv::run, with rows for A, filters for B and biases as the first sums. A block's last pixels are a tile of fewer rows.
template <class A>
static __attribute__((noinline)) void run_tiles(const Shape &s, const Blocks &g, const bf16 *x, const void *filters, const bf16 *bias,
                                                const bf16 *residual, bf16 *y, int64_t begin, int64_t end, void *scratch) {
    typedef Bf16Tiles M;
    typedef uint16_t source;
    constexpr int64_t TILE = TILE_COLUMNS, CHUNK = CHUNK_BYTES<M> / 2, PITCH = ROW_BYTES<M> / 2;
    const int64_t whole = (g.block + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS, pixels = s.images * s.out[0] * s.out[1] * s.out[2];
    const bool lines = !s.transposed && s.dilation[2] == 1 && s.x[1] == 1 && (s.x[4] == s.channels || s.kernel[2] == 1);
    const bool once = g.depth <= CHUNK;  // no sum waits for another chunk
    source *rows = (source *)scratch;
    float *sums = (float *)((char *)scratch + whole * ROW_BYTES<M>), *start = sums + (once ? TILE_ROWS : g.together * whole) * TILE;
    int64_t *to = (int64_t *)(start + g.together * TILE), *with = to + g.block;
    Tiles tiles;
    while (begin < end) {
        const int64_t tile = begin % g.tiles, block = begin / g.tiles % g.blocks, group = begin / g.tiles / g.blocks;
        int64_t count = g.tiles - tile < end - begin ? g.tiles - tile : end - begin;
        if (count > g.together) count = g.together;
        begin += count;
        const int64_t first = block * g.block, many = pixels - first < g.block ? pixels - first : g.block;
        Pixel at(s, first);
        for (int64_t p = 0; p < many; p++, at.next(s)) to[p] = at.offset(s.y), with[p] = at.offset(s.r);
        for (int64_t f = 0; f < count * TILE; f++) {
            const int64_t c = tile * TILE + f;
            start[f] = c < s.filters ? value_at<bf16, float>(bias, group * s.filters + c) : 0;
        }
        for (int64_t k = 0; k == 0 || k < g.depth; k += CHUNK) {
            const int64_t next = g.depth - k < CHUNK ? g.depth : k + CHUNK, steps = (next - k) / TILE_DEPTH;
            (lines ? gather_lines<M, source> : gather_taps<M, source>)(s, (const source *)x + group * s.channels * s.x[1], first, many, k,
                                                                       next, rows);
            for (int64_t t = 0; t < count; t++) {
                const int64_t c = (tile + t) * TILE, o = group * s.filters + c;
                const source *f = (const source *)filters + ((group * g.tiles + tile + t) * g.depth + k) * TILE;
                for (int64_t p = 0; p < many; p += TILE_ROWS) {
                    const int64_t n = many - p < TILE_ROWS ? many - p : TILE_ROWS;
                    float *part = once ? sums : sums + (t * whole + p) * TILE;
                    tile_product(tiles, n, rows + p * PITCH, ROW_BYTES<M>, f, steps, nullptr, k ? part : start + t * TILE,
                                 k ? TILE_SUMS : 0, part, f, 0);
                    if (next == g.depth)
                        finish<M, bf16, A, 2>(s, part, to + p, with + p, n, s.filters - c < TILE ? s.filters - c : TILE,
                                              residual ? residual + o * s.r[1] : nullptr, y + o * s.y[1]);
                }
            }
        }
    }
}

// Two tiles of pixels by 32 filters for `run_windows`.
struct TileWindows {
    typedef Bf16Tiles M;
    static constexpr int NV = 2, together = 2;
    static constexpr int64_t STEP = TILE_DEPTH, SUMS = 16 * TILE_COLUMNS;
    Tiles tiles;

    // sums[2][16][32] = start + A x B. Step i reads 32 k at offset[i] from the pixels, whose rows are `stride` elements apart.
    template <bool TWO>
    static __attribute__((noinline)) void multiply(Tiles &t, const uint16_t *a, const uint16_t *second, int64_t stride, const int64_t *offset,
                                                   int64_t steps, const void *b, const void *start, int64_t start_stride, float *sums) {
        const char *panel = (const char *)b;
        tile_start<TWO>(t, start, start_stride);
        for (int64_t i = 0; i < steps; i++, panel += TILE_PANEL)
            tile_step<TWO>(t, (const char *)(a + offset[i]), (const char *)(second + offset[i]), 2 * stride, panel);
        tile_end<TWO>(t, sums);
    }
    INLINE_MEMBER void operator()(const uint16_t *const (&a)[2], const int64_t (&pixels)[2], int64_t stride, const int64_t *offset,
                                  int64_t steps, const void *filters, float *sums, const float *bias, const char *) {
        tiles.use(pixels[0], pixels[1] ? pixels[1] : 1, TILE_DEPTH);
        const float *start = bias ? bias : sums;
        (pixels[1] ? multiply<true> : multiply<false>)(tiles, a[0], a[1], stride, offset, steps, filters, start, bias ? 0 : TILE_SUMS, sums);
    }
};

}  // namespace conv
