// fused add rms_norm(bfloat16[4, 768], bfloat16[4, 768], bfloat16[768]) -> bfloat16[4, 768], bfloat16[4, 768]
// launch: grid 4 1 1, block 64 1 1, shared 0
extern "C" __global__ void __launch_bounds__(64) KERNEL(const bf16 *in0, const bf16 *in1, const bf16 *in2, bf16 *out0, bf16 *out1) {
    griddep_sync();
  constexpr int N = 1;
  __shared__ uint64_t smem[2];
  const uint32_t row = blockIdx.x;
  auto *x0_row = in0 + row * 768;
  auto *x1_row = in1 + row * 768;
  auto *x2_row = in2;
  auto *y0_row = out0 + row * 768;
  auto *y1_row = out1 + row * 768;
  const auto work = [&](auto aligned) {  // aligned: vectorized loads and stores
    pack<bf16, 8> x0_kept[2];
    pack<bf16, 8> x1_kept[2];
    vec<float, N> v2 = (vec<float, N>)(0);  // sum
    #pragma unroll
    for (int k = 0; k < 2; ++k) {
      const uint32_t i = (k * 64 + threadIdx.x) * 8;
      if (k < 1 || i < 768) {
        x0_kept[k] = fetch<8>(x0_row + i, aligned.value);
        x1_kept[k] = fetch<8>(x1_row + i, aligned.value);
        #pragma unroll
        for (int u = 0; u < 8; ++u) {
          const vec<float, N> x0 = decode<N>(x0_kept[k].at[u], x0_row);
          const vec<float, N> x1 = decode<N>(x1_kept[k].at[u], x1_row);
          const vec<float, N> v0 = x0 + x1;  // add
          const vec<float, N> v1 = v0 * v0;  // mul
          v2 = sum_of()(v2, (vec<float, N>)(v1));
        }
      }
    }
    v2 = block_reduce<2>(v2, sum_of(), smem);
    const vec<float, N> v3 = v2 / number<N>(768.0f);  // div
    const vec<float, N> v4 = v3 + number<N>(1e-06f);  // add
    const vec<float, N> v5 = rsqrt(v4);  // rsqrt
    #pragma unroll
    for (int k = 0; k < 2; ++k) {
      const uint32_t i = (k * 64 + threadIdx.x) * 8;
      if (k < 1 || i < 768) {
        const auto x2_of = fetch<8>(x2_row + i, aligned.value);
        unpacked<bf16, 8> y0_of;
        unpacked<bf16, 8> y1_of;
        #pragma unroll
        for (int u = 0; u < 8; ++u) {
          const vec<float, N> x0 = decode<N>(x0_kept[k].at[u], x0_row);
          const vec<float, N> x1 = decode<N>(x1_kept[k].at[u], x1_row);
          const vec<float, N> x2 = decode<N>(x2_of.at[u], x2_row);
          const vec<float, N> v0 = x0 + x1;  // add
          const vec<float, N> v6 = v0 * v5;  // mul
          const vec<float, N> v7 = v6 * x2;  // mul
          y0_of.at[u] = v0;
          y1_of.at[u] = v7;
        }
        put<8>(y0_row + i, encoded(y0_of), aligned.value);
        put<8>(y1_row + i, encoded(y1_of), aligned.value);
      }
    }
  };
  if (fits<8>(in0) && fits<8>(in1) && fits<8>(in2) && fits<8>(out0) && fits<8>(out1)) work(true_type());
  else work(false_type());
}
