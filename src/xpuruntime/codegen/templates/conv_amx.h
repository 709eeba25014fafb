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

// Input lines of `run_tile_lines`. count: lines that are copied per plane of the kernel, with padding; 0 if no window has padding: then they
// are read in place. pixels: of a copied line. pitch: elements between its pixels. columns: of a block. unit: pixels of a tile, at most 16.
struct TileLines {
    int64_t count, pixels, pitch, columns, unit;
};

// sums[2][16][32] = start + A x B for two tiles of pixels whose rows are `stride` bytes apart. Step i reads 32 k at offset[i] from the first pixels.
template <bool TWO>
static __attribute__((noinline)) void tile_taps(Tiles &t, const uint16_t *a, const uint16_t *second, int64_t stride, const int64_t *offset,
                                                int64_t steps, const void *b, const void *start, int64_t start_stride, float *sums) {
    const char *panel = (const char *)b;
    tile_start<TWO>(t, start, start_stride);
    for (int64_t i = 0; i < steps; i++, panel += TILE_PANEL)
        tile_step<TWO>(t, (const char *)(a + offset[i]), (const char *)(second + offset[i]), stride, panel);
    tile_end<TWO>(t, sums);
}

// `count` pixels of an input line from pixel `from` on, which may be outside; a null line is all padding.
INLINE void copy_line(const Shape &s, const uint16_t *line, int64_t from, int64_t count, int64_t pitch, uint16_t *to) {
    const int64_t size = line ? s.in[2] : 0, a = from >= 0 ? 0 : -from < count ? -from : count;
    const int64_t b = size - from < a ? a : size - from < count ? size - from : count;  // pixels a to b are input
    if (pitch == s.channels && s.x[4] == pitch) {
        zero(to, a * pitch);
        if (a < b) copy<VECTOR_BYTES / 2>(to + a * pitch, line + (from + a) * pitch, (b - a) * pitch);
        zero(to + b * pitch, (count - b) * pitch);
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        if (i < a || i >= b) zero(to + i * pitch, s.channels);
        else copy<VECTOR_BYTES / 2>(to + i * pitch, line + (from + i) * s.x[4], s.channels);
    }
}

