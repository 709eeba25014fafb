// needs: conv_shape arith
// conv_deform: convolution that reads its input at places that are computed (Dai et al., 2017), linearly interpolated, zero outside.

namespace conv {

struct Deform {
    int64_t groups, dims;          // groups of offsets; dims of space that offsets have
    int64_t offset[5], mask[5];    // strides
    int64_t w[6];                  // the weight's: filter, channel, the kernel's dims, from group to group
};

// A task is a pixel. Scratch holds the inputs of the pixel: [channel of all groups, tap].
template <class S>
static __attribute__((noinline)) void deform(const Shape &s, const Deform &g, const S *x, const S *weight, const S *offset, const S *bias,
                                             const S *mask, S *y, int64_t begin, int64_t end, double *samples) {
    const int64_t taps = s.kernel[0] * s.kernel[1] * s.kernel[2], channels = s.groups * s.channels, each = channels / g.groups;
    for (int64_t task = begin; task < end; task++) {
        const Pixel at(s, task);
        const S *image = x + at.n * s.x[0];
        for (int64_t group = 0; group < g.groups; group++)
            for (int64_t tap = 0; tap < taps; tap++) {
                const int64_t t[3] = {tap / s.kernel[2] / s.kernel[1], tap / s.kernel[2] % s.kernel[1], tap % s.kernel[2]};
                double low[3] = {0, 0, 0}, share[3] = {0, 0, 0};
                for (int d = 3 - (int)g.dims; d < 3; d++) {
                    const int64_t field = (group * taps + tap) * g.dims + d - (3 - g.dims);
                    const double coord = (double)(at.at[d] * s.stride[d] - s.begin[d] + t[d] * s.dilation[d]) +
                                         (double)::load<1>(offset + at.offset(g.offset) + field * g.offset[1]);
                    low[d] = ::floor(coord), share[d] = coord - low[d];
                }
                const double scale = mask ? (double)::load<1>(mask + at.offset(g.mask) + (group * taps + tap) * g.mask[1]) : 1.0;
                double part[8];
                const S *from[8];
                int corners = 0;
                for (int corner = 0; corner < 8; corner++) {
                    double of = scale;
                    const S *p = image;
                    for (int d = 0; d < 3; d++) {
                        const double near = low[d] + (corner >> d & 1);
                        const bool inside = near >= 0 && near < (double)s.in[d];
                        of *= corner >> d & 1 ? share[d] : 1 - share[d];
                        if (!inside || (corner >> d & 1 && share[d] == 0)) p = nullptr;
                        if (p) p += (int64_t)near * s.x[2 + d];
                    }
                    if (p) part[corners] = of, from[corners++] = p;
                }
                for (int64_t c = group * each; c < (group + 1) * each; c++) {
                    double sum = 0;
                    for (int i = 0; i < corners; i++) sum += part[i] * (double)::load<1>(from[i] + c * s.x[1]);
                    samples[c * taps + tap] = sum;
                }
            }
        for (int64_t o = 0; o < s.groups * s.filters; o++) {
            const int64_t group = o / s.filters;
            const S *f = weight + group * g.w[5] + o % s.filters * g.w[0];
            double sum = value_at<S, double>(bias, o);
            for (int64_t c = 0; c < s.channels; c++)
                for (int64_t tap = 0; tap < taps; tap++) {
                    const int64_t k = tap % s.kernel[2] * g.w[4] + tap / s.kernel[2] % s.kernel[1] * g.w[3] + tap / s.kernel[2] / s.kernel[1] * g.w[2];
                    sum += samples[(group * s.channels + c) * taps + tap] * (double)::load<1>(f + c * g.w[1] + k);
                }
            ::store<1>(y + at.offset(s.y) + o * s.y[1], convert<S>(sum));
        }
    }
}

}  // namespace conv
