// fused mul where softmax(float32[2, 12, 197, 197], bool[2, 1, 1, 197]) -> float32[2, 12, 197, 197]
// launch: grid 591 1 1, block 32 8 1, shared 0
extern "C" __global__ void __launch_bounds__(256) KERNEL(const float *in0, const bool *in1, float *out0) {
    griddep_sync();
  constexpr int N = 1;
  const uint32_t row = blockIdx.x * 8 + threadIdx.y;
  auto *x1_row = in1 + row / 2364 * 197;
  auto *x0_row = in0 + row * 197;
  auto *y0_row = out0 + row * 197;
  vec<float, N> v4_kept[7][1];
  pack<float, 1> x0_kept[7];
  pack<bool, 1> x1_kept[7];
  vec<float, N> v2 = (vec<float, N>)(-__builtin_inff());  // top
  #pragma unroll
  for (int k = 0; k < 7; ++k) {
    const uint32_t i = k * 32 + threadIdx.x;
    if (k < 6 || i < 197) {
      x1_kept[k] = fetch<1>(x1_row + i, fits<1>(x1_row + i));
      x0_kept[k] = fetch<1>(x0_row + i, fits<1>(x0_row + i));
      #pragma unroll
      for (int u = 0; u < 1; ++u) {
        const boolean<N> x1 = decode<N>(x1_kept[k].at[u], x1_row);
        const vec<float, N> x0 = decode<N>(x0_kept[k].at[u], x0_row);
        const vec<float, N> v0 = x0 * number<N>(0.125f);  // mul
        const vec<float, N> v1 = select(x1, v0, number<N>(-1e+09f));  // where
        v2 = top_of()(v2, (vec<float, N>)(v1));
      }
    }
  }
  v2 = warp_reduce<32>(v2, top_of());
  vec<float, N> v5 = (vec<float, N>)(0);  // sum
  #pragma unroll
  for (int k = 0; k < 7; ++k) {
    const uint32_t i = k * 32 + threadIdx.x;
    if (k < 6 || i < 197) {
      #pragma unroll
      for (int u = 0; u < 1; ++u) {
        const boolean<N> x1 = decode<N>(x1_kept[k].at[u], x1_row);
        const vec<float, N> x0 = decode<N>(x0_kept[k].at[u], x0_row);
        const vec<float, N> v0 = x0 * number<N>(0.125f);  // mul
        const vec<float, N> v1 = select(x1, v0, number<N>(-1e+09f));  // where
        const vec<float, N> v3 = v1 - v2;  // sub
        const vec<float, N> v4 = exp(v3);  // exp
        v4_kept[k][u] = v4;
        v5 = sum_of()(v5, (vec<float, N>)(v4));
      }
    }
  }
  v5 = warp_reduce<32>(v5, sum_of());
  const vec<float, N> v6 = reciprocal(v5);  // reciprocal
  #pragma unroll
  for (int k = 0; k < 7; ++k) {
    const uint32_t i = k * 32 + threadIdx.x;
    if (k < 6 || i < 197) {
      unpacked<float, 1> y0_of;
      #pragma unroll
      for (int u = 0; u < 1; ++u) {
        const vec<float, N> v4 = v4_kept[k][u];
        const vec<float, N> v7 = v4 * v6;  // mul
        y0_of.at[u] = v7;
      }
      put<1>(y0_row + i, encoded(y0_of), fits<1>(y0_row + i));
    }
  }
}