// The same without gathered rows, for contiguous channels that are whole steps: adjacent pixels of a row of output read lines with a constant
// stride, so each step of a window is a tile of A. A block is `g.block` rows of `l.columns` output pixels of a plane.
// Scratch: lines | sums | bias of the tiles | offsets of the steps.
template <class A>
static __attribute__((noinline)) void run_tile_lines(const Shape &s, const Blocks &g, const TileLines &l, const bf16 *x,
                                                     const void *filters, const bf16 *bias, const bf16 *residual, bf16 *y, int64_t begin,
                                                     int64_t end, void *scratch) {
    typedef uint16_t source;
    constexpr int64_t TILE = TILE_COLUMNS, UNIT = 16 * TILE, CHUNK = CHUNK_BYTES<Bf16Tiles> / 2 / TILE_DEPTH;  // steps
    if (!(s.images * s.out[0] * s.out[1] * s.out[2])) return;
    const bool copies = l.count > 0;
    const int64_t pixel = copies ? l.pitch : s.x[4], line = copies ? l.pixels * l.pitch : s.x[3];
    const int64_t plane = copies ? l.count * line : s.dilation[0] * s.x[2], stride = s.stride[2] * pixel;
    const int64_t steps = g.depth / TILE_DEPTH, whole = g.block * ((l.columns + l.unit - 1) / l.unit);
    const bool once = steps <= CHUNK;  // no sum waits for another chunk
    source *copied = (source *)scratch;
    float *sums = (float *)(copied + (copies ? s.kernel[0] * plane : 0)), *start = sums + (once ? 2 : g.together * whole) * UNIT;
    int64_t *offset = (int64_t *)(start + g.together * TILE), *o = offset;
    for (int64_t d = 0; d < s.kernel[0]; d++)
        for (int64_t h = 0; h < s.kernel[1]; h++)
            for (int64_t w = 0; w < s.kernel[2]; w++)
                for (int64_t c = 0; c < s.channels; c += TILE_DEPTH)
                    *o++ = d * plane + h * s.dilation[1] * line + w * s.dilation[2] * pixel + c;
    const int64_t across = (s.out[2] + l.columns - 1) / l.columns, down = g.blocks / s.images / s.out[0] / across;
    Tiles tiles;
    while (begin < end) {
        const int64_t tile = begin % g.tiles, block = begin / g.tiles % g.blocks, group = begin / g.tiles / g.blocks;
        const int64_t column = block % across * l.columns, first = block / across % down * g.block;
        const int64_t depth = block / across / down % s.out[0], image = block / across / down / s.out[0];
        int64_t count = g.tiles - tile < end - begin ? g.tiles - tile : end - begin;
        if (count > g.together) count = g.together;
        begin += count;
        const int64_t many = s.out[1] - first < g.block ? s.out[1] - first : g.block;
        const int64_t wide = s.out[2] - column < l.columns ? s.out[2] - column : l.columns;
        const int64_t row_units = (wide + l.unit - 1) / l.unit, units = many * row_units;
        const int64_t z0 = depth * s.stride[0] - s.begin[0], h0 = first * s.stride[1] - s.begin[1], w0 = column * s.stride[2] - s.begin[2];
        const source *from = (const source *)x + group * s.channels * s.x[1] + image * s.x[0];
        const source *window = copied;  // of the block's first pixel
        if (!copies) window = from + z0 * s.x[2] + h0 * s.x[3] + w0 * s.x[4];
        const int64_t lines = copies ? (many - 1) * s.stride[1] + (s.kernel[1] - 1) * s.dilation[1] + 1 : 0;
        const int64_t reach = (wide - 1) * s.stride[2] + (s.kernel[2] - 1) * s.dilation[2] + 1;
        for (int64_t d = 0; copies && d < s.kernel[0]; d++)
            for (int64_t i = 0; i < lines; i++) {
                const int64_t z = z0 + d * s.dilation[0], h = h0 + i;
                const bool padding = outside(z, s.in[0]) || outside(h, s.in[1]);
                copy_line(s, padding ? nullptr : from + z * s.x[2] + h * s.x[3], w0, reach, pixel, copied + d * plane + i * line);
            }
        for (int64_t f = 0; f < count * TILE; f++) {
            const int64_t c = tile * TILE + f;
            start[f] = c < s.filters ? value_at<bf16, float>(bias, group * s.filters + c) : 0;
        }
        for (int64_t k = 0; k < steps; k += CHUNK) {
            const int64_t next = steps - k < CHUNK ? steps : k + CHUNK;
            for (int64_t t = 0; t < count; t++) {
                const int64_t c = (tile + t) * TILE, channel = group * s.filters + c;
                const source *f = (const source *)filters + ((group * g.tiles + tile + t) * g.depth + k * TILE_DEPTH) * TILE;
                for (int64_t u = 0; u < units; u += 2) {
                    float *part = once ? sums : sums + (t * whole + u) * UNIT;
                    const source *a[2];
                    int64_t n[2] = {1, 1}, row[2], at[2];
                    const int64_t both = units - u < 2 ? 1 : 2;
                    for (int64_t i = 0; i < both; i++) {
                        row[i] = (u + i) / row_units, at[i] = (u + i) % row_units * l.unit;
                        n[i] = wide - at[i] < l.unit ? wide - at[i] : l.unit;
                        a[i] = window + row[i] * s.stride[1] * line + at[i] * stride;
                    }
                    tiles.use(n[0], n[1], TILE_DEPTH);
                    const void *first_sums = k ? part : start + t * TILE;
                    if (both == 2) tile_taps<true>(tiles, a[0], a[1], 2 * stride, offset + k, next - k, f, first_sums, k ? TILE_SUMS : 0, part);
                    else tile_taps<false>(tiles, a[0], a[0], 2 * stride, offset + k, next - k, f, first_sums, k ? TILE_SUMS : 0, part);
                    for (int64_t i = 0; next == steps && i < both; i++) {
                        Pixel p(s, ((image * s.out[0] + depth) * s.out[1] + first + row[i]) * s.out[2] + column + at[i]);
                        int64_t to[16], with[16];
                        for (int64_t j = 0; j < n[i]; j++, p.next(s)) to[j] = p.offset(s.y), with[j] = p.offset(s.r);
                        finish<Bf16Tiles, bf16, A, 2>(s, part + i * UNIT, to, with, n[i], s.filters - c < TILE ? s.filters - c : TILE,
                                                      residual ? residual + channel * s.r[1] : nullptr, y + channel * s.y[1]);
                    }
                }
            }
        }
    }
}

}  // namespace conv
