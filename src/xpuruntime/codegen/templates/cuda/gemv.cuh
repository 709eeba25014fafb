// needs: tensor
// gemv.cuh: few rows times a weight [n, k], bound by the bandwidth of reading the weight once, in 16-byte loads with several in flight per thread.
//
// A group of SPLIT warps computes ITEMS_PER_GROUP items of consecutive columns. Weights do not change (PREFETCH_WEIGHTS), so that the first loads are
// issued before griddep_wait, and an item's loads during the sums of the item before it.
//
// P: S (storage), A (accumulator), n, k, m (rows of x), x_row and w_row (elements between rows), COLUMNS (rows of the weight that a group reads at
// a time: columns of y; if GATED, half of them are gate columns and half the columns, n rows further on, that the gate multiplies), SPLIT
// (warps that share a row's k), GROUPS (groups per block; 1 if SPLIT is not 1), STAGES (steps with loads in flight), ITEMS_PER_GROUP, NORM (x
// is RMS-normalized with eps() and scaled), STAGED (its rows are kept in shared memory), ALIGNED, PREFETCH_WEIGHTS. `finish.terms(row, column)`
// loads what a result adds, `finish.write(...)` writes one.
namespace gemv {

using tensor::Quad;
using tensor::u32;

// The elements of 16 bytes, converted to the accumulator type.
template <class S> struct Chunk;
template <> struct Chunk<float> {
    static constexpr int size = 4;
    static __device__ __forceinline__ void open(float (&x)[4], const Quad &q) {
#pragma unroll
        for (int i = 0; i < 4; ++i) x[i] = __uint_as_float(q.x[i]);
    }
};
template <> struct Chunk<double> {
    static constexpr int size = 2;
    static __device__ __forceinline__ void open(double (&x)[2], const Quad &q) {
#pragma unroll
        for (int i = 0; i < 2; ++i) x[i] = bitcast<double>((uint64_t)q.x[2 * i + 1] << 32 | q.x[2 * i]);
    }
};
template <class T> struct Halves {
    static constexpr int size = 8;
    static __device__ __forceinline__ void open(float (&x)[8], const Quad &q) {
#pragma unroll
        for (int i = 0; i < 4; ++i) x[2 * i] = T::low(q.x[i]), x[2 * i + 1] = T::high(q.x[i]);
    }
};
template <> struct Chunk<bf16> : Halves<tensor::Bf16> {};
template <> struct Chunk<f16> : Halves<tensor::F16> {};

// Load the chunk at element `at` of a row of k elements; zeros past its end.
template <bool ALIGNED, bool ONCE, class S>
__device__ __forceinline__ Quad read(const S *row, int at, int k) {
    if (ALIGNED && at < k) return ONCE ? tensor::ld_streaming_16(row + at) : tensor::load16(row + at);
    Quad q = {{0, 0, 0, 0}};
    if (ALIGNED) return q;
    struct Bits { uints<S> at[Chunk<S>::size]; } bits = {};
#pragma unroll
    for (int i = 0; i < Chunk<S>::size; ++i)
        if (at + i < k) bits.at[i] = ((const uints<S> *)row)[at + i];
    return bitcast<Quad>(bits);
}

constexpr int power_above(int n) { return n <= 1 ? 1 : 2 * power_above((n + 1) / 2); }

// Sum N values over 32 lanes (N a power of two up to 32): lanes v * 32 / N to (v + 1) * 32 / N - 1 return the sum of value v.
template <int N, int MASK = 16, class A>
__device__ __forceinline__ A transpose_reduce(const A (&v)[N]) {
    if constexpr (N == 1) {
        A sum = v[0];
#pragma unroll
        for (int mask = MASK; mask > 0; mask /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, mask);
        return sum;
    } else {
        const bool upper = threadIdx.x & MASK;
        A half[N / 2];
#pragma unroll
        for (int i = 0; i < N / 2; ++i)
            half[i] = (upper ? v[N / 2 + i] : v[i]) + __shfl_xor_sync(0xffffffffu, upper ? v[i] : v[N / 2 + i], MASK);
        return transpose_reduce<N / 2, MASK / 2>(half);
    }
}

__device__ __forceinline__ double reciprocal_sqrt(double x) { return 1 / sqrt(x); }
__device__ __forceinline__ float reciprocal_sqrt(float x) {
#if defined(__CUDACC_RTC__)
    return rsqrtf(x);  // within 2 ulp (CUDA C++ Programming Guide, "Mathematical Functions")
#else
    return 1 / sqrt(x);
#endif
}

// Sizes that follow from P.
template <class P> struct Sizes {
    static constexpr int E = Chunk<typename P::S>::size, STEP = P::SPLIT * 32 * E, C = P::COLUMNS, RESULT_COLUMNS = P::GATED ? C / 2 : C,
                         ROUNDS = (P::k + P::STAGES * STEP - 1) / (P::STAGES * STEP), WARPS = P::SPLIT * P::GROUPS, THREADS = WARPS * 32,
                         ITEMS = (P::n + RESULT_COLUMNS - 1) / RESULT_COLUMNS, ROWS = power_above(P::m), VALUES = C * ROWS, EACH = 32 / VALUES,
                         CHUNKS = (P::k + E - 1) / E, PIECE = 16 / sizeof(typename P::A), PIECES = E / PIECE;
    static constexpr bool WHOLE = P::k > 0 && P::k == ROUNDS * P::STAGES * STEP;
    static_assert(VALUES <= 32 && P::n >= RESULT_COLUMNS && (P::GROUPS == 1 || P::SPLIT == 1), "");
};

// The rows of x. STAGED: in shared memory by 16-byte pieces, so that neighboring lanes read contiguous pieces without bank conflicts.
template <class P> struct Rows {
    typedef typename P::S S;
    typedef typename P::A A;
    typedef Sizes<P> Z;
    const S *x, *scale;
    A *staged;

    __device__ __forceinline__ A *piece(int row, int chunk, int i) const {
        return staged + ((row * Z::PIECES + i) * Z::CHUNKS + chunk) * Z::PIECE;
    }
    __device__ __forceinline__ void from_memory(A (&a)[Z::E], int row, int at) const {
        Chunk<S>::open(a, read<P::ALIGNED, false>(x + (long long)row * P::x_row, at, P::k));
    }
    __device__ __forceinline__ void scaled(A (&a)[Z::E], const Quad &by) const {
        A g[Z::E];
        Chunk<S>::open(g, by);
#pragma unroll
        for (int e = 0; e < Z::E; ++e) a[e] *= g[e];
    }
    __device__ __forceinline__ void open(A (&a)[Z::E], int row, int at) const {
        if constexpr (P::STAGED) {
#pragma unroll
            for (int e = 0; e < Z::E; ++e) a[e] = Z::WHOLE || at < P::k ? piece(row, at / Z::E, e / Z::PIECE)[e % Z::PIECE] : (A)0;
        } else {
            from_memory(a, row, at);
            if constexpr (P::NORM) scaled(a, read<P::ALIGNED, false>(scale, at, P::k));
        }
    }
    // Write each warp's sum of squares to `parts` and staged rows to shared memory. Calls griddep_wait if PREFETCH_WEIGHTS.
    __device__ __forceinline__ void norm(A (*parts)[Z::WARPS]) const {
        constexpr int CHUNKS_PER_THREAD = (Z::CHUNKS + Z::THREADS - 1) / Z::THREADS;
        constexpr bool SCALE_IN_REGS = CHUNKS_PER_THREAD <= 2;  // a thread's part of the scale fits in registers
        Quad by[SCALE_IN_REGS ? CHUNKS_PER_THREAD : 1];
        if constexpr (SCALE_IN_REGS)
#pragma unroll
            for (int i = 0; i < CHUNKS_PER_THREAD; ++i) by[i] = read<P::ALIGNED, false>(scale, (i * Z::THREADS + (int)threadIdx.x) * Z::E, P::k);
        if (P::PREFETCH_WEIGHTS) griddep_wait();
        for (int row = 0; row < P::m; ++row) {
            A squares = 0;
#pragma unroll
            for (int i = 0; i < CHUNKS_PER_THREAD; ++i) {
                const int chunk = i * Z::THREADS + (int)threadIdx.x;
                if (chunk >= Z::CHUNKS) break;
                A a[Z::E];
                from_memory(a, row, chunk * Z::E);
#pragma unroll
                for (int e = 0; e < Z::E; ++e) squares += a[e] * a[e];
                if constexpr (P::STAGED) {
                    scaled(a, SCALE_IN_REGS ? by[SCALE_IN_REGS ? i : 0] : read<P::ALIGNED, false>(scale, chunk * Z::E, P::k));
#pragma unroll
                    for (int e = 0; e < Z::E; ++e) piece(row, chunk, e / Z::PIECE)[e % Z::PIECE] = a[e];
                }
            }
#pragma unroll
            for (int mask = 16; mask > 0; mask /= 2) squares += __shfl_xor_sync(0xffffffffu, squares, mask);
            if (threadIdx.x % 32 == 0) parts[row][threadIdx.x / 32] = squares;
        }
        __syncthreads();
    }
    // Over the root of a row's mean square.
    __device__ __forceinline__ static A factor(const A (&parts)[Z::WARPS]) {
        A sum = 0;
#pragma unroll
        for (int i = 0; i < Z::WARPS; ++i) sum += parts[i];
        return reciprocal_sqrt(sum / (A)P::k + P::eps());
    }
};

// The shared memory of a block. The instance for any address and that for 16-byte aligned ones use the same.
template <class A, int STAGED, int ROWS, int WARPS, int SPLIT, int VALUES> struct Shared {
    A staged[STAGED], squares[ROWS][WARPS], parts[SPLIT > 1 ? 2 : 1][SPLIT][VALUES];
};
template <class T> __device__ __forceinline__ T &shared_of() {
    __shared__ __align__(16) T smem;
    return smem;
}

template <class P, class Finish>
__device__ __forceinline__ void run(const typename P::S *x, const typename P::S *w, const typename P::S *scale, const Finish &finish) {
    typedef typename P::S S;
    typedef typename P::A A;
    typedef Sizes<P> Z;
    constexpr int E = Z::E, C = Z::C, RESULT_COLUMNS = Z::RESULT_COLUMNS;
    auto &shared = shared_of<Shared<A, P::STAGED ? P::m * Z::CHUNKS * E : 4, P::NORM ? P::m : 1, Z::WARPS, P::SPLIT, Z::VALUES>>();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, part = warp % P::SPLIT;
    const int first = (part * 32 + lane) * E;
    int item = ((int)blockIdx.x * P::GROUPS + warp / P::SPLIT) * P::ITEMS_PER_GROUP;
    const int end = item + P::ITEMS_PER_GROUP < Z::ITEMS ? item + P::ITEMS_PER_GROUP : Z::ITEMS;

    // The last item is aligned to the end of the weight: some columns are computed twice, with equal results.
    const auto column_of = [&](int i) { return i * RESULT_COLUMNS < P::n - RESULT_COLUMNS ? i * RESULT_COLUMNS : P::n - RESULT_COLUMNS; };
    const auto row_of = [&](int i, int c) {
        return w + ((long long)column_of(i) + (c < RESULT_COLUMNS ? c : P::n + c - RESULT_COLUMNS)) * P::w_row;
    };
    const auto fetch = [&](int i, int round, int s, int c) {
        return read<P::ALIGNED, true>(row_of(i, c), first + (round * P::STAGES + s) * Z::STEP, Z::WHOLE ? (1 << 30) : P::k);
    };

    if (!P::PREFETCH_WEIGHTS) griddep_wait();
    Quad loaded[P::STAGES][C];
    if (item < end) {
#pragma unroll
        for (int s = 0; s < P::STAGES; ++s)
#pragma unroll
            for (int c = 0; c < C; ++c) loaded[s][c] = fetch(item, 0, s, c);
    }
    const Rows<P> rows = {x, scale, shared.staged};
    if constexpr (P::NORM) rows.norm(shared.squares);
    else if (P::PREFETCH_WEIGHTS) griddep_wait();

    // The result that this thread writes.
    const int value = P::SPLIT == 1 ? lane / Z::EACH : (int)threadIdx.x, row = value % Z::ROWS;
    const bool writes = row < P::m && value < (P::GATED ? Z::VALUES / 2 : Z::VALUES) && (P::SPLIT > 1 || lane % Z::EACH == 0);

    A factor = 1;
    if constexpr (P::NORM)
        if (writes) factor = Rows<P>::factor(shared.squares[row]);

#pragma unroll 1
    for (; item < end; ++item) {
        const int column = column_of(item) + value / Z::ROWS;
        typename Finish::Terms terms = {};
        if (writes) terms = finish.terms(row, column);
        A sums[Z::VALUES];
#pragma unroll
        for (int i = 0; i < Z::VALUES; ++i) sums[i] = 0;
#pragma unroll 1
        for (int round = 0; round < Z::ROUNDS; ++round) {
            const bool last = round + 1 == Z::ROUNDS, more = !last || item + 1 < end;
            const int next = last ? item + 1 : item, next_round = last ? 0 : round + 1;
#pragma unroll
            for (int s = 0; s < P::STAGES; ++s) {
#pragma unroll
                for (int r = 0; r < P::m; ++r) {
                    A a[E];
                    rows.open(a, r, first + (round * P::STAGES + s) * Z::STEP);
#pragma unroll
                    for (int c = 0; c < C; ++c) {
                        A b[E];
                        Chunk<S>::open(b, loaded[s][c]);
#pragma unroll
                        for (int e = 0; e < E; ++e) sums[c * Z::ROWS + r] += a[e] * b[e];
                    }
                }
                if (more)  // refill the registers just consumed
#pragma unroll
                    for (int c = 0; c < C; ++c) loaded[s][c] = fetch(next, next_round, s, c);
            }
        }
        A sum = transpose_reduce(sums), gate = 0;
        if constexpr (P::SPLIT > 1) {
            const int buffer = item & 1;  // double-buffered between items
            if (lane % Z::EACH == 0) shared.parts[buffer][part][lane / Z::EACH] = sum;
            __syncthreads();
            sum = 0;
            if (writes)
#pragma unroll
                for (int i = 0; i < P::SPLIT; ++i) {
                    sum += shared.parts[buffer][i][value];
                    if (P::GATED) gate += shared.parts[buffer][i][value + Z::VALUES / 2];
                }
        } else if constexpr (P::GATED) gate = __shfl_xor_sync(0xffffffffu, sum, 16);
        if (writes) {
            finish.write(row, column, sum * factor, gate * factor, terms);
        }
    }
}

}  // namespace gemv
