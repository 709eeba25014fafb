// movement: runs of elements, transposing tiles, and indices that tensors name.

// What a kernel met that it cannot compute (KernelStatus of the core): it lies in front of the scratch of a stage that asks for any.
// The kernel goes on without touching anything outside; the run fails after it. The first complaint stays.
enum : int64_t { INDEX_OUTSIDE = 1, DIVIDED_BY_ZERO = 2, DOES_NOT_FIT = 3 };

__attribute__((noinline, cold)) static void fail(void *scratch, int64_t kind, int64_t value, int64_t limit) {
  int64_t *const status = (int64_t *)scratch;
  if (status[-1]) return;
  status[-1] = kind;
  status[-2] = value;
  status[-3] = limit;
}

// A place in a dim of `size`: negative ones count from its end; one outside is reported, and stands for 0.
template <class I>
static inline int64_t index_in(I index, int64_t size, void *scratch) {
  int64_t place = (int64_t)index;
  if (place < 0) place += size;
  if ((uint64_t)place < (uint64_t)size) return place;
  fail(scratch, INDEX_OUTSIDE, (int64_t)index, size);
  return 0;
}

template <class T>
static inline void copy_run(T *to, const T *from, int64_t n) {
  if (__builtin_constant_p(n)) {  // unrolled by the compiler where it is short
    for (int64_t i = 0; i < n; ++i) to[i] = from[i];
    return;
  }
  typedef uint8_t run __attribute__((vector_size(XPU_VECTOR_BYTES), aligned(1), may_alias));
  constexpr int64_t lanes = XPU_VECTOR_BYTES / sizeof(T);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) *(run *)(to + i) = *(const run *)(from + i);
  for (; i < n; ++i) to[i] = from[i];
}

template <class T>
static inline void fill_run(T *to, T value, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = value;
}

// to[q * rows + p] = from[p * columns + q]: both sides are walked in tiles that stay in the first cache.
template <int TILE, class T>
static inline void transpose(T *to, int64_t rows, const T *from, int64_t columns, int64_t nq, int64_t np) {
  for (int64_t q0 = 0; q0 < nq; q0 += TILE)
    for (int64_t p0 = 0; p0 < np; p0 += TILE) {
      const int64_t q1 = q0 + TILE < nq ? q0 + TILE : nq, p1 = p0 + TILE < np ? p0 + TILE : np;
      for (int64_t q = q0; q < q1; ++q)
        for (int64_t p = p0; p < p1; ++p) to[q * rows + p] = from[p * columns + q];
    }
}
