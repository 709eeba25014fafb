// movement: runs of elements, and indices that tensors name.

// An input that a kernel cannot compute (KernelStatus of the core): kind, value, limit. The kernel continues without accessing anything
// outside; the first error is kept. The words are in host memory, where the launcher reads them after the run: a run
// without errors transfers nothing.
enum : int64_t { INDEX_OUTSIDE = 1, DIVIDED_BY_ZERO = 2, DOES_NOT_FIT = 3 };
extern "C" __device__ unsigned long long xpurt_report[2] = {0, 0};  // whether an error is recorded; address of the words

static __device__ __noinline__ void fail(void *, int64_t kind, int64_t value, int64_t limit) {
    if (atomicCAS(&xpurt_report[0], 0ull, 1ull)) return;
    volatile unsigned long long *words = (volatile unsigned long long *)xpurt_report[1];
    words[1] = (unsigned long long)value;
    words[2] = (unsigned long long)limit;
    __threadfence_system();  // the kind becomes visible after the value and the limit
    words[0] = (unsigned long long)kind;
}

// Return an index into a dim of `size`. A negative index counts from the end; one outside the dim is reported and read as 0.
template <class I> INLINE int64_t index_in(I index, int64_t size, void *scratch = nullptr) {
    int64_t i = (int64_t)index;
    if (i < 0) i += size;
    if ((uint64_t)i < (uint64_t)size) return i;
    fail(scratch, INDEX_OUTSIDE, (int64_t)index, size);
    return 0;
}

// Return an index into a dim of `size`. One outside the dim, also a negative one, is reported and read as 0.
template <class I> INLINE int64_t index_within(I index, int64_t size, void *scratch = nullptr) {
    if ((uint64_t)(int64_t)index < (uint64_t)size) return (int64_t)index;
    fail(scratch, INDEX_OUTSIDE, (int64_t)index, size);
    return 0;
}

template <class T> INLINE void copy_run(T *to, const T *from, int64_t n) {
    for (int64_t i = 0; i < n; ++i) to[i] = from[i];
}
template <class T> INLINE void fill_run(T *to, T value, int64_t n) {
    for (int64_t i = 0; i < n; ++i) to[i] = value;
}

// Copy N elements (or the first n), vectorized if both pointers are aligned.
template <int N, class T> INLINE void copy_pack(T *to, const T *from, int n = N) {
    const bool whole = fits<N>(to) && fits<N>(from);
    put<N>(to, fetch<N>(from, whole, n), whole, n);
}
// Copy M packs of N elements with stride `step` (a multiple of N): all loads are issued before the first store.
template <int N, int M, class T> INLINE void copy_packs(T *to, const T *from, int64_t step) {
    if (fits<N>(to) && fits<N>(from)) {
        pack<T, N> r[M];
#pragma unroll
        for (int m = 0; m < M; ++m) r[m] = fetch<N>(from + m * step, true);
#pragma unroll
        for (int m = 0; m < M; ++m) put<N>(to + m * step, r[m], true);
    } else {
#pragma unroll 1
        for (int i = 0; i < M * N; ++i) to[i / N * step + i % N] = from[i / N * step + i % N];
    }
}
// Fill N elements (or the first n) with a value.
template <int N, class T> INLINE void fill_pack(T *to, T value, int n = N) {
    pack<T, N> r;
#pragma unroll
    for (int i = 0; i < N; ++i) r.at[i] = value;
    put<N>(to, r, fits<N>(to), n);
}

