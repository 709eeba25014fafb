// fused add rms_norm(bfloat16[4, 768], bfloat16[4, 768], bfloat16[768]) -> bfloat16[4, 768], bfloat16[4, 768]
extern "C" void KERNEL(void *const *args, const void *, int64_t begin, int64_t end, void *scratch) {
  constexpr int N = 16;
  const bf16 *const x0 = (const bf16 *)args[0];
  const bf16 *const x1 = (const bf16 *)args[1];
  const bf16 *const x2 = (const bf16 *)args[2];
  bf16 *const y0 = (bf16 *)args[3];
  bf16 *const y1 = (bf16 *)args[4];
  for (int64_t task = begin; task < end; ++task) {
    for (int64_t row = task * 4; row < task * 4 + 4; ++row) {  // of 4 rows of 768
      const auto x0_row = x0 + row * 768;
      const auto x1_row = x1 + row * 768;
      const auto x2_row = x2;
      const auto y0_row = y0 + row * 768;
      const auto y1_row = y1 + row * 768;
      vec<float, N> v2_part[4];  // sum
      for (auto &part : v2_part) part = splat<vec<float, N>>(0);
      {
        const auto x0_run = x0_row;
        const auto x1_run = x1_row;
        const auto at = [&](int u, int64_t i, auto... n) __attribute__((always_inline)) {
          const vec<float, N> x0 = load<N>(x0_run + i, n...);
          const vec<float, N> x1 = load<N>(x1_run + i, n...);
          const vec<float, N> v0 = x0 + x1;  // add
          const vec<float, N> v1 = v0 * v0;  // mul
          v2_part[u] = sum_of()(only<vec<float, N>>(v1, splat<vec<float, N>>(0), n...), v2_part[u]);
        };
        int64_t i = 0;
        for (; i + 4 * N <= 768; i += 4 * N) at(0, i), at(1, i + 1 * N), at(2, i + 2 * N), at(3, i + 3 * N);
        for (; i + N <= 768; i += N) at(0, i);
      }
      const vec<float, N> v2 = splat<vec<float, N>>(gathered(v2_part, sum_of()));
      const vec<float, N> v3 = v2 / number<N>(768.0f);  // div
      const vec<float, N> v4 = v3 + number<N>(1e-06f);  // add
      const vec<float, N> v5 = rsqrt(v4);  // rsqrt
      {
        const auto x0_run = x0_row;
        const auto x1_run = x1_row;
        const auto x2_run = x2_row;
        const auto y0_run = y0_row;
        const auto y1_run = y1_row;
        const auto at = [&](int64_t i, auto... n) __attribute__((always_inline)) {
          const vec<float, N> x0 = load<N>(x0_run + i, n...);
          const vec<float, N> x1 = load<N>(x1_run + i, n...);
          const vec<float, N> x2 = load<N>(x2_run + i, n...);
          const vec<float, N> v0 = x0 + x1;  // add
          const vec<float, N> v6 = v0 * v5;  // mul
          const vec<float, N> v7 = v6 * x2;  // mul
          store<N>(y0_run + i, v0, n...);
          store<N>(y1_run + i, v7, n...);
        };
        int64_t i = 0;
        for (; i + N <= 768; i += N) at(i);
      }
    }
  }
}
