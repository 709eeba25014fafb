// fused mul where softmax(float32[2, 12, 197, 197], bool[2, 1, 1, 197]) -> float32[2, 12, 197, 197]
extern "C" void KERNEL(void *const *args, const void *, int64_t begin, int64_t end, void *scratch) {
  constexpr int N = 16;
  const float *const x0 = (const float *)args[0];
  const bool *const x1 = (const bool *)args[1];
  float *const y0 = (float *)args[2];
  float *const v4_kept = (float *)((char *)scratch + 0);
  for (int64_t task = begin; task < end; ++task) {
    for (int64_t row = task * 85; row < (task * 85 + 85 < 4728 ? task * 85 + 85 : 4728); ++row) {  // of 4728 rows of 197
      const auto x1_row = x1 + row / 2364 * 197;
      const auto x0_row = x0 + row * 197;
      const auto y0_row = y0 + row * 197;
      vec<float, N> v2_part[4];  // top
      for (auto &part : v2_part) part = splat<vec<float, N>>(-__builtin_inff());
      {
        const auto x1_run = x1_row;
        const auto x0_run = x0_row;
        const auto at = [&](int u, int64_t i, auto... n) __attribute__((always_inline)) {
          const boolean<N> x1 = load<N>(x1_run + i, n...);
          const vec<float, N> x0 = load<N>(x0_run + i, n...);
          const vec<float, N> v0 = x0 * number<N>(0.125f);  // mul
          const vec<float, N> v1 = select(x1, v0, number<N>(-1e+09f));  // where
          v2_part[u] = top_of()(only<vec<float, N>>(v1, splat<vec<float, N>>(-__builtin_inff()), n...), v2_part[u]);
        };
        int64_t i = 0;
        for (; i + 4 * N <= 197; i += 4 * N) at(0, i), at(1, i + 1 * N), at(2, i + 2 * N), at(3, i + 3 * N);
        for (; i + N <= 197; i += N) at(0, i);
        if (i < 197) at(0, i, 197 - i);
      }
      const vec<float, N> v2 = splat<vec<float, N>>(gathered(v2_part, top_of()));
      vec<float, N> v5_part[4];  // sum
      for (auto &part : v5_part) part = splat<vec<float, N>>(0);
      {
        const auto x1_run = x1_row;
        const auto x0_run = x0_row;
        const auto at = [&](int u, int64_t i, auto... n) __attribute__((always_inline)) {
          const boolean<N> x1 = load<N>(x1_run + i, n...);
          const vec<float, N> x0 = load<N>(x0_run + i, n...);
          const vec<float, N> v0 = x0 * number<N>(0.125f);  // mul
          const vec<float, N> v1 = select(x1, v0, number<N>(-1e+09f));  // where
          const vec<float, N> v3 = v1 - v2;  // sub
          const vec<float, N> v4 = exp(v3);  // exp
          store<N>(v4_kept + i, v4);
          v5_part[u] = sum_of()(only<vec<float, N>>(v4, splat<vec<float, N>>(0), n...), v5_part[u]);
        };
        int64_t i = 0;
        for (; i + 4 * N <= 197; i += 4 * N) at(0, i), at(1, i + 1 * N), at(2, i + 2 * N), at(3, i + 3 * N);
        for (; i + N <= 197; i += N) at(0, i);
        if (i < 197) at(0, i, 197 - i);
      }
      const vec<float, N> v5 = splat<vec<float, N>>(gathered(v5_part, sum_of()));
      const vec<float, N> v6 = reciprocal(v5);  // reciprocal
      {
        const auto y0_run = y0_row;
        const auto at = [&](int64_t i, auto... n) __attribute__((always_inline)) {
          const vec<float, N> v4 = load<N>(v4_kept + i);
          const vec<float, N> v7 = v4 * v6;  // mul
          store<N>(y0_run + i, v7, n...);
        };
        int64_t i = 0;
        for (; i + N <= 197; i += N) at(i);
        if (i < 197) at(i, 197 - i);
      }
    }
  }
}