// One tile of to[q * rows + p] = from[p * columns + q], with q below nq and p below np, from (q0, p0) on; THREADS in a row. Loads and
// stores are V elements wide (nq, np and the row strides are multiples of V): a thread transposes V x V blocks in registers. Rows of the
// tile are padded by PAD elements, so that neither side has shared memory bank conflicts.
template <int TILE, int PAD, class T> INLINE T (&tile_of())[TILE][TILE + PAD] {
    __shared__ __align__(16) T tile[TILE][TILE + PAD];
    return tile;
}
template <int TILE, int PAD, int V, int THREADS, class T>
INLINE void transposed(T *to, int64_t rows, const T *from, int64_t columns, int64_t q0, int64_t nq, int64_t p0, int64_t np) {
    constexpr int SIDE = TILE / V, STEP = THREADS / SIDE;
    constexpr bool EVEN = STEP > 0 && THREADS % SIDE == 0 && TILE % STEP == 0 && SIDE % STEP == 0;  // every iteration occupies all threads
    constexpr int LOADS = (TILE * SIDE + THREADS - 1) / THREADS, STORES = (SIDE * SIDE + THREADS - 1) / THREADS;
    T(&tile)[TILE][TILE + PAD] = tile_of<TILE, PAD, T>();
    const int line = threadIdx.x / SIDE, column = threadIdx.x % SIDE;
    __syncthreads();  // an earlier tile may still be read
#pragma unroll
    for (int k = 0; k < LOADS; ++k) {
        const int i = k * THREADS + threadIdx.x, y = EVEN ? line + k * STEP : i / SIDE, x = (EVEN ? column : i % SIDE) * V;
        if ((EVEN || y < TILE) && p0 + y < np && q0 + x < nq)
            *(pack<T, V> *)&tile[y][x] = *(const pack<T, V> *)(from + (p0 + y) * columns + (q0 + x));
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < STORES; ++k) {
        const int i = k * THREADS + threadIdx.x, y = (EVEN ? line + k * STEP : i / SIDE) * V, x = (EVEN ? column : i % SIDE) * V;
        if ((!EVEN && y >= TILE) || p0 + x >= np || q0 + y >= nq) continue;
        pack<T, V> in[V];
#pragma unroll
        for (int e = 0; e < V; ++e) in[e] = *(const pack<T, V> *)&tile[x + e][y];
#pragma unroll
        for (int f = 0; f < V; ++f) {
            pack<T, V> out;
#pragma unroll
            for (int e = 0; e < V; ++e) out.at[e] = in[e].at[f];
            *(pack<T, V> *)(to + (q0 + y + f) * rows + (p0 + x)) = out;
        }
    }
}

// Return whether indices are non-negative and strictly increasing. All threads of a block call it.
template <class I> INLINE bool rising(const I *at, int n, int64_t step) {
    bool rises = (int64_t)at[0] >= 0;
    for (int i = 1 + threadIdx.x; i < n; i += blockDim.x) rises = rises && at[(i - 1) * step] < at[i * step];
    return __syncthreads_and(rises) != 0;
}

// Add row `row` and the later rows of its position `own`, in ascending order.
template <class Position, class Add> INLINE void add_rows_of_one_position(int row, int rows, int64_t own, Position position, Add add) {
    constexpr int AT_ONCE = 4;  // rows of a thread per step, whose positions are read at the same time
    __shared__ unsigned same_position[AT_ONCE * 32];  // a bit per row of a step, a word per warp
    const int words = AT_ONCE * blockDim.x / 32;
    for (int first = row; first < rows; first += AT_ONCE * blockDim.x) {
        unsigned any = 0;
#pragma unroll
        for (int j = 0; j < AT_ONCE; ++j) {
            const int k = first + j * blockDim.x + threadIdx.x;
            const unsigned votes = __ballot_sync(0xffffffffu, k < rows && position(k) == own);
            if (threadIdx.x % 32 == 0) same_position[(j * blockDim.x + threadIdx.x) / 32] = votes;
            any |= votes;
        }
        if (__syncthreads_or(any != 0))
            for (int w = 0; w < words; ++w)
                for (unsigned bits = same_position[w]; bits != 0; bits &= bits - 1)
                    add(first + w * 32 + __ffs(bits) - 1);
        __syncthreads();  // the words may still be read
    }
}

// Add those of the rows `row`, `row + step` ... up to OWN of them that are the first of their position, each with the later rows of its position, in
// ascending order. position(k) returns the position of row k, add(k) adds row k by all threads of the block. All threads of a block call it, at most
// 1,024 in whole warps. With the number of blocks as step, the first rows of repeated positions are spread over blocks.
template <int OWN, class Position, class Add> INLINE void add_rows_in_order(int row, int step, int rows, Position position, Add add) {
    int64_t own[OWN];
#pragma unroll
    for (int j = 0; j < OWN; ++j) own[j] = row + j * step < rows ? position(row + j * step) : -1;
    unsigned earlier = 0, later = 0;  // a bit per own row: another row has its position
#pragma unroll 8
    for (int k = threadIdx.x; k < rows; k += blockDim.x) {
        const int64_t other = position(k);
#pragma unroll
        for (int j = 0; j < OWN; ++j) {
            const unsigned is_same = other == own[j];
            earlier |= (is_same & (k < row + j * step)) << j;
            later |= (is_same & (k > row + j * step)) << j;
        }
    }
#pragma unroll
    for (int j = 0; j < OWN; ++j) {
        const int k = row + j * step;
        if (k >= rows) return;
        const bool is_repeated = __syncthreads_or(earlier >> j & 1), repeats = __syncthreads_or(later >> j & 1);
        if (is_repeated) continue;
        if (repeats) add_rows_of_one_position(k, rows, own[j], position, add);
        else add(k);
    }
}
