// needs: gemm simt fma_gemm
// implicit_gemm.cuh: convolution as an implicit matrix product: row r is an output pixel, k a filter tap and a channel with channels innermost.
// The im2col matrix is never stored: its rows are gathered while tiles are loaded.
//
// S: channels (of a group), taps, size, out, kernel, stride, dilation, begin (space of three dims: SD, SH, SW ...), pixels,
// strides x_n, x_c, x_d, x_h, x_w in elements.
namespace conv {

using tensor::u16;

// The first input pixel of an output pixel's window.
struct Corner {
    long long image;
    int d, h, w;
    bool there;
};
template <class S>
__device__ __forceinline__ Corner corner(int row) {
    const int w = row % S::out_w, h = row / S::out_w % S::out_h, d = row / (S::out_w * S::out_h) % S::out_d;
    const int n = row / (S::out_w * S::out_h * S::out_d);
    return Corner{n * (long long)S::x_n, d * S::stride_d - S::begin_d, h * S::stride_h - S::begin_h, w * S::stride_w - S::begin_w,
                  row < S::pixels};
}
// Compute the offset of element k of a pixel's window; return false in the padding.
template <class S>
__device__ __forceinline__ bool find(const Corner &at, int k, long long &offset) {
    const int tap = k / S::channels, c = k % S::channels;
    const int d = at.d + tap / (S::kernel_h * S::kernel_w) * S::dilation_d, h = at.h + tap / S::kernel_w % S::kernel_h * S::dilation_h;
    const int w = at.w + tap % S::kernel_w * S::dilation_w;
    offset = at.image + (long long)d * S::x_d + (long long)h * S::x_h + (long long)w * S::x_w + (long long)c * S::x_c;
    return at.there && tap < S::taps && (unsigned)d < (unsigned)S::size_d && (unsigned)h < (unsigned)S::size_h &&
           (unsigned)w < (unsigned)S::size_w;
}

// The A operand for tensor cores, with contiguous channels. ALIGNED: multiples of eight channels at 16-byte addresses.
template <class S, bool ALIGNED>
struct Pixels {
    const u16 *x;
    typedef Corner Row;
    __device__ __forceinline__ Row row(int r) const { return corner<S>(r); }
    __device__ __forceinline__ void fetch(const Row &r, int k, unsigned char *to) const {
        long long offset;
        if (ALIGNED) {
            const bool there = find<S>(r, k, offset);
            tensor::cp_async_16(tensor::smem_addr(to), x + offset, there);
            return;
        }
        u16 values[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) values[i] = find<S>(r, k + i, offset) ? x[offset] : (u16)0;
        tiles::copy_scalar(to, values, 8);
    }
};

// The A operand for fma_gemm. ALIGNED: channels are contiguous, in multiples of four at 16-byte addresses.
template <class S, bool ALIGNED>
struct FloatPixels {
    const float *x;
    typedef Corner Row;
    __device__ __forceinline__ Row row(int r) const { return corner<S>(r); }
    __device__ __forceinline__ void fetch(const Row &r, int k, float *to) const {
        long long offset;
        if constexpr (ALIGNED) {
            const bool there = find<S>(r, k, offset);
            tensor::cp_async_16(tensor::smem_addr(to), there ? x + offset : x, there);
        } else {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const bool there = find<S>(r, k + e, offset);
                tensor::cp_async_4(tensor::smem_addr(to + e), there ? x + offset : x, there);
            }
        }
    }
};

// The A operand for simt.
template <class S, class C, class T>
struct Window {
    const T *x;
    __device__ __forceinline__ C operator()(int row, int k) const {
        long long offset;
        return find<S>(corner<S>(row), k, offset) ? (C)load<1>(x + offset) : (C)0;
    }
};

}  // namespace conv
