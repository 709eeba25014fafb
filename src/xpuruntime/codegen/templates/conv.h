// needs: conv_shape conv_act
// conv: convolution as a product of gathered pixels with packed filters (implicit GEMM), for every layout, stride and padding.
//
// A task is one tile of filters (NV vectors of output channels) over one block of output pixels. The depth (taps x channels)
// is processed in chunks: the block's inputs are gathered into rows of a fixed length in scratch, padding as zeros, and multiplied
// with the filters' chunk, P pixels x NV vectors of sums at a time, all in registers. Gathering costs about 2 / filters of
// the product, and frees it from stride, dilation, padding and the cache's associativity: a chunk of a filter tile and P rows
// fit the first cache, a block's rows and sums the second. Sums of chunks wait in scratch in the order in which they
// were begun, so that no split of the tasks changes a bit.

namespace conv {

struct Blocks {
    int64_t depth;                         // taps x channels, padded to whole words
    int64_t block, blocks, tiles;          // pixels of a block, blocks, tiles of filters of a group
    int64_t together;                      // tiles whose sums scratch holds at once
};

// ── arithmetic: the element type of rows, and the multiply-add of one word of the depth ──

struct F32 {
    template <class S> using source = S;
    typedef float row, sum, word;
    typedef vec<float, VECTOR_BYTES / 4> V, W;
    static INLINE_MEMBER V madd(V acc, float a, W w) { return acc + a * w; }
};
struct F64 {
    template <class S> using source = S;
    typedef double row, sum, word;
    typedef vec<double, VECTOR_BYTES / 8> V, W;
    static INLINE_MEMBER V madd(V acc, double a, W w) { return acc + a * w; }
};
#ifdef __AVX512BF16__
struct Bf16Pairs {  // a word is two neighbors of the depth; VDPBF16PS adds both products in float
    template <class S> using source = uint16_t;
    typedef uint16_t row;
    typedef float sum;
    typedef int32_t word;
    typedef vec<float, 16> V;
    typedef vec<int32_t, 16> W;
    static INLINE_MEMBER V madd(V acc, int32_t a, W w) {
        const W pair = splat<W>(a);
        asm("vdpbf16ps %2, %1, %0" : "+v"(acc) : "v"(w), "v"(pair));
        return acc;
    }
};
#endif

template <class M> constexpr int64_t CHUNK_BYTES = 768;                // of a row; _CHUNK_BYTES in kernels/cpu/conv/tiling.py
template <class M> constexpr int64_t ROW_BYTES = CHUNK_BYTES<M> + 64;  // an odd number of cache lines: rows map to different cache sets

// The sums of P pixels by NV vectors of filters, in registers: they begin with the bias, or with zeros without one.
template <class M, int P, int NV> INLINE void begin_sums(typename M::V (&acc)[P][NV], const typename M::sum *bias) {
    constexpr int L = lanes<typename M::V>;
#pragma GCC unroll 32
    for (int p = 0; p < P; p++)
#pragma GCC unroll 8
        for (int v = 0; v < NV; v++) acc[p][v] = bias ? ::load<L>(bias + v * L) : typename M::V{};
}
// Add one word of pixels PITCH words apart times one word of the filters.
template <class M, int PITCH, int P, int NV>
INLINE void multiply_word(typename M::V (&acc)[P][NV], const typename M::word *a, const char *filters) {
    typename M::W w[NV];
#pragma GCC unroll 8
    for (int v = 0; v < NV; v++) w[v] = ::load<lanes<typename M::V>>((const typename M::word *)(filters + v * VECTOR_BYTES));
#pragma GCC unroll 32
    for (int p = 0; p < P; p++)
#pragma GCC unroll 8
        for (int v = 0; v < NV; v++) acc[p][v] = M::madd(acc[p][v], a[p * PITCH], w[v]);
}
// Store the sums, or add them to those of the chunks before if they began without the bias.
template <class M, int P, int NV> INLINE void end_sums(const typename M::V (&acc)[P][NV], bool first, typename M::sum *sums) {
    constexpr int L = lanes<typename M::V>;
#pragma GCC unroll 32
    for (int p = 0; p < P; p++)
#pragma GCC unroll 8
        for (int v = 0; v < NV; v++) {
            typename M::sum *to = sums + (p * NV + v) * L;
            ::store<L>(to, first ? acc[p][v] : ::load<L>(to) + acc[p][v]);
        }
}

// sums[P][NV] = (bias or sums) + rows x filters. A chunk is accumulated in registers before it is added to `sums`, so that rounding errors
// grow with the chunk's length and the number of chunks, not with the depth. The pixel stride is BYTES; the depth consists of `lines` of
// `words` words with stride `jump`. Each word prefetches a cache line from `prefetch`.
template <class M, int P, int NV, int BYTES>
static __attribute__((noinline)) void product(const void *rows, const void *filters, int64_t words, int64_t lines, int64_t jump,
                                              typename M::sum *sums, const typename M::sum *bias, const char *prefetch) {
    const typename M::word *a = (const typename M::word *)rows;
    const char *b = (const char *)filters;
    typename M::V acc[P][NV];
    begin_sums<M>(acc, bias);
    for (; lines > 0; lines--, a += jump)
        for (int64_t k = 0; k < words; k++, b += NV * VECTOR_BYTES) {
            __builtin_prefetch(prefetch + k * 64, 0, 2);
            multiply_word<M, BYTES / sizeof(typename M::word)>(acc, a + k, b);
        }
    end_sums<M>(acc, bias != nullptr, sums);
}

// The same where step i reads a cache line of the depth at offset[i] from the pixels.
template <class M, int P, int NV, int BYTES>
static __attribute__((noinline)) void product_of_steps(const typename M::row *pixels, const int64_t *offset, int64_t steps,
                                                       const void *filters, typename M::sum *sums, const typename M::sum *bias,
                                                       const char *prefetch) {
    typedef typename M::word word;
    const char *b = (const char *)filters;
    typename M::V acc[P][NV];
    begin_sums<M>(acc, bias);
    for (int64_t i = 0; i < steps; i++) {
        const word *a = (const word *)(pixels + offset[i]);
        for (int k = 0; k < int(64 / sizeof(word)); k++, b += NV * VECTOR_BYTES, prefetch += 64) {
            __builtin_prefetch(prefetch, 0, 2);
            multiply_word<M, BYTES / sizeof(word)>(acc, a + k, b);
        }
    }
    end_sums<M>(acc, bias != nullptr, sums);
}

// ── gathering ──

template <class R> INLINE void zero(R *to, int64_t n) {
    constexpr int L = VECTOR_BYTES / sizeof(R);
    for (; n >= L; n -= L, to += L) ::store<L>(to, vec<R, L>{});
#if defined(MASKED)
    if constexpr (sizeof(R) == 2) return ::store<L>(to, vec<R, L>{}, n);
#endif
    for (; n > 0; n--, to++) {
        asm("" : "+r"(to));  // a few elements: no call of memset
        *to = 0;
    }
}
// Copy n contiguous elements in the rows' type: whole vectors, the last one overlapping; for less than one a mask, or narrower ones.
template <int L, class R, class S> INLINE void copy(R *to, const S *from, int64_t n) {
    if (n >= L) {
        for (int64_t i = 0; i + L <= n; i += L) ::store<L>(to + i, ::load<L>(from + i));
        if (n % L) ::store<L>(to + n - L, ::load<L>(from + n - L));
    }
#if defined(MASKED)
    else if constexpr (L * sizeof(R) == 64 && sizeof(R) == 2) ::store<L>(to, ::load<L>(from, n), n);
#endif
    else if constexpr (L > 2) copy<L / 2>(to, from, n);
    else if (n) *to = ::load<1>(from);
}
template <class R, class S> INLINE void move(R *to, const S *from, int64_t n, int64_t step) {
    if (step == 1) return copy<VECTOR_BYTES / sizeof(R)>(to, from, n);
    for (int64_t i = 0; i < n; i++) {
        asm("" : "+r"(i));  // a few elements: no vectors
        to[i] = ::load<1>(from + i * step);
    }
}

// Rows of `count` pixels for the depth [from, to): taps, and the channels of each.
template <class M, class S>
static __attribute__((noinline)) void gather_taps(const Shape &s, const S *x, int64_t pixel, int64_t count, int64_t from, int64_t to,
                                                  typename M::row *row) {
    const int64_t run = s.channels, real = s.kernel[0] * s.kernel[1] * s.kernel[2] * run, first = from / run, inside = from % run;
    const int64_t w0 = first % s.kernel[2], h0 = first / s.kernel[2] % s.kernel[1], d0 = first / s.kernel[2] / s.kernel[1];
    Pixel at(s, pixel);
    for (int64_t p = 0; p < count; p++, at.next(s), row += ROW_BYTES<M> / sizeof(*row)) {
        const S *image = x + at.n * s.x[0];
        int64_t w = w0, h = h0, d = d0, k = inside;
        for (int64_t done = from; done < to; k = 0) {
            typename M::row *out = row + (done - from);
            if (done >= real) {  // padding to a whole word
                zero(out, to - done);
                break;
            }
            const int64_t n = run - k < to - done ? run - k : to - done;
            done += n;
            const int64_t z = input_index(s, at, 0, d), y = input_index(s, at, 1, h), c = input_index(s, at, 2, w);
            if (outside(z, s.in[0]) || outside(y, s.in[1]) || outside(c, s.in[2])) zero(out, n);
            else move(out, image + z * s.x[2] + y * s.x[3] + c * s.x[4] + k * s.x[1], n, s.x[1]);
            if (++w == s.kernel[2]) {
                w = 0;
                if (++h == s.kernel[1]) h = 0, d++;
            }
        }
    }
}

// The same where the taps of a row and their channels are contiguous, so one run covers the row.
template <class M, class S>
static __attribute__((noinline)) void gather_lines(const Shape &s, const S *x, int64_t pixel, int64_t count, int64_t from, int64_t to,
                                                   typename M::row *row) {
    constexpr int L = VECTOR_BYTES / sizeof(typename M::row);
    const int64_t run = s.kernel[2] * s.channels, first = from / run, inside = from % run, all = s.kernel[0] * s.kernel[1] * run;
    const int64_t h0 = first % s.kernel[1], d0 = first / s.kernel[1], real = all < to ? all : to;
    const int64_t high = (s.kernel[1] - 1) * s.dilation[1], deep = (s.kernel[0] - 1) * s.dilation[0];
    Pixel at(s, pixel);
    for (int64_t p = 0; p < count; p++, at.next(s), row += ROW_BYTES<M> / sizeof(*row)) {
        const int64_t c = at.at[2] * s.stride[2] - s.begin[2];
        const int64_t left = c < 0 ? -c * s.channels : 0, right = (s.in[2] - c) * s.channels;  // the part of a run inside the input
        int64_t h = h0, d = d0, k = inside;
        int64_t z = at.at[0] * s.stride[0] - s.begin[0] + d * s.dilation[0], y = at.at[1] * s.stride[1] - s.begin[1] + h * s.dilation[1];
        const S *line = x + at.n * s.x[0] + z * s.x[2] + y * s.x[3] + c * s.x[4];
        typename M::row *out = row;
        if (real - from == all && left <= 0 && run <= right && y >= 0 && y + high < s.in[1] && z >= 0 && z + deep < s.in[0]) {
            for (; d < s.kernel[0]; d++, line += s.dilation[0] * s.x[2])  // nothing of the window is padding
                for (h = 0; h < s.kernel[1]; h++, out += run) copy<L>(out, line + h * s.dilation[1] * s.x[3], run);
            zero(out, row + (to - from) - out);
            continue;
        }
        for (int64_t done = from; done < real; k = 0) {
            const int64_t end = run - k < real - done ? run : k + real - done, n = end - k;
            if (outside(z, s.in[0]) || outside(y, s.in[1])) zero(out, n);
            else if (left <= k && end <= right) copy<L>(out, line + k, n);
            else {
                const int64_t a = left < k ? k : left < end ? left : end, b = right < a ? a : right < end ? right : end;
                zero(out, a - k);
                copy<L>(out + (a - k), line + a, b - a);
                zero(out + (b - k), end - b);
            }
            done += n, out += n;
            if (++h < s.kernel[1]) y += s.dilation[1], line += s.dilation[1] * s.x[3];
            else {
                h = 0, y = at.at[1] * s.stride[1] - s.begin[1], z += s.dilation[0];
                line = x + at.n * s.x[0] + z * s.x[2] + y * s.x[3] + c * s.x[4];
            }
        }
        zero(out, row + (to - from) - out);
    }
}

// ── the end of a sum: y = act(sum + residual) ──

template <class M, class S, class A, int NV>
static __attribute__((noinline)) void finish(const Shape &s, const typename M::sum *sums, const int64_t *to, const int64_t *with,
                                             int64_t count, int64_t filters, const S *residual, S *y) {
    typedef typename M::V V;
    constexpr int L = lanes<V>;
    const bool rows = s.y[1] == 1 && (!residual || s.r[1] == 1);
    for (int64_t p = 0; p < count; p++, sums += NV * L) {
        S *out = y + to[p];
        const S *add = residual ? residual + with[p] : nullptr;
        if (rows) {
            int64_t f = 0;
            for (; f + L <= filters; f += L) {
                V v = ::load<L>(sums + f);
                if (add) v += ::load<L>(add + f);
                ::store<L>(out + f, A::of(v));
            }
            if (f < filters) {
                V v = ::load<L>(sums + f);
                if (add) v += ::load<L>(add + f, filters - f);
                ::store<L>(out + f, A::of(v), filters - f);
            }
        } else
            for (int64_t f = 0; f < filters; f++) {
                typename M::sum v = sums[f];
                if (add) v += ::load<1>(add + f * s.r[1]);
                ::store<1>(out + f * s.y[1], A::of(v));
            }
    }
}

// Tasks count on over tiles, next_filters blocks, next_filters groups. Scratch: rows | sums | bias of the tiles | output and residual offsets of the pixels.
// If PIXEL_BYTES (the pixel stride in bytes) is not 0, whole tiles of pixels are read in place without a gather: one tap, no stride, no
// padding, one chunk of depth, and a constant pixel stride in input, result and residual.
template <class M, class S, class A, int P, int NV, int PIXEL_BYTES = 0>
static __attribute__((noinline)) void run(const Shape &s, const Blocks &g, const S *x, const void *filters, const S *bias,
                                          const S *residual, S *y, int64_t begin, int64_t end, void *scratch) {
    typedef typename M::sum sum;
    typedef typename M::template source<S> source;
    constexpr int64_t TILE = NV * lanes<typename M::V>, CHUNK = CHUNK_BYTES<M> / sizeof(typename M::row);
    constexpr int64_t WORD = sizeof(typename M::word) / sizeof(typename M::row), PITCH = ROW_BYTES<M> / sizeof(typename M::row);
    const int64_t whole = (g.block + P - 1) / P * P, pixels = s.images * s.out[0] * s.out[1] * s.out[2];
    const bool lines = !s.transposed && s.dilation[2] == 1 && s.x[1] == 1 && (s.x[4] == s.channels || s.kernel[2] == 1);
    const bool once = g.depth <= CHUNK;  // no sum waits for another chunk
    typename M::row *rows = (typename M::row *)scratch;
    sum *sums = (sum *)((char *)scratch + whole * ROW_BYTES<M>), *start = sums + (once ? P : g.together * whole) * TILE;
    int64_t *to = (int64_t *)(start + g.together * TILE), *with = to + g.block;
    while (begin < end) {
        const int64_t tile = begin % g.tiles, block = begin / g.tiles % g.blocks, group = begin / g.tiles / g.blocks;
        int64_t count = g.tiles - tile < end - begin ? g.tiles - tile : end - begin;
        if (count > g.together) count = g.together;
        begin += count;
        const int64_t first = block * g.block, many = pixels - first < g.block ? pixels - first : g.block;
        const int64_t in_place = PIXEL_BYTES ? many / P * P : 0;  // pixels that are not gathered
        Pixel at(s, PIXEL_BYTES ? 0 : first);
        if constexpr (PIXEL_BYTES > 0)
            for (int64_t p = 0; p < many; p++) to[p] = (first + p) * s.y[4], with[p] = (first + p) * s.r[4];
        else
            for (int64_t p = 0; p < many; p++, at.next(s)) to[p] = at.offset(s.y), with[p] = at.offset(s.r);
        for (int64_t f = 0; f < count * TILE; f++) {
            const int64_t c = tile * TILE + f;
            start[f] = c < s.filters ? value_at<S, sum>(bias, group * s.filters + c) : 0;
        }
        for (int64_t k = 0; k == 0 || k < g.depth; k += CHUNK) {
            const int64_t next = g.depth - k < CHUNK ? g.depth : k + CHUNK;
            if (in_place < many)
                (lines ? gather_lines<M, source> : gather_taps<M, source>)(s, (const source *)x + group * s.channels * s.x[1], first + in_place,
                                                                           many - in_place, k, next, rows + in_place * PITCH);
            for (int64_t t = 0; t < count; t++) {
                const int64_t c = (tile + t) * TILE, o = group * s.filters + c;
                const typename M::row *f = (const typename M::row *)filters + ((group * g.tiles + tile + t) * g.depth + k) * TILE;
                // Each product prefetches a part of the filters of the next chunk.
                const int64_t bytes = (next - k) * TILE * sizeof(*f), share = (next - k) / WORD * 64;
                const char *next_filters = (const char *)(t + 1 < count ? f + g.depth * TILE : f - (t * g.depth - CHUNK) * TILE);
                for (int64_t p = 0; p < many; p += P) {
                    sum *part = once ? sums : sums + (t * whole + p) * TILE;
                    const char *prefetch = p / P * share < bytes ? next_filters + p / P * share : (const char *)f;
                    if (PIXEL_BYTES && p < in_place)
                        product<M, P, NV, PIXEL_BYTES ? PIXEL_BYTES : ROW_BYTES<M>>((const char *)x + (first + p) * PIXEL_BYTES, f, g.depth / WORD,
                                                                                  1, 0, part, start + t * TILE, prefetch);
                    else
                        product<M, P, NV, ROW_BYTES<M>>(rows + p * PITCH, f, (next - k) / WORD, 1, 0, part,
                                                        k ? nullptr : start + t * TILE, prefetch);
                    if (next == g.depth)
                        finish<M, S, A, NV>(s, part, to + p, with + p, many - p < P ? many - p : P,
                                            s.filters - c < TILE ? s.filters - c : TILE, residual ? residual + o * s.r[1] : nullptr,
                                            y + o * s.y[1]);
                }
            }
        }
    }
}

// The same for few channels (a net's first layer), where gathering would take as long as the product: a block is `g.block` rows of
// `columns` output pixels of a plane; the input lines of their windows are copied once, with padding, and adjacent pixels read them with
// stride BYTES. Lines hold `length` elements, `lines` of them each plane of the kernel. Scratch: lines | sums | bias of the tiles | offsets.
template <class M, class S, class A, int P, int NV, int BYTES>
static __attribute__((noinline)) void run_lines(const Shape &s, const Blocks &g, int64_t lines, int64_t length, int64_t columns, const S *x,
                                                const void *filters, const S *bias, const S *residual, S *y, int64_t begin, int64_t end,
                                                void *scratch) {
    typedef typename M::row row;
    typedef typename M::sum sum;
    constexpr int64_t TILE = NV * lanes<typename M::V>, CHUNK = CHUNK_BYTES<M> / sizeof(row);
    row *copied = (row *)scratch;
    sum *sums = (sum *)(copied + s.kernel[0] * lines * length), *start = sums + P * TILE;
    int64_t *to = (int64_t *)(start + g.tiles * TILE), *with = to + g.block * columns;
    if (!(s.images * s.out[0] * s.out[1] * s.out[2])) return;
    const int64_t across = (s.out[2] + columns - 1) / columns, down = g.blocks / s.images / s.out[0] / across;
    const int64_t run = s.kernel[2] * s.channels, part = run < CHUNK ? run : CHUNK;     // of a line, per product
    const int64_t together = part < run ? 1 : CHUNK / run < s.kernel[1] ? CHUNK / run : s.kernel[1];  // lines of a product
    while (begin < end) {
        const int64_t tile = begin % g.tiles, block = begin / g.tiles, column = block % across * columns, first = block / across % down * g.block;
        const int64_t depth = block / across / down % s.out[0], image = block / across / down / s.out[0];
        const int64_t count = g.tiles - tile < end - begin ? g.tiles - tile : end - begin;
        const int64_t many = s.out[1] - first < g.block ? s.out[1] - first : g.block;
        const int64_t wide = s.out[2] - column < columns ? s.out[2] - column : columns;
        begin += count;
        for (int64_t d = 0; d < s.kernel[0]; d++)
            for (int64_t l = 0; l < lines; l++) {
                row *line = copied + (d * lines + l) * length;
                const int64_t z = depth * s.stride[0] - s.begin[0] + d * s.dilation[0], h = first * s.stride[1] - s.begin[1] + l;
                // line[i] is the input's i - before
                const int64_t before = (s.begin[2] - column * s.stride[2]) * s.channels, whole = s.in[2] * s.channels;
                int64_t a = before > 0 ? before < length ? before : length : 0, b = before + whole < length ? before + whole : length;
                if (outside(z, s.in[0]) || outside(h, s.in[1])) a = b = length;
                if (b < a) b = a;
                zero(line, a);
                copy<VECTOR_BYTES / sizeof(row)>(line + a, x + image * s.x[0] + z * s.x[2] + h * s.x[3] + a - before, b - a);
                zero(line + b, length - b);
            }
        for (int64_t r = 0; r < many; r++) {
            Pixel at(s, ((image * s.out[0] + depth) * s.out[1] + first + r) * s.out[2] + column);
            for (int64_t p = r * wide; p < (r + 1) * wide; p++, at.next(s)) to[p] = at.offset(s.y), with[p] = at.offset(s.r);
        }
        for (int64_t f = 0; f < count * TILE; f++)
            start[f] = tile * TILE + f < s.filters ? value_at<S, sum>(bias, tile * TILE + f) : 0;
        for (int64_t t = 0; t < count; t++) {
            const int64_t o = (tile + t) * TILE;
            const row *packed = (const row *)filters + o * g.depth;
            for (int64_t r = 0; r < many; r++)
                for (int64_t p = 0; p < wide; p += P) {
                    const sum *from = start + t * TILE;  // of the first product; the others add to its sums
                    for (int64_t d = 0; d < s.kernel[0]; d++)
                        for (int64_t h = 0; h < s.kernel[1]; h += together)
                            for (int64_t k = 0; k < run; k += part) {
                                const row *window = copied + (d * lines + r * s.stride[1] + h * s.dilation[1]) * length + p * s.stride[2] * s.channels;
                                const row *taps = packed + ((d * s.kernel[1] + h) * run + k) * TILE;
                                product<M, P, NV, BYTES>(window + k, taps, run - k < part ? run - k : part,
                                                         s.kernel[1] - h < together ? s.kernel[1] - h : together, s.dilation[1] * length, sums,
                                                         from, (const char *)taps);
                                from = nullptr;
                            }
                    finish<M, S, A, NV>(s, sums, to + r * wide + p, with + r * wide + p, wide - p < P ? wide - p : P,
                                        s.filters - o < TILE ? s.filters - o : TILE, residual ? residual + o * s.r[1] : nullptr,
                                        y + o * s.y[1]);
                }
        }
    }
}

// Input lines of `run_windows`. count: lines that are copied per plane of the kernel, with padding; 0 if no window has padding: then they are
// read in place. pixels: of a copied line. pitch: elements between its pixels. columns: of a block. unit: pixels of a product.
struct Lines {
    int64_t count, pixels, pitch, columns, unit;
};

// P adjacent pixels, BYTES apart in their line, by NV vectors of filters for `run_windows`.
template <class Arithmetic, int P, int NV_, int BYTES> struct VectorWindows {
    typedef Arithmetic M;
    static constexpr int NV = NV_, together = 1;
    static constexpr int64_t STEP = 64 / sizeof(typename M::row), SUMS = P * NV * lanes<typename M::V>;
    INLINE_MEMBER void operator()(const typename M::row *const (&a)[2], const int64_t (&)[2], int64_t, const int64_t *offset, int64_t steps,
                                  const void *filters, typename M::sum *sums, const typename M::sum *bias, const char *prefetch) {
        product_of_steps<M, P, NV, BYTES>(a[0], offset, steps, filters, sums, bias, prefetch);
    }
};

// `count` pixels of an input line from pixel `from` on, which may be outside; a null line is all padding.
template <class R, class S> INLINE void copy_line(const Shape &s, const S *line, int64_t from, int64_t count, int64_t pitch, R *to) {
    constexpr int L = VECTOR_BYTES / sizeof(R);
    const int64_t size = line ? s.in[2] : 0, a = from >= 0 ? 0 : -from < count ? -from : count;
    const int64_t b = size - from < a ? a : size - from < count ? size - from : count;  // pixels a to b are input
    if (pitch == s.channels && s.x[4] == pitch) {
        zero(to, a * pitch);
        if (a < b) copy<L>(to + a * pitch, line + (from + a) * pitch, (b - a) * pitch);
        zero(to + b * pitch, (count - b) * pitch);
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        if (i < a || i >= b) zero(to + i * pitch, s.channels);
        else copy<L>(to + i * pitch, line + (from + i) * s.x[4], s.channels);
    }
}

// The same as `run` without gathered rows, for contiguous channels that are whole steps: adjacent pixels of a row of output read their lines
// with a constant stride. A block is `g.block` rows of `l.columns` output pixels of a plane, whose input lines are copied once where
// windows have padding. K multiplies. Scratch: lines | sums | bias of the tiles | offsets of the steps.
template <class K, class S, class A>
static __attribute__((noinline)) void run_windows(const Shape &s, const Blocks &g, const Lines &l, const S *x, const void *filters,
                                                  const S *bias, const S *residual, S *y, int64_t begin, int64_t end, void *scratch) {
    typedef typename K::M M;
    typedef typename M::row row;
    typedef typename M::sum sum;
    typedef typename M::template source<S> source;
    constexpr int64_t TILE = K::NV * lanes<typename M::V>, CHUNK = CHUNK_BYTES<M> / sizeof(row) / K::STEP;  // steps
    if (!(s.images * s.out[0] * s.out[1] * s.out[2])) return;
    const bool copies = l.count > 0;
    const int64_t pixel = copies ? l.pitch : s.x[4], line = copies ? l.pixels * l.pitch : s.x[3];
    const int64_t plane = copies ? l.count * line : s.dilation[0] * s.x[2], stride = s.stride[2] * pixel;
    const int64_t steps = g.depth / K::STEP, whole = g.block * ((l.columns + l.unit - 1) / l.unit);
    const bool once = steps <= CHUNK;  // no sum waits for another chunk
    row *copied = (row *)scratch;
    sum *sums = (sum *)(copied + (copies ? s.kernel[0] * plane : 0)), *start = sums + (once ? K::together : g.together * whole) * K::SUMS;
    int64_t *offset = (int64_t *)(start + g.together * TILE), *o = offset;
    for (int64_t d = 0; d < s.kernel[0]; d++)
        for (int64_t h = 0; h < s.kernel[1]; h++)
            for (int64_t w = 0; w < s.kernel[2]; w++)
                for (int64_t c = 0; c < s.channels; c += K::STEP) *o++ = d * plane + h * s.dilation[1] * line + w * s.dilation[2] * pixel + c;
    const int64_t across = (s.out[2] + l.columns - 1) / l.columns, down = g.blocks / s.images / s.out[0] / across;
    K multiply;
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
        const row *window = copied;  // of the block's first pixel
        if (!copies) window = (const row *)(from + z0 * s.x[2] + h0 * s.x[3] + w0 * s.x[4]);
        const int64_t lines = copies ? (many - 1) * s.stride[1] + (s.kernel[1] - 1) * s.dilation[1] + 1 : 0;
        for (int64_t d = 0; copies && d < s.kernel[0]; d++)
            for (int64_t i = 0; i < lines; i++) {
                const int64_t z = z0 + d * s.dilation[0], h = h0 + i;
                const bool padding = outside(z, s.in[0]) || outside(h, s.in[1]);
                copy_line(s, padding ? nullptr : from + z * s.x[2] + h * s.x[3], w0, l.pixels, pixel, copied + d * plane + i * line);
            }
        for (int64_t f = 0; f < count * TILE; f++) {
            const int64_t c = tile * TILE + f;
            start[f] = c < s.filters ? value_at<S, sum>(bias, group * s.filters + c) : 0;
        }
        for (int64_t k = 0; k < steps; k += CHUNK) {
            const int64_t next = steps - k < CHUNK ? steps : k + CHUNK;
            for (int64_t t = 0; t < count; t++) {
                const int64_t c = (tile + t) * TILE, channel = group * s.filters + c;
                const row *f = (const row *)filters + ((group * g.tiles + tile + t) * g.depth + k * K::STEP) * TILE;
                // Each product prefetches a part of the filters of the next chunk.
                const int64_t bytes = (next - k) * K::STEP * TILE * sizeof(row), share = (next - k) * K::STEP * sizeof(row) / sizeof(typename M::word) * 64;
                const char *next_filters = (const char *)(t + 1 < count ? f + g.depth * TILE : f - (t * g.depth - CHUNK * K::STEP) * TILE);
                for (int64_t u = 0; u < units; u += K::together) {
                    sum *part = once ? sums : sums + (t * whole + u) * K::SUMS;
                    const char *prefetch = u * share < bytes ? next_filters + u * share : (const char *)f;
                    const row *a[2] = {};
                    int64_t pixels[2] = {}, down_by[2], at[2];
                    for (int64_t i = 0; i < K::together && u + i < units; i++) {
                        down_by[i] = (u + i) / row_units, at[i] = (u + i) % row_units * l.unit;
                        pixels[i] = wide - at[i] < l.unit ? wide - at[i] : l.unit;
                        a[i] = window + down_by[i] * s.stride[1] * line + at[i] * stride;
                    }
                    multiply(a, pixels, stride, offset + k, next - k, f, part, k ? nullptr : start + t * TILE, prefetch);
                    for (int64_t i = 0; next == steps && i < K::together && pixels[i]; i++) {
                        int64_t to[32], with[32];
                        Pixel p(s, ((image * s.out[0] + depth) * s.out[1] + first + down_by[i]) * s.out[2] + column + at[i]);
                        to[0] = p.offset(s.y), with[0] = p.offset(s.r);
                        for (int64_t j = 1; j < pixels[i]; j++) to[j] = to[j - 1] + s.y[4], with[j] = with[j - 1] + s.r[4];
                        finish<M, S, A, K::NV>(s, part + i * K::SUMS, to, with, pixels[i], s.filters - c < TILE ? s.filters - c : TILE,
                                               residual ? residual + channel * s.r[1] : nullptr, y + channel * s.y[1]);
                    }
                }
            }
        }
    }
}

