// mean(float32[2, 24, 7, 7]{0,2,3,1}) -> float32[2, 24]
// launch: grid 2 1 1, block 32 8 1, shared 0
extern "C" __global__ void __launch_bounds__(256) KERNEL(const float *in0, float *out0) {
    griddep_sync();
  constexpr int N = 1;
  __shared__ uint64_t smem[256];
  const uint32_t row = blockIdx.x;
  const uint32_t linear = threadIdx.x;
  const bool live = linear < 24;
  const uint32_t c = live ? linear : 23;
  auto *x0_row = in0 + row * 1176 + c;
  auto *y0_row = out0 + row * 24 + c;
  vec<float, N> v0 = (vec<float, N>)(0);  // sum
  #pragma unroll 8
  for (uint32_t r = threadIdx.y, end = 49; r < end; r += 8) {
    const vec<float, N> x0 = load<N>(x0_row + r * 24);
    v0 = sum_of()(v0, (vec<float, N>)(x0));
  }
  v0 = column_reduce<32, 8>(v0, sum_of(), smem);
  const vec<float, N> v1 = v0 / number<N>(49.0f);  // div
  if (live && threadIdx.y == 0) {
    store<N>(y0_row, v1);
  }
}
