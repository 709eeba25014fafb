// add(float32[2, 24, 7, 7]{0,2,3,1}, float32[24, 1, 1]) -> float32[2, 24, 7, 7]{0,2,3,1}
extern "C" void KERNEL(void *const *args, const void *, int64_t begin, int64_t end, void *scratch) {
  constexpr int N = 16;
  const float *const x0 = (const float *)args[0];
  const float *const x1 = (const float *)args[1];
  float *const y0 = (float *)args[2];
  for (int64_t task = begin; task < end; ++task) {
    for (int64_t row = task * 98; row < task * 98 + 98; ++row) {  // of 98 rows of 24
      const auto x0_row = x0 + row * 24;
      const auto x1_row = x1;
      const auto y0_row = y0 + row * 24;
      const auto at = [&](int64_t i, auto... n) __attribute__((always_inline)) {
        const vec<float, N> x0 = load<N>(x0_row + i, n...);
        const vec<float, N> x1 = load<N>(x1_row + i, n...);
        const vec<float, N> v0 = x0 + x1;  // add
        store<N>(y0_row + i, v0, n...);
      };
      int64_t i = 0;
      for (; i + N <= 24; i += N) at(i);
      if (i < 24) at(i, 24 - i);
    }
  }
}
