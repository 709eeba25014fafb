// needs: transpose
// movement: runs of elements, transposing tiles, and indices that tensors name.

// An input that a kernel cannot compute (KernelStatus of the core): it is at the start of the scratch of a stage that asks for any.
// The kernel continues without accessing anything outside; the run fails after it. The first error is kept.
enum : int64_t { INDEX_OUTSIDE = 1, DIVIDED_BY_ZERO = 2, DOES_NOT_FIT = 3 };

__attribute__((noinline, cold)) static void fail(void *scratch, int64_t kind, int64_t value, int64_t limit) {
  int64_t *const status = (int64_t *)scratch;
  if (status[-1]) return;
  status[-1] = kind;
  status[-2] = value;
  status[-3] = limit;
}

// Return an index into a dim of `size`. A negative index counts from the end; one outside the dim is reported and read as 0.
template <class I>
static inline int64_t index_in(I index, int64_t size, void *scratch) {
  int64_t i = (int64_t)index;
  if (i < 0) i += size;
  if ((uint64_t)i < (uint64_t)size) return i;
  fail(scratch, INDEX_OUTSIDE, (int64_t)index, size);
  return 0;
}

// Return an index into a dim of `size`. One outside the dim, also a negative one, is reported and read as 0.
template <class I>
static inline int64_t index_within(I index, int64_t size, void *scratch) {
  if ((uint64_t)(int64_t)index < (uint64_t)size) return (int64_t)index;
  fail(scratch, INDEX_OUTSIDE, (int64_t)index, size);
  return 0;
}

// Bytes in the widest pieces that fit; the last piece may overlap the one before it.
template <int PIECE, int LEAST>
INLINE void copy_bytes(char *to, const char *from, int64_t n) {
  typedef uint8_t piece __attribute__((vector_size(PIECE), aligned(1), may_alias));
  if (n >= PIECE) {
    for (int64_t i = 0; i + PIECE <= n; i += PIECE) *(piece *)(to + i) = *(const piece *)(from + i);
    if (n % PIECE) *(piece *)(to + n - PIECE) = *(const piece *)(from + n - PIECE);
  } else if constexpr (PIECE > LEAST) {
    copy_bytes<PIECE / 2, LEAST>(to, from, n);
  }
}

template <class T>
static inline void copy_run(T *to, const T *from, int64_t n) {
  copy_bytes<VECTOR_BYTES, sizeof(T)>((char *)to, (const char *)from, n * (int64_t)sizeof(T));
}

template <class T>
static inline void fill_run(T *to, T value, int64_t n) {
  constexpr int64_t lanes = VECTOR_BYTES / sizeof(T);
  int64_t i = 0;
  if (!__builtin_constant_p(n) || n >= lanes) {
    const vec<T, lanes> all = splat<vec<T, lanes>>(value);
    for (; i + lanes <= n; i += lanes) __builtin_memcpy(to + i, &all, sizeof all);
  }
  for (; i < n; ++i) to[i] = value;
}

// Vectors of elements in reverse (STEP -1), of every other element (2) or of elements that are repeated. J is 0, 1 ... lanes - 1.
template <int... J> struct Lanes {
  static constexpr int L = sizeof...(J);
  template <int64_t STEP, class T>
  static INLINE_MEMBER void copy(T *to, const T *from) {
    vec<T, L> a, b;
    if constexpr (STEP == -1) {
      __builtin_memcpy(&a, from - (L - 1), sizeof a);
      a = __builtin_shufflevector(a, a, (L - 1 - J)...);
    } else {
      __builtin_memcpy(&a, from, sizeof a);
      __builtin_memcpy(&b, from + L - 1, sizeof b);  // not from + L, which would reach beyond the last element that is copied
      a = __builtin_shufflevector(a, b, (2 * J + (2 * J >= L))...);
    }
    __builtin_memcpy(to, &a, sizeof a);
  }
  template <int TIMES, int PART = 0, class T>
  static INLINE_MEMBER void repeat(T *to, vec<T, L> a) {
    const vec<T, L> part = __builtin_shufflevector(a, a, ((PART * L + J) / TIMES)...);
    __builtin_memcpy(to + PART * L, &part, sizeof part);
    if constexpr (PART + 1 < TIMES) repeat<TIMES, PART + 1>(to, a);
  }
};
template <int N, int... J> struct LanesOf : LanesOf<N - 1, N - 1, J...> {};
template <int... J> struct LanesOf<0, J...> { typedef Lanes<J...> type; };

// The last vector may overlap the one before it.
template <int BYTES, int64_t STEP, class T>
INLINE void copy_shuffled(T *to, const T *from, int64_t n) {
  constexpr int L = BYTES / sizeof(T);
  typedef typename LanesOf<L>::type Vectors;
  if (n >= L) {
    for (int64_t i = 0; i + L <= n; i += L) Vectors::template copy<STEP>(to + i, from + i * STEP);
    if (n % L) Vectors::template copy<STEP>(to + n - L, from + (n - L) * STEP);
  } else if constexpr (BYTES > 16) {
    copy_shuffled<BYTES / 2, STEP>(to, from, n);
  } else {
    for (int64_t i = 0; i < n; ++i) to[i] = from[i * STEP];
  }
}

