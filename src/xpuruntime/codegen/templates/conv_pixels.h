// needs: conv_shape conv_act movement
// conv_pixels: convolutions with few filters. Vectors run along the output positions of a row, not along the filters, of which a vector would
// be almost empty. The windows of adjacent positions are adjacent (no stride along the row), so a tap of a vector of positions is one load.
//
// A task is a block of positions: `rows` rows of `columns` positions of a plane. F filters x V vectors of sums are in registers. The channels are
// processed in chunks, whose sums are added in scratch, so that rounding errors grow with the chunk and the number of chunks. Row-major
// input is read in place; other layouts, other dtypes and the ends of rows are copied to lines in scratch first, padding along the row as
// zeros. Rows of taps outside the input are skipped.

namespace pixels {

using conv::Shape;

struct Blocks {
    int64_t rows, columns;     // output positions of a task
    int64_t down, across;      // tasks of a plane
    int64_t tiles;             // tiles of F filters of a group
    int64_t channels;          // of a chunk
    int64_t lines, length;     // copied lines of a plane of the kernel, and their elements
    int64_t pitch;             // elements between the copied lines of two channels
};

// The part of a window: rows of taps inside the input, and steps between its elements and its filters.
struct Window {
    int64_t planes, rows, columns;                 // taps
    int64_t x_channel, x_plane, x_row, x_column;   // steps between input elements
    int64_t w_channel, w_plane;                    // steps between filters; rows and columns are contiguous
};

template <class S> using compute = typename storage_<S>::compute;

// Keep a vector in a register. Compilers fold a load that several multiplications share into each of them, and loads that cross cache lines are slow.
template <class P> INLINE void keep(P &v) {
#if defined(__x86_64__)
    asm("" : "+v"(v));
#elif defined(__aarch64__)
    asm("" : "+w"(v));
#endif
}

// sums[F][pitch] (+)= filters x windows, for V vectors of positions. `ahead`: prefetch the vectors that follow, for a row that is not copied.
template <class T, int F, int V>
static __attribute__((noinline)) void product(const Window &g, const T *x, const T *w, int64_t channels, T *sums, int64_t pitch, bool add,
                                              bool ahead) {
    constexpr int L = VECTOR_BYTES / sizeof(T);
    typedef vec<T, L> P;
    P acc[F][V];
#pragma GCC unroll 8
    for (int f = 0; f < F; f++)
#pragma GCC unroll 8
        for (int v = 0; v < V; v++) acc[f][v] = P{};
    for (; channels > 0; channels--, x += g.x_channel, w += g.w_channel)
        for (int64_t d = 0; d < g.planes; d++) {
            const T *line = x + d * g.x_plane, *taps = w + d * g.w_plane;
            for (int64_t h = 0; h < g.rows; h++, line += g.x_row) {
                if (ahead && h + 1 == g.rows)
#pragma GCC unroll 8
                    for (int v = 0; v < V; v++) __builtin_prefetch(line + (V + v) * L, 0, 2);
                const T *at = line;
                for (int64_t k = 0; k < g.columns; k++, at += g.x_column, taps += F) {
                    P in[V];
#pragma GCC unroll 8
                    for (int v = 0; v < V; v++) {
                        in[v] = ::load<L>(at + v * L);
                        if constexpr (F > 1) keep(in[v]);
                    }
#pragma GCC unroll 8
                    for (int f = 0; f < F; f++) {
                        const P tap = splat<P>(taps[f]);
#pragma GCC unroll 8
                        for (int v = 0; v < V; v++) acc[f][v] += in[v] * tap;
                    }
                }
            }
        }
#pragma GCC unroll 8
    for (int f = 0; f < F; f++)
#pragma GCC unroll 8
        for (int v = 0; v < V; v++) {
            T *to = sums + f * pitch + v * L;
            ::store<L>(to, add ? (P)(::load<L>(to) + acc[f][v]) : acc[f][v]);
        }
}

// One row of the input as a line per channel, in the type of the sums: `length` positions from `start` on, zeros outside the row.
template <class S>
static __attribute__((noinline)) void copy_row(const S *x, int64_t channel_step, int64_t step, int64_t size, int64_t start, int64_t channels,
                                               compute<S> *to, int64_t length, int64_t pitch) {
    typedef compute<S> T;
    constexpr int L = VECTOR_BYTES / sizeof(T);
    int64_t a = start < 0 ? -start < length ? -start : length : 0, b = size - start < length ? size - start : length;
    if (b < a) b = a;
    const S *from = x + (start + a) * step;
    for (int64_t c = 0; c < channels; c++) {
        fill_run(to + c * pitch, (T)0, a);
        fill_run(to + c * pitch + b, (T)0, length - b);
    }
    if (step != 1 && channel_step == 1)
        if constexpr (same<S, T> && L >= 8) return transpose<32>(to + a, pitch, from, step, channels, b - a);
    for (int64_t c = 0; c < channels; c++, to += pitch, from += channel_step) {
        int64_t i = a;
        if (step == 1) {
            for (; i + L <= b; i += L) ::store<L>(to + i, ::load<L>(from + (i - a)));
            if (i < b) ::store<L>(to + i, ::load<L>(from + (i - a), b - i), b - i);
            continue;
        }
        for (; i < b; i++) to[i] = ::load<1>(from + (i - a) * step);
    }
}

// y = act(sum + bias + residual) for `count` positions of a row.
template <class S, class A>
static __attribute__((noinline)) void finish(const compute<S> *sums, const S *bias, const S *residual, int64_t residual_step, S *y, int64_t step,
                                             int64_t count) {
    typedef compute<S> T;
    constexpr int L = VECTOR_BYTES / sizeof(T);
    typedef vec<T, L> P;
    const T start = bias ? (T)::load<1>(bias) : (T)0;
    for (int64_t p = 0; p < count; p += L) {
        const int64_t n = count - p;
        P v = ::load<L>(sums + p) + splat<P>(start);
        if (residual) {
            const S *from = residual + p * residual_step;
            if (n < L) v += ::gather<L>(from, residual_step, n);
            else v += residual_step == 1 ? ::load<L>(from) : ::gather<L>(from, residual_step);
        }
        v = A::of(v);
        S *to = y + p * step;
        if (step == 1 && n >= L) ::store<L>(to, v);
        else if (step == 1) ::store<L>(to, v, n);
        else ::scatter<L>(to, step, v, n < L ? n : L);
    }
}

// The taps of dim d that are inside the input at output index o.
struct Taps { int64_t from, count; };
INLINE Taps taps(const Shape &s, int d, int64_t o) {
    const int64_t start = o * s.stride[d] - s.begin[d], step = s.dilation[d];
    int64_t from = start < 0 ? (step - 1 - start) / step : 0, to = start < s.in[d] ? (s.in[d] - 1 - start) / step + 1 : 0;
    if (to > s.kernel[d]) to = s.kernel[d];
    return {from, to > from ? to - from : 0};
}

// Tasks count over columns, rows, planes, images, and groups. Scratch: lines | sums[rows][tiles * F][columns].
template <class S, class A, int F, int V>
static __attribute__((noinline)) void run(const Shape &s, const Blocks &g, const S *x, const void *filters, const S *bias, const S *residual,
                                          S *y, int64_t begin, int64_t end, void *scratch) {
    typedef compute<S> T;
    constexpr int64_t P = V * (VECTOR_BYTES / sizeof(T));
    if (!(s.images * s.out[0] * s.out[1] * s.out[2])) return;
    const int64_t plane_taps = s.kernel[1] * s.kernel[2], depth = s.channels * s.kernel[0] * plane_taps;
    const int64_t reach = (s.kernel[2] - 1) * s.dilation[2], width = (g.columns + P - 1) / P * P;
    T *lines = (T *)scratch, *sums = lines + g.channels * g.pitch;
    for (int64_t task = begin; task < end; task++) {
        const int64_t column = task % g.across * g.columns, row = task / g.across % g.down * g.rows;
        const int64_t plane = task / g.across / g.down % s.out[0], outer = task / g.across / g.down / s.out[0];
        const int64_t image = outer % s.images, group = outer / s.images;
        const int64_t many = s.out[1] - row < g.rows ? s.out[1] - row : g.rows;
        const int64_t wide = s.out[2] - column < g.columns ? s.out[2] - column : g.columns, whole = (wide + P - 1) / P * P;
        const int64_t start = column - s.begin[2], top = row * s.stride[1] - s.begin[1], front = plane * s.stride[0] - s.begin[0];
        const S *from = x + image * s.x[0] + group * s.channels * s.x[1];
        const T *packed = (const T *)filters + group * g.tiles * depth * F;
        bool in_place = false;
        if constexpr (same<S, T>) in_place = s.x[4] == 1 && start >= 0 && start + whole + reach <= s.in[2];
        const Taps planes = taps(s, 0, plane);
        for (int64_t c = 0; c == 0 || c < s.channels; c += g.channels) {
            const int64_t chunk = s.channels - c < g.channels ? s.channels - c : g.channels;
            if (!in_place)
                for (int64_t d = planes.from; d < planes.from + planes.count; d++)
                    for (int64_t l = 0; l < (many - 1) * s.stride[1] + (s.kernel[1] - 1) * s.dilation[1] + 1; l++)
                        if (!conv::outside(top + l, s.in[1]))
                            copy_row(from + c * s.x[1] + (front + d * s.dilation[0]) * s.x[2] + (top + l) * s.x[3], s.x[1], s.x[4], s.in[2], start,
                                     chunk, lines + (d * g.lines + l) * g.length, whole + reach, g.pitch);
            for (int64_t r = 0; r < many; r++) {
                const Taps rows = taps(s, 1, row + r);
                Window window = {planes.count, rows.count, s.kernel[2], g.pitch, g.lines * g.length, s.dilation[1] * g.length, s.dilation[2],
                                 s.kernel[0] * plane_taps * F, plane_taps * F};
                const T *first = lines + (planes.from * g.lines + r * s.stride[1] + rows.from * s.dilation[1]) * g.length;
                if constexpr (same<S, T>)
                    if (in_place) {
                        window.x_channel = s.x[1], window.x_plane = s.dilation[0] * s.x[2], window.x_row = s.dilation[1] * s.x[3];
                        first = from + c * s.x[1] + (front + planes.from * s.dilation[0]) * s.x[2] +
                                (top + r * s.stride[1] + rows.from * s.dilation[1]) * s.x[3] + start;
                    }
                for (int64_t p = 0; p < whole; p += P)
                    for (int64_t t = 0; t < g.tiles; t++) {
                        const T *taps_ = packed + (t * depth + c * s.kernel[0] * plane_taps + planes.from * plane_taps + rows.from * s.kernel[2]) * F;
                        product<T, F, V>(window, first + p, taps_, chunk, sums + (r * g.tiles + t) * F * width + p, width, c > 0,
                                         in_place && t == 0);
                    }
            }
        }
        for (int64_t r = 0; r < many; r++)
            for (int64_t f = 0; f < s.filters; f++) {
                const int64_t o = group * s.filters + f;
                const S *add = residual ? residual + image * s.r[0] + o * s.r[1] + plane * s.r[2] + (row + r) * s.r[3] + column * s.r[4] : nullptr;
                S *to = y + image * s.y[0] + o * s.y[1] + plane * s.y[2] + (row + r) * s.y[3] + column * s.y[4];
                finish<S, A>(sums + (r * g.tiles * F + f) * width, bias ? bias + o : nullptr, add, s.r[4], to, s.y[4], wide);
            }
    }
}

// Pack filters as [group, tile, depth, filter of the tile]. Only for computed weights; the recipe packs constant ones.
// `w`: strides of filter, channel and the three dims of the kernel, and between groups.
template <class S, int F>
static __attribute__((noinline)) void pack(const Shape &s, int64_t tiles, const S *from, const int64_t (&w)[6], compute<S> *to, int64_t begin,
                                           int64_t end) {
    for (int64_t task = begin; task < end; task++) {
        const int64_t tile = task % tiles * F;
        compute<S> *out = to + task * s.channels * s.kernel[0] * s.kernel[1] * s.kernel[2] * F;
        for (int64_t c = 0; c < s.channels; c++)
            for (int64_t d = 0; d < s.kernel[0]; d++)
                for (int64_t h = 0; h < s.kernel[1]; h++)
                    for (int64_t v = 0; v < s.kernel[2]; v++)
                        for (int64_t f = tile; f < tile + F; f++) {
                            const S *one = from + task / tiles * w[5] + f * w[0] + c * w[1] + d * w[2] + h * w[3] + v * w[4];
                            *out++ = f < s.filters ? ::load<1>(one) : 0;
                        }
    }
}

}  // namespace pixels