// Pack filters in tiles, in the order of the depth. Only for computed weights; the recipe packs constant ones.
// `w`: strides of filter, channel and the three dims of the kernel, and between groups.
template <class M, class S, int NV>
static __attribute__((noinline)) void pack(const Shape &s, const Blocks &g, const S *from, const int64_t (&w)[6], typename M::row *to,
                                           int64_t begin, int64_t end) {
    typedef typename M::template source<S> source;
    constexpr int64_t TILE = NV * lanes<typename M::V>, WORD = sizeof(typename M::word) / sizeof(typename M::row);
    for (int64_t task = begin; task < end; task++) {
        typename M::row *out = to + task * g.depth * TILE;
        zero(out, g.depth * TILE);
        const source *group = (const source *)from + task / g.tiles * w[5];
        int64_t k = 0;
        for (int64_t d = 0; d < s.kernel[0]; d++)
            for (int64_t h = 0; h < s.kernel[1]; h++)
                for (int64_t v = 0; v < s.kernel[2]; v++)
                    for (int64_t c = 0; c < s.channels; c++, k++)
                        for (int64_t f = 0; f < TILE && task % g.tiles * TILE + f < s.filters; f++) {
                            const int64_t o = task % g.tiles * TILE + f;
                            const source *one = group + o * w[0] + c * w[1] + d * w[2] + h * w[3] + v * w[4];
                            move(out + (k / WORD * TILE + f) * WORD + k % WORD, one, 1, 1);
                        }
    }
}

}  // namespace conv
