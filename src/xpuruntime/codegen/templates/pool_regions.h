// needs: arith
// pool_regions: pools that are led by data, element by element.

namespace pool {

struct Unpool {
    int64_t planes, channels, in[3], out[3];
    int64_t x[5], at[5], y[5];  // strides of n, c, d, h, w
};

template <class S, class I>
static void unpool(const Unpool &s, bool whole, const S *x, const I *at, S *y, int64_t begin, int64_t end) {
    const int64_t size = s.out[0] * s.out[1] * s.out[2];
    auto put = [&](int64_t plane, int64_t place, S value) {  // a place in the plane
        const int64_t w = place % s.out[2], h = place / s.out[2] % s.out[1], d = place / s.out[2] / s.out[1];
        y[plane / s.channels * s.y[0] + plane % s.channels * s.y[1] + d * s.y[2] + h * s.y[3] + w * s.y[4]] = value;
    };
    if (whole && begin < end) begin = 0, end = s.planes;
    for (int64_t plane = begin; plane < end && plane < s.planes; plane++)
        for (int64_t place = 0; place < size; place++) put(plane, place, 0);
    for (int64_t plane = begin; plane < end && plane < s.planes; plane++) {
        const int64_t n = plane / s.channels, c = plane % s.channels;
        for (int64_t d = 0; d < s.in[0]; d++)
            for (int64_t h = 0; h < s.in[1]; h++)
                for (int64_t w = 0; w < s.in[2]; w++) {
                    const int64_t place = at[n * s.at[0] + c * s.at[1] + d * s.at[2] + h * s.at[3] + w * s.at[4]];
                    if (place < 0 || place >= (whole ? size * s.planes : size)) continue;
                    const S value = x[n * s.x[0] + c * s.x[1] + d * s.x[2] + h * s.x[3] + w * s.x[4]];
                    put(whole ? place / size : plane, whole ? place % size : place, value);
                }
    }
}

struct Regions {
    int64_t in[4], out[4];             // n, c, h, w
    int64_t x[4], rois[2], y[4];       // strides
    double scale;
};
struct Bins { int64_t begin, end; };  // of a region's h * w results

// A sample's neighbors along one axis: rows low and high, the share of high, and whether it is near the input at all.
struct Neighbors { int64_t low, high; double share; bool inside; };
INLINE Neighbors neighbors(double at, int64_t size) {
    const bool inside = at >= -1 && at <= (double)size;
    const double near = at < 0 ? 0 : at > (double)(size - 1) ? (double)(size - 1) : at == at ? at : 0;
    const int64_t low = (int64_t)near;
    return {low, low + 1 < size ? low + 1 : size - 1, near - (double)low, inside};
}

template <class S, class R, class I>
static void align(const Regions &s, int64_t ratio, bool maximum, bool aligned, const S *x, const R *rois, const I *images, int64_t step,
                  S *y, int64_t begin, int64_t end, Bins bins) {
    for (int64_t roi = begin; roi < end && roi < s.out[0]; roi++) {
        double edge[4];
        for (int i = 0; i < 4; i++)
            edge[i] = (double)::load<1>(rois + roi * s.rois[0] + i * s.rois[1]) * s.scale - (aligned ? 0.5 : 0.0);
        double size[2] = {edge[3] - edge[1], edge[2] - edge[0]};  // height, width
        int64_t count[2];
        for (int i = 0; i < 2; i++) {
            if (!aligned && size[i] < 1) size[i] = 1;
            const double wanted = ::ceil(size[i] / (double)s.out[2 + i]);
            count[i] = ratio > 0 ? ratio : wanted > 0 && wanted < 0x1p31 ? (int64_t)wanted : 0;
        }
        const int64_t image = images[roi * step];
        const bool some = image >= 0 && image < s.in[0] && s.in[2] && s.in[3] && count[0] && count[1];
        const double down = size[0] / (double)s.out[2] / (double)count[0], right = size[1] / (double)s.out[3] / (double)count[1];
        for (int64_t bin = bins.begin; bin < bins.end; bin++)
            for (int64_t c = 0; c < s.out[1]; c++) {
                const int64_t i = bin / s.out[3], j = bin % s.out[3];
                double sum = 0, best = -__builtin_inf();
                for (int64_t at = 0; some && at < count[0] * count[1]; at++) {
                    const int64_t h = i * count[0] + at / count[1], w = j * count[1] + at % count[1];
                    const Neighbors r = neighbors(edge[1] + ((double)h + 0.5) * down, s.in[2]);
                    const Neighbors q = neighbors(edge[0] + ((double)w + 0.5) * right, s.in[3]);
                    for (int corner = 0; corner < 4; corner++) {
                        const double wr = corner & 2 ? r.share : 1 - r.share, wc = corner & 1 ? q.share : 1 - q.share;
                        const S *p = x + image * s.x[0] + c * s.x[1] + (corner & 2 ? r.high : r.low) * s.x[2] + (corner & 1 ? q.high : q.low) * s.x[3];
                        const double v = (double)::load<1>(p) * (r.inside && q.inside ? wr * wc : 0.0);
                        sum += v;
                        best = v > best || v != v ? v : best;
                    }
                }
                const double value = !some ? 0 : maximum ? best : sum / (double)(count[0] * count[1]);
                ::store<1>(y + roi * s.y[0] + c * s.y[1] + i * s.y[2] + j * s.y[3], convert<S>(value));
            }
    }
}

template <class S, class R>
static void max_regions(const Regions &s, const S *x, const R *rois, S *y, int64_t begin, int64_t end, Bins bins) {
    auto clip = [](double v, int64_t limit) { return v > 0 ? v < (double)limit ? (int64_t)v : limit : (int64_t)0; };
    for (int64_t roi = begin; roi < end && roi < s.out[0]; roi++) {
        auto field = [&](int i) { return (double)::load<1>(rois + roi * s.rois[0] + i * s.rois[1]); };
        double from[2], size[2];  // of rows, of columns
        for (int i = 0; i < 2; i++) {
            const double start = ::floor(field(2 - i) * s.scale + 0.5), last = ::floor(field(4 - i) * s.scale + 0.5);
            from[i] = start, size[i] = last - start + 1 < 1 ? 1 : last - start + 1;
        }
        const int64_t image = (int64_t)field(0);
        for (int64_t bin = bins.begin; bin < bins.end; bin++) {
            const int64_t place[2] = {bin / s.out[3], bin % s.out[3]};
            int64_t a[2], b[2];
            for (int d = 0; d < 2; d++) {
                const double step = size[d] / (double)s.out[2 + d];
                a[d] = clip(::floor((double)place[d] * step) + from[d], s.in[2 + d]);
                b[d] = clip(::ceil((double)(place[d] + 1) * step) + from[d], s.in[2 + d]);
            }
            for (int64_t c = 0; c < s.out[1]; c++) {
                double best = -__builtin_inf();
                const bool some = image >= 0 && image < s.in[0] && a[0] < b[0] && a[1] < b[1];
                for (int64_t h = a[0]; some && h < b[0]; h++)
                    for (int64_t w = a[1]; w < b[1]; w++) {
                        const double v = (double)::load<1>(x + image * s.x[0] + c * s.x[1] + h * s.x[2] + w * s.x[3]);
                        best = v > best || v != v ? v : best;
                    }
                ::store<1>(y + roi * s.y[0] + c * s.y[1] + place[0] * s.y[2] + place[1] * s.y[3], convert<S>(some ? best : 0.0));
            }
        }
    }
}

}  // namespace pool
