// needs: int8
// int8_depthwise: one filter per channel, channels contiguous. A lane is a channel: a word is a code less its zero point, times a word with a tap in
// its low half and zero in the other. Sums are exact in int32; padding adds nothing.

namespace int8 {

struct Tasks {
    int64_t rows, channels, blocks;  // output rows of a task, its channels, blocks of channels
};

// PX adjacent pixels of L channels from c, the first n of them. `from`, `end`: the input columns of the line, relative to `line`.
template <class P, class X, int PX, int KW, int SW, bool EDGE>
INLINE void depthwise_block(const conv::Shape &s, const Scales &scales, const Columns<P> &values, int64_t zero, const X *line, int64_t from,
                            int64_t end, int64_t taps, const int16_t *filters, int64_t pitch, int64_t c, int64_t n, int64_t count,
                            typename P::Y *y) {
    I acc[PX];
#pragma GCC unroll 8
    for (int p = 0; p < PX; p++) acc[p] = I{};
    const I z = splat<I>((int32_t)zero);
    for (int64_t h = 0; h < taps; h++, line += s.dilation[1] * s.x[3], filters += KW * pitch) {
        I w[KW];
#pragma GCC unroll 8
        for (int t = 0; t < KW; t++) w[t] = ::load<L>((const int32_t *)(filters + t * pitch));
#pragma GCC unroll 16
        for (int column = 0; column < (PX - 1) * SW + KW; column++) {
            if (EDGE && (column < from || column >= end)) continue;
            const X *at = line + column * s.x[4] + c;
            const I a = raw<int32_t>(n >= L ? ::load<L>(at) : ::load<L>(at, n)) - z;
#pragma GCC unroll 8
            for (int p = 0; p < PX; p++) {
                const int t = column - p * SW;
                if (t >= 0 && t < KW) acc[p] = Pairs::madd(acc[p], a, w[t]);
            }
        }
    }
#pragma GCC unroll 8
    for (int p = 0; p < PX; p++) {
        if (EDGE && p >= count) break;
        int32_t sums[L];
        ::store<L>(sums, acc[p]);
        values.finish(scales, sums, n, y + p * s.y[4] + c, 1);
    }
}

template <class P, int PX, int KW, int SW, class X>
static __attribute__((noinline)) void depthwise(const conv::Shape &s, const Tasks &g, const Scales &scales, int64_t zero, const X *x,
                                                const int16_t *filters, typename P::Y *y, int64_t begin, int64_t end) {
    const int64_t rows = s.images * s.out[1], pitch = (s.groups + L - 1) / L * L * 2;
    for (int64_t task = begin; task < end; task++) {
        const int64_t c0 = task % g.blocks * g.channels, c1 = c0 + g.channels < s.groups ? c0 + g.channels : s.groups;
        const int64_t first = task / g.blocks * g.rows, last = first + g.rows < rows ? first + g.rows : rows;
        for (int64_t c = c0; c < c1; c += L) {
            const int64_t n = c1 - c < L ? c1 - c : L;
            Columns<P> values;
            values.set(scales, c, n, c);
            for (int64_t at = first; at < last; at++) {
                const int64_t image = at / s.out[1], h = at % s.out[1], top = h * s.stride[1] - s.begin[1], d = s.dilation[1];
                int64_t t0 = top < 0 ? (-top + d - 1) / d : 0, t1 = s.in[1] - top <= 0 ? 0 : (s.in[1] - top + d - 1) / d;
                if (t1 > s.kernel[1]) t1 = s.kernel[1];
                if (t0 > t1) t0 = t1;
                const X *row = x + image * s.x[0] + (top + t0 * d) * s.x[3];
                const int16_t *f = filters + t0 * KW * pitch + c * 2;
                for (int64_t w = 0; w < s.out[2]; w += PX) {
                    const int64_t column = w * SW - s.begin[2], count = s.out[2] - w;
                    typename P::Y *to = y + image * s.y[0] + h * s.y[3] + w * s.y[4];
                    const X *line = row + column * s.x[4];
                    if (count >= PX && column >= 0 && column + (PX - 1) * SW + KW <= s.in[2])
                        depthwise_block<P, X, PX, KW, SW, false>(s, scales, values, zero, line, 0, 0, t1 - t0, f, pitch, c, n, count, to);
                    else
                        depthwise_block<P, X, PX, KW, SW, true>(s, scales, values, zero, line, -column, s.in[2] - column, t1 - t0, f, pitch, c, n,
                                                                count, to);
                }
            }
        }
    }
}

}  // namespace int8
