// tile: the tile registers of AMX, and the product of bfloat16 that fills four of them.
//
// Eight registers of up to 16 rows of 64 bytes. Sums take 0 to 3 (two by two of 16 rows and 16 columns), A takes 4 and 5, B takes 6 and 7:
// four products for four loads. Numbers below the smallest normal one count as zero here, as the instructions have it.
// Source: Intel SDM, volume 1, chapter "Programming with Intel AMX", and the instructions' pages in volume 2.
//
// With TILES_EMULATED the same instructions are plain C++, so that kernels can be tested on a machine without them.

// The operand of LDTILECFG.
struct TileSizes {
    uint8_t palette, start, none[14];
    uint16_t bytes[16];  // of a row
    uint8_t rows[16];
};

struct Tiles {
    int64_t used = 0;  // the sizes in use: tiles have no more rows and columns than the matrix, so that nothing outside it is read

#if defined(TILES_EMULATED)
    TileSizes sizes;
    uint8_t held[8][16][64];
    INLINE_MEMBER void configure(const TileSizes &s) {
        __builtin_memcpy(&sizes, &s, sizeof s);
        for (int i = 0; i < 8 * 16 * 64; i++) held[0][0][i] = 0;
    }
    INLINE_MEMBER ~Tiles() {}
    template <int T> INLINE_MEMBER void zero() {
        for (int i = 0; i < 16 * 64; i++) held[T][0][i] = 0;
    }
    template <int T> INLINE_MEMBER void load(const void *from, int64_t stride) {
        zero<T>();
        for (int r = 0; r < sizes.rows[T]; r++)
            for (int i = 0; i < sizes.bytes[T]; i++) held[T][r][i] = ((const uint8_t *)from)[r * stride + i];
    }
    template <int T> INLINE_MEMBER void store(void *to, int64_t stride) const {
        for (int r = 0; r < sizes.rows[T]; r++)
            for (int i = 0; i < sizes.bytes[T]; i++) ((uint8_t *)to)[r * stride + i] = held[T][r][i];
    }
    template <int S, int A, int B> INLINE_MEMBER void multiply() {
        if (sizes.rows[S] != sizes.rows[A] || sizes.rows[B] * 4 != sizes.bytes[A] || sizes.bytes[S] != sizes.bytes[B]) __builtin_trap();
        const auto bf = [](const uint8_t *p) { return ::load<1>((const bf16 *)p); };
        for (int r = 0; r < sizes.rows[S]; r++)
            for (int k = 0; k < sizes.rows[B]; k++)
                for (int c = 0; c < sizes.bytes[S] / 4; c++) {
                    const uint8_t *a = held[A][r] + 4 * k, *b = held[B][k] + 4 * c;
                    float *sum = (float *)held[S][r] + c;
                    *sum = *sum + bf(a) * bf(b) + bf(a + 2) * bf(b + 2);
                }
    }
    template <int S, int A, int B, bool SIGNED> INLINE_MEMBER void multiply_bytes() {  // sums of 8-bit products: A signed or not, B signed
        if (sizes.rows[S] != sizes.rows[A] || sizes.rows[B] * 4 != sizes.bytes[A] || sizes.bytes[S] != sizes.bytes[B]) __builtin_trap();
        for (int r = 0; r < sizes.rows[S]; r++)
            for (int k = 0; k < sizes.rows[B]; k++)
                for (int c = 0; c < sizes.bytes[S] / 4; c++)
                    for (int i = 0; i < 4; i++) {
                        const uint8_t a = held[A][r][4 * k + i];
                        ((int32_t *)held[S][r])[c] += (SIGNED ? (int32_t)(int8_t)a : (int32_t)a) * (int8_t)held[B][k][4 * c + i];
                    }
    }
#else
    INLINE_MEMBER void configure(const TileSizes &s) { __asm__ volatile("ldtilecfg %0" : : "m"(s)); }
    INLINE_MEMBER ~Tiles() { __asm__ volatile("tilerelease"); }
    template <int T> INLINE_MEMBER void zero() { __asm__ volatile("tilezero %%tmm%c0" : : "n"(T)); }
    template <int T> INLINE_MEMBER void load(const void *from, int64_t stride) {
        __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "n"(T) : "memory");
    }
    template <int T> INLINE_MEMBER void store(void *to, int64_t stride) const {
        __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "n"(T) : "memory");
    }
    template <int S, int A, int B> INLINE_MEMBER void multiply() {
        __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "n"(S), "n"(A), "n"(B));
    }
    template <int S, int A, int B, bool SIGNED> INLINE_MEMBER void multiply_bytes() {  // sums of 8-bit products: A signed or not, B signed
        if (SIGNED) __asm__ volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "n"(S), "n"(A), "n"(B));
        else __asm__ volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "n"(S), "n"(A), "n"(B));
    }
