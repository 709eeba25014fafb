// needs: conv_shape conv_act
// conv_naive: direct convolution, one output element at a time, for every numeric type.

namespace conv {

// T: accumulator type (integers wrap). `w`: strides of filter, channel, the kernel's dims, and from group to group.
template <class S, class T, class A>
static __attribute__((noinline)) void naive(const Shape &s, const int64_t (&w)[6], const S *x, const S *weight, const S *bias,
                                            const S *residual, S *y, int64_t begin, int64_t end) {
    const int64_t filters = s.groups * s.filters;
    for (int64_t task = begin; task < end; task++) {  // a task is a pixel
        const Pixel at(s, task);
        for (int64_t o = 0; o < filters; o++) {
            const int64_t group = o / s.filters;
            const S *f = weight + group * w[5] + o % s.filters * w[0];
            T sum = value_at<S, T>(bias, o);
            for (int64_t d = 0; d < s.kernel[0]; d++)
                for (int64_t h = 0; h < s.kernel[1]; h++)
                    for (int64_t v = 0; v < s.kernel[2]; v++) {
                        const int64_t z = input_index(s, at, 0, d), e = input_index(s, at, 1, h), c = input_index(s, at, 2, v);
                        if (outside(z, s.in[0]) || outside(e, s.in[1]) || outside(c, s.in[2])) continue;
                        const S *p = x + at.n * s.x[0] + group * s.channels * s.x[1] + z * s.x[2] + e * s.x[3] + c * s.x[4];
                        const S *q = f + d * w[2] + h * w[3] + v * w[4];
                        for (int64_t i = 0; i < s.channels; i++)
                            sum += (T)::load<1>(p + i * s.x[1]) * (T)::load<1>(q + i * w[1]);
                    }
            if (residual) sum += (T)::load<1>(residual + at.offset(s.r) + o * s.r[1]);
            ::store<1>(y + at.offset(s.y) + o * s.y[1], A::of((typename storage_<S>::compute)sum));
        }
    }
}

}  // namespace conv
