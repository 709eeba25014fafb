// mean(float32[2, 24, 7, 7]{0,2,3,1}) -> float32[2, 24]
extern "C" void KERNEL(void *const *args, const void *, int64_t begin, int64_t end, void *scratch) {
  constexpr int N = 16;
  const float *const x0 = (const float *)args[0];
  float *const y0 = (float *)args[1];
  for (int64_t task = begin; task < end; ++task) {
    for (int64_t row = task * 2; row < task * 2 + 2; ++row) {  // of 2 times 24 rows
      const auto x0_row = x0 + row * 1176;
      const auto y0_row = y0 + row * 24;
      const auto columns = [&](auto many, int64_t from, auto... n) __attribute__((always_inline)) {
        constexpr int U = decltype(many)::value;  // unrolled vectors
        vec<float, N> v0_of[U];
        vec<float, N> v1_of[U];
        repeat<U>([&](int u) __attribute__((always_inline)) {
          auto &v0 = v0_of[u];
          v0 = splat<vec<float, N>>(0);  // sum
        });
        for (int64_t r = 0; r < 49; ++r) {
          const auto x0_run = x0_row + r * 24;
          repeat<U>([&](int u) __attribute__((always_inline)) {
            const int64_t c = from + u * N;
            auto &v0 = v0_of[u];
            const vec<float, N> x0 = load<N>(x0_run + c, n...);
            v0 = sum_of()(x0, v0);
          });
        }
        repeat<U>([&](int u) __attribute__((always_inline)) {
          auto &v0 = v0_of[u];
          auto &v1 = v1_of[u];
          v1 = v0 / number<N>(49.0f);  // div
        });
        repeat<U>([&](int u) __attribute__((always_inline)) {
          const int64_t c = from + u * N;
          auto &v1 = v1_of[u];
          store<N>(y0_row + c, v1, n...);
        });
      };
      int64_t c = 0;
      for (; c + N <= 24; c += N) columns(width<1>{}, c);
      if (c < 24) columns(width<1>{}, c, 24 - c);
    }
  }
}
