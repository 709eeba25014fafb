// needs: tensor
// pool_gradient: the gradient of a maximum of windows, gathered: a thread has V contiguous channels of one element of x, and finds the windows
// whose maximum it is. No positions are stored, and nothing is added atomically.
//
// W names the sizes of one call (kernels/cuda/pool_gradient.py), three spatial dims: out, kernel, stride, dilation, begin (padding before the
// input), size and limit (where the input ends, and where negative padding crops it), `taps` of a window, strides of the four tensors over
// n, c, d, h, w, `along` (channels, if they are contiguous, else 1).

namespace pool {

struct Windows3 { int first[3], last[3]; };

// The windows that contain an element; none where first > last.
template <class W> INLINE Windows3 windows_around(const int (&at)[3]) {
    Windows3 r;
#pragma unroll
    for (int d = 0; d < 3; ++d) {
        const int to = at[d] + W::begin[d], from = to - (W::kernel[d] - 1) * W::dilation[d];
        const bool cropped = to < 0 || at[d] >= W::limit[d];
        r.first[d] = from <= 0 ? 0 : (from + W::stride[d] - 1) / W::stride[d];
        const int nearest = to / W::stride[d];
        r.last[d] = cropped ? -1 : nearest < W::out[d] ? nearest : W::out[d] - 1;
    }
    return r;
}

template <class W> INLINE typename W::index offset(const int64_t (&strides)[5], const int (&at)[3]) {
    typedef typename W::index I;
    return (I)at[0] * (I)strides[2] + (I)at[1] * (I)strides[3] + (I)at[2] * (I)strides[4];
}

// Clears `hit` where the element at tap `own` of a window does not have its gradient: of equal elements the first one has it, of NaNs the last one.
template <class S, int V, class W>
INLINE void drop_others(bool (&hit)[V], const S *x, const int (&origin)[3], int own, const unpacked<S, V> &y, bool any_nan) {
    constexpr int UNROLL = W::taps <= 16 ? W::taps : 1;
#pragma unroll UNROLL
    for (int tap = 0; tap < W::taps; ++tap) {
        if (tap == own || (tap > own && !any_nan)) continue;
        const int a[3] = {tap / (W::kernel[2] * W::kernel[1]), tap / W::kernel[2] % W::kernel[1], tap % W::kernel[2]};
        int at[3];
        bool inside = true;
#pragma unroll
        for (int d = 0; d < 3; ++d) {
            at[d] = origin[d] + a[d] * W::dilation[d];
            inside = inside && at[d] >= 0 && at[d] < W::limit[d];
        }
        if (!inside) continue;
        const auto other = decoded(fetch<V>(x + offset<W>(W::x, at), true));
#pragma unroll
        for (int u = 0; u < V; ++u)
            hit[u] = hit[u] && (tap < own ? other.at[u] != y.at[u] : other.at[u] == other.at[u] || y.at[u] == y.at[u]);
    }
}

// Item e of x.
template <class S, int V, class W> INLINE void gradient_of_max(const S *grad, const S *x, const S *y, S *dx, uint32_t e) {
    typedef typename W::index I;
    uint32_t channel = 0;
    if (W::along > 1) channel = e % (W::along / V) * V, e /= W::along / V;
    int at[3];
    at[2] = e % W::size[2], e /= W::size[2];
    at[1] = e % W::size[1], e /= W::size[1];
    at[0] = e % W::size[0], e /= W::size[0];
    if (W::along == 1) channel = e % W::channels, e /= W::channels;
    grad += (I)e * (I)W::grad[0] + (I)channel * (I)W::grad[1], x += (I)e * (I)W::x[0] + (I)channel * (I)W::x[1];
    y += (I)e * (I)W::y[0] + (I)channel * (I)W::y[1], dx += (I)e * (I)W::dx[0] + (I)channel * (I)W::dx[1];
    const auto value = decoded(fetch<V>(x + offset<W>(W::x, at), true));
    unpacked<S, V> sum;
#pragma unroll
    for (int u = 0; u < V; ++u) sum.at[u] = 0;
    const Windows3 w = windows_around<W>(at);
    int o[3];
    for (o[0] = w.first[0]; o[0] <= w.last[0]; ++o[0])
        for (o[1] = w.first[1]; o[1] <= w.last[1]; ++o[1])
            for (o[2] = w.first[2]; o[2] <= w.last[2]; ++o[2]) {
                int origin[3], own = 0;
                bool reached = true;
#pragma unroll
                for (int d = 0; d < 3; ++d) {
                    origin[d] = o[d] * W::stride[d] - W::begin[d];
                    reached = reached && (at[d] - origin[d]) % W::dilation[d] == 0;
                    own = own * W::kernel[d] + (at[d] - origin[d]) / W::dilation[d];
                }
                if (!reached) continue;
                const auto most = decoded(fetch<V>(y + offset<W>(W::y, o), true));
                bool hit[V], any = false, any_nan = false;
#pragma unroll
                for (int u = 0; u < V; ++u) {
                    const bool nan = most.at[u] != most.at[u];
                    hit[u] = nan ? value.at[u] != value.at[u] : value.at[u] == most.at[u];
                    any = any || hit[u], any_nan = any_nan || nan;
                }
                if (!any) continue;
                drop_others<S, V, W>(hit, x, origin, own, most, any_nan);
                const auto g = decoded(fetch<V>(grad + offset<W>(W::grad, o), true));
#pragma unroll
                for (int u = 0; u < V; ++u) sum.at[u] += hit[u] ? g.at[u] : 0;
            }
    put<V>(dx + offset<W>(W::dx, at), encoded(sum), true);
}

}  // namespace pool
