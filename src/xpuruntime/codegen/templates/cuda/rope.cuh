// needs: tensor
// rope.cuh: eight elements of a row in 16-bit floats: their rotation, and a copy. `wide`: all rows are at multiples of 16 bytes.
namespace rope {

using tensor::Quad;
using tensor::u16;
using tensor::u32;

__device__ __forceinline__ Quad load8(const void *from, bool wide) {
    if (wide) return tensor::load16(from);
    Quad q;
#pragma unroll
    for (int i = 0; i < 4; ++i) q.x[i] = ((const u16 *)from)[2 * i] | (u32)((const u16 *)from)[2 * i + 1] << 16;
    return q;
}
__device__ __forceinline__ void store8(void *to, const Quad &q, bool wide) {
    if (wide) tensor::store16(to, q);
    else
#pragma unroll
        for (int i = 0; i < 8; ++i) ((u16 *)to)[i] = (u16)(q.x[i / 2] >> i % 2 * 16);
}
__device__ __forceinline__ void copy8(void *to, const void *from, bool wide) { store8(to, load8(from, wide), wide); }

// Rotate pairs of elements, `half` apart, by angles with these cosines and sines.
template <class T, class S>
__device__ __forceinline__ void rotate8(S *to, const S *from, int half, const S *cosines, const S *sines, bool wide) {
    const Quad low = load8(from, wide), high = load8(from + half, wide), c = load8(cosines, wide), s = load8(sines, wide);
    Quad a, b;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float l[2] = {T::low(low.x[i]), T::high(low.x[i])}, h[2] = {T::low(high.x[i]), T::high(high.x[i])};
        const float co[2] = {T::low(c.x[i]), T::high(c.x[i])}, si[2] = {T::low(s.x[i]), T::high(s.x[i])};
        a.x[i] = T::pack(l[0] * co[0] - h[0] * si[0], l[1] * co[1] - h[1] * si[1]);
        b.x[i] = T::pack(h[0] * co[0] + l[0] * si[0], h[1] * co[1] + l[1] * si[1]);
    }
    store8(to, a, wide), store8(to + half, b, wide);
}

}  // namespace rope