#endif

    // Sizes for a block of n rows of A, at most 32, and steps of `depth` k. Clears every tile when they change.
    INLINE_MEMBER void use(int64_t n, int64_t depth = 32) { use(n < 16 ? n : 16, n < 16 ? 1 : n - 16 > 0 ? n - 16 : 1, depth); }
    // Sizes for tiles of A of 1 to 16 rows each.
    INLINE_MEMBER void use(int64_t first, int64_t second, int64_t depth) {
        const int64_t sizes = (depth * 32 + first) * 32 + second;
        if (used == sizes) return;
        used = sizes;
        TileSizes s = {};
        s.palette = 1;
        for (int i = 0; i < 8; i++) s.bytes[i] = 64;
        s.rows[0] = s.rows[1] = s.rows[4] = first;
        s.rows[2] = s.rows[3] = s.rows[5] = second;
        s.rows[6] = s.rows[7] = depth / 2;
        s.bytes[4] = s.bytes[5] = 2 * depth;
        configure(s);
    }
};

constexpr int TILE_ROWS = 32, TILE_COLUMNS = 32, TILE_DEPTH = 32;
constexpr int64_t TILE_SUMS = TILE_COLUMNS * 4;             // bytes of a row of sums
constexpr int64_t TILE_PANEL = TILE_DEPTH * TILE_COLUMNS * 2;  // bytes of B for one whole step: [16 pairs of k][32 columns][2]

// One step of the product; `a` and `second`: the rows of the two tiles of A.
template <bool TWO> INLINE void tile_step(Tiles &t, const char *a, const char *second, int64_t stride, const char *b) {
    t.load<4>(a, stride);
    t.load<6>(b, TILE_SUMS);
    t.load<7>(b + 64, TILE_SUMS);
    t.multiply<0, 4, 6>();
    if constexpr (TWO) t.load<5>(second, stride);
    t.multiply<1, 4, 7>();
    if constexpr (TWO) {
        t.multiply<2, 5, 6>();
        t.multiply<3, 5, 7>();
    }
}

// The first sums: rows with stride `stride` bytes (0: one row for all), or zeros for null.
template <bool TWO> INLINE void tile_start(Tiles &t, const void *start, int64_t stride) {
    const char *from = (const char *)start;
    if (from) {
        t.load<0>(from, stride);
        t.load<1>(from + 64, stride);
        if constexpr (TWO) {
            t.load<2>(from + 16 * stride, stride);
            t.load<3>(from + 16 * stride + 64, stride);
        }
    } else {
        t.zero<0>();
        t.zero<1>();
        if constexpr (TWO) {
            t.zero<2>();
            t.zero<3>();
        }
    }
}
template <bool TWO> INLINE void tile_end(const Tiles &t, float *sums) {
    t.store<0>(sums, TILE_SUMS);
    t.store<1>(sums + 16, TILE_SUMS);
    if constexpr (TWO) {
        t.store<2>(sums + 16 * TILE_COLUMNS, TILE_SUMS);
        t.store<3>(sums + 16 * TILE_COLUMNS + 16, TILE_SUMS);
    }
}

// sums[rows][32] = start + A x B. A's row stride is `stride` bytes, and each of `steps` reads `depth` k of it, an even number. `tail`, if not null, is
// the zero-padded tail of k (row stride 64 bytes). `start`: initial sums with row stride `start_stride` bytes (0: one row for all), or null. Each
// step prefetches `lines` cache lines from `prefetch`.
template <bool TWO>
static __attribute__((noinline)) void tile_product_of(Tiles &t, const void *a, int64_t stride, const void *b, int64_t steps, int64_t depth,
                                                      const void *tail, const void *start, int64_t start_stride, float *sums,
                                                      const void *prefetch, int64_t lines) {
    const char *rows = (const char *)a, *panel = (const char *)b, *next = (const char *)prefetch;
    tile_start<TWO>(t, start, start_stride);
    for (int64_t i = 0; i < steps; i++, rows += 2 * depth, panel += depth * TILE_COLUMNS * 2) {
        for (int64_t l = 0; l < lines; l++, next += 64) __builtin_prefetch(next, 0, 2);
        tile_step<TWO>(t, rows, rows + 16 * stride, stride, panel);
    }
    if (tail) tile_step<TWO>(t, (const char *)tail, (const char *)tail + 32 * TILE_DEPTH, 2 * TILE_DEPTH, panel);
    tile_end<TWO>(t, sums);
}

// The same for a count of rows that is known when it runs.
INLINE void tile_product(Tiles &t, int64_t rows, const void *a, int64_t stride, const void *b, int64_t steps, const void *tail,
                         const void *start, int64_t start_stride, float *sums, const void *prefetch, int64_t lines,
                         int64_t depth = TILE_DEPTH) {
    t.use(rows, depth);
    (rows > 16 ? tile_product_of<true> : tile_product_of<false>)(t, a, stride, b, steps, depth, tail, start, start_stride, sums, prefetch,
                                                                 lines);
}

// Pack the tail of k: n < 32 elements of each of `rows` rows, contiguous and zero-padded.
static __attribute__((noinline)) void tile_tail(const bf16 *a, int64_t stride, int64_t rows, int64_t n, bf16 *to) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < TILE_DEPTH; i += 16) {
            const int64_t left = n - i < 0 ? 0 : n - i < 16 ? n - i : 16;
            __builtin_memset(to + r * TILE_DEPTH + i, 0, 32);
            const auto part = load_first<16>((const uint16_t *)(a + r * stride + i), left);
            __builtin_memcpy(to + r * TILE_DEPTH + i, &part, 32);
        }
}
