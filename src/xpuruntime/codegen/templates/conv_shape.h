// conv_shape: the operands' shapes and strides for convolutions and pools; space has three dims, unused outer ones have extent 1.

namespace conv {

struct Shape {  // strides count elements; channels and filters are those of one group
    int64_t images, groups, channels, filters;
    int64_t in[3], out[3], kernel[3], stride[3], dilation[3], begin[3];
    int64_t x[5], y[5], r[5];  // n, c, d, h, w: input, output, residual
    bool transposed;           // transposed convolution: an input element adds to a window of the output
};

// One output pixel; pixels count on over images, and w runs fastest.
struct Pixel {
    int64_t n, at[3];
    INLINE_MEMBER Pixel(const Shape &s, int64_t index) {
        for (int d = 2; d >= 0; d--) at[d] = index % s.out[d], index /= s.out[d];
        n = index;
    }
    INLINE_MEMBER void next(const Shape &s) {
        for (int d = 2; d >= 0; d--) {
            if (++at[d] < s.out[d]) return;
            at[d] = 0;
        }
        n++;
    }
    INLINE_MEMBER int64_t offset(const int64_t (&strides)[5]) const {
        return n * strides[0] + at[0] * strides[2] + at[1] * strides[3] + at[2] * strides[4];
    }
};

// The input index that tap t of dim d reads; outside [0, in[d]) is padding.
INLINE int64_t input_index(const Shape &s, const Pixel &p, int d, int64_t t) {
    if (!s.transposed) return p.at[d] * s.stride[d] - s.begin[d] + t * s.dilation[d];
    const int64_t upsampled = p.at[d] + s.begin[d] - t * s.dilation[d];
    if (s.stride[d] == 1) return upsampled;
    return upsampled < 0 || upsampled % s.stride[d] ? -1 : upsampled / s.stride[d];
}
INLINE bool outside(int64_t at, int64_t extent) { return (uint64_t)at >= (uint64_t)extent; }

// Load an optional operand (bias, residual); 0 if it is absent.
template <class S, class T> INLINE T value_at(const S *p, int64_t i) { return p ? (T)::load<1>(p + i) : (T)0; }

}  // namespace conv
