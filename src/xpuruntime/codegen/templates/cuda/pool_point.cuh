// needs: pool
// pool_point: one output element of a pool a thread. What is contiguous in the result is distributed to neighboring threads.

namespace pool {

// The channel and the pixel of item e: channels are contiguous if CHANNELS_LAST, else columns.
struct Point { int64_t image, channel, at[3]; };
template <bool CHANNELS_LAST> INLINE Point point_of(const Shape &s, uint32_t e) {
    const uint32_t c = s.channels, w = s.out[2], h = s.out[1], d = s.out[0];
    Point p;
    if (CHANNELS_LAST) p.channel = e % c, e /= c;
    p.at[2] = e % w, e /= w;
    p.at[1] = e % h, e /= h;
    p.at[0] = e % d, e /= d;
    if (!CHANNELS_LAST) p.channel = e % c, e /= c;
    p.image = e;
    return p;
}

template <class Op, class S, bool CHANNELS_LAST> INLINE void point(const Shape &s, const Windows &w, const S *x, S *y, uint32_t e) {
    const Point p = point_of<CHANNELS_LAST>(s, e);
    const Range r[3] = {range(s, w, 0, p.at[0]), range(s, w, 1, p.at[1]), range(s, w, 2, p.at[2])};
    const double n = w.divisor ? w.divisor : (double)(r[0].divisor_taps * r[1].divisor_taps * r[2].divisor_taps);
    S *const to = y + p.image * s.y[0] + p.channel * s.y[1] + p.at[0] * s.y[2] + p.at[1] * s.y[3] + p.at[2] * s.y[4];
    pixel<Op, S, 1, 1>(s, w, x + p.image * s.x[0] + p.channel * s.x[1], r, n, to);
}

template <class S, bool CHANNELS_LAST>
INLINE void point_and_place(const Shape &s, const Windows &w, const Places &i, const S *x, S *y, int64_t *places, uint32_t e) {
    const Point p = point_of<CHANNELS_LAST>(s, e);
    const Range r[3] = {range(s, w, 0, p.at[0]), range(s, w, 1, p.at[1]), range(s, w, 2, p.at[2])};
    int64_t first[3];
    for (int d = 0; d < 3; ++d) first[d] = p.at[d] * s.stride[d] - s.begin[d];
    S *const to = y + p.image * s.y[0] + p.channel * s.y[1] + p.at[0] * s.y[2] + p.at[1] * s.y[3] + p.at[2] * s.y[4];
    int64_t *const place = places + p.image * i.strides[0] + p.channel * i.strides[1] + p.at[0] * i.strides[2] +
                           p.at[1] * i.strides[3] + p.at[2] * i.strides[4];
    const int64_t offset = i.whole ? (p.image * s.channels + p.channel) * i.plane : 0;
    pixel_and_place<S, 1>(s, x + p.image * s.x[0] + p.channel * s.x[1], r, first, i, to, place, offset);
}

}  // namespace pool