// to[i * TO] = from[i * FROM].
template <int64_t TO, int64_t FROM, class T>
static inline void copy_steps(T *to, const T *from, int64_t n) {
  typedef typename bits_<sizeof(T)>::u U;
  if constexpr (TO == 1 && FROM == 1) copy_run(to, from, n);
  else if constexpr (TO == 1 && (FROM == -1 || FROM == 2)) copy_shuffled<VECTOR_BYTES, FROM>((U *)to, (const U *)from, n);
  else
    for (int64_t i = 0; i < n; ++i) to[i * TO] = from[i * FROM];
}

// to[i] = from[i / TIMES] for n elements of `from`.
template <int TIMES, class T>
static inline void repeat_run(T *to, const T *from, int64_t n) {
  constexpr int L = VECTOR_BYTES / sizeof(T);
  typedef typename bits_<sizeof(T)>::u U;
  int64_t i = 0;
  for (; i + L <= n; i += L) {
    vec<U, L> a;
    __builtin_memcpy(&a, from + i, sizeof a);
    LanesOf<L>::type::template repeat<TIMES>((U *)to + i * TIMES, a);
  }
  for (; i < n; ++i)
    for (int t = 0; t < TIMES; ++t) to[i * TIMES + t] = from[i];
}

// to[i] = join(to[i], from[i]).
template <class T, class F>
INLINE void combine_run(T *to, const T *from, int64_t n, F join) {
  constexpr int L = VECTOR_BYTES / sizeof(T);
  int64_t i = 0;
  for (; i + L <= n; i += L) {
    vec<T, L> a, b;
    __builtin_memcpy(&a, to + i, sizeof a), __builtin_memcpy(&b, from + i, sizeof b);
    a = join(a, b);
    __builtin_memcpy(to + i, &a, sizeof a);
  }
  for (; i < n; ++i) to[i] = join(to[i], from[i]);
}

template <int64_t TO, class T>
static inline void zero_steps(T *to, int64_t n) {
  typedef typename bits_<sizeof(T)>::u U;
  if constexpr (TO == 1) fill_run((U *)to, (U)0, n);
  else
    for (int64_t i = 0; i < n; ++i) *(U *)(to + i * TO) = 0;
}

// Eight rows of eight as eight columns: three times, rows i and i + 4 are shuffled into each other.
template <class V>
INLINE void turn8(V (&r)[8]) {
  for (int round = 0; round < 3; ++round) {
    V t[8];
    for (int i = 0; i < 4; ++i) {
      t[2 * i] = __builtin_shufflevector(r[i], r[i + 4], 0, 8, 1, 9, 2, 10, 3, 11);
      t[2 * i + 1] = __builtin_shufflevector(r[i], r[i + 4], 4, 12, 5, 13, 6, 14, 7, 15);
    }
    for (int i = 0; i < 8; ++i) r[i] = t[i];
  }
}

template <class T>
INLINE void transpose_block(T *to, int64_t rows, const T *from, int64_t columns) {
  vec<T, 8> r[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) __builtin_memcpy(&r[i], from + i * columns, sizeof r[i]);
  if constexpr (sizeof(T) == 4 && VECTOR_BYTES >= 32) transpose_square(r);
  else turn8(r);
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) __builtin_memcpy(to + i * rows, &r[i], sizeof r[i]);
}

// to[q * rows + p] = from[p * columns + q]: in tiles, and within them in squares of whole cache lines, so that a line that is read
// or written is complete before another one evicts it: strides of powers of two map many lines to few cache sets.
template <int TILE, class T>
static inline void transpose(T *to, int64_t rows, const T *from, int64_t columns, int64_t nq, int64_t np) {
  constexpr int64_t LINE = 64 / sizeof(T), EDGE = TILE < LINE ? TILE : LINE;
  for (int64_t q0 = 0; q0 < nq; q0 += EDGE)
    for (int64_t p0 = 0; p0 < np; p0 += EDGE) {
      const int64_t q1 = q0 + EDGE < nq ? q0 + EDGE : nq, p1 = p0 + EDGE < np ? p0 + EDGE : np;
      int64_t p = p0;
      for (; p + 8 <= p1; p += 8) {
        int64_t q = q0;
        for (; q + 8 <= q1; q += 8) transpose_block(to + q * rows + p, rows, from + p * columns + q, columns);
        for (; q < q1; ++q)
          for (int64_t k = p; k < p + 8; ++k) to[q * rows + k] = from[k * columns + q];
      }
      for (; p < p1; ++p)
        for (int64_t q = q0; q < q1; ++q) to[q * rows + p] = from[p * columns + q];
    }
}
