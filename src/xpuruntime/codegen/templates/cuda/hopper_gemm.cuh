// needs: tma wgmma cluster tiles
// hopper_gemm.cuh: matrix products of 16-bit floats with wgmma and TMA. A block computes tiles of 128 rows and BN columns one after the other: one
// warp copies tiles of 64 k into STAGES buffers, and two warpgroups of 64 rows each multiply them. The two blocks of a cluster have adjacent rows
// and the same columns: each copies half of the columns into both.
//
// P: T (tensor::Bf16, tensor::F16), BN, STAGES, m, n, k, a_row, b_row (elements from row to row);
//   GATED    b has two halves of n rows, and a tile BN / 2 columns of each: the first half's results are the gates of the second's
//   ALIGNED  rows of y start at multiples of 16 bytes, and n is a multiple of 8
// `a` is [m, k], `b` [n, k]. `finish` is the epilogue: line(row) is a row of y; value(row, column, sum), or value(row, column, gate, sum) if GATED,
// is a result. If finish.STARTS, sums of a column start from start(column): so terms of columns are loaded before the products, not in the epilogue.
// finish.ADDS: whether value() adds terms.
namespace hopper_gemm {

using tensor::u16;
using tensor::u32;
using tensor::u64;

constexpr int BM = 128, BK = 64, CLUSTER = 2, CONSUMERS = 2, THREADS = (CONSUMERS + 1) * 128;

template <class P> struct Sizes {
    static constexpr int A_BYTES = BM * BK * 2, HALF_BYTES = P::BN / 2 * BK * 2, STAGE = A_BYTES + 2 * HALF_BYTES, STEPS = (P::k + BK - 1) / BK,
                         COLUMNS = P::GATED ? P::BN / 2 : P::BN,  // results in a row of a tile
                         TILES_M = (P::m + CLUSTER * BM - 1) / (CLUSTER * BM), TILES = TILES_M * ((P::n + COLUMNS - 1) / COLUMNS);
    static_assert(P::BN % 32 == 0 && P::STAGES >= 2, "half a tile starts at a multiple of 1024 bytes, and its columns are stored two by two");
    // The first row of a block's tile, its first column, and the first row of b of each half of its columns.
    static __device__ __forceinline__ int row(int tile, int rank) { return (tile % TILES_M * CLUSTER + rank) * BM; }
    static __device__ __forceinline__ int column(int tile) { return tile / TILES_M * COLUMNS; }
    static __device__ __forceinline__ int line(int tile, int half) { return column(tile) + half * (P::GATED ? P::n : P::BN / 2); }
};

template <class P> struct Barriers {
    tma::Barrier full[P::STAGES], empty[P::STAGES];
};

// Exchange values of four lanes, of which each has the pairs of columns `lane % 4` of N groups of eight columns: afterwards a lane has N adjacent
// pairs of one group, `lane % N`.
template <int N> __device__ __forceinline__ void gather_pairs(u32 (&pairs)[N]) {
    const int lane = threadIdx.x;
#pragma unroll
    for (int i = 0; i < N; i += 2) {
        const u32 other = __shfl_xor_sync(0xffffffffu, lane & 1 ? pairs[i] : pairs[i + 1], 1);
        if (lane & 1) pairs[i] = other;
        else pairs[i + 1] = other;
    }
    if constexpr (N == 4) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const u32 other = __shfl_xor_sync(0xffffffffu, lane & 2 ? pairs[i] : pairs[i + 2], 2);
            if (lane & 2) pairs[i] = other;
            else pairs[i + 2] = other;
        }
    }
}

// Store N groups of eight columns of a row, from group `j` of the tile on: `pairs` has this lane's pair of columns of each.
template <class P, int N> __device__ __forceinline__ void store_groups(u16 *line, int column0, int j, bool in_range, u32 (&pairs)[N]) {
    struct __align__(N * 4) Pairs { u32 of[N]; } gathered;
    gather_pairs(pairs);
#pragma unroll
    for (int i = 0; i < N; ++i) gathered.of[i] = pairs[i];
    const int lane = threadIdx.x % 4, column = column0 + (j + lane % N) * 8 + lane / N * (2 * N);
    if (in_range && column < P::n) *(Pairs *)(line + column) = gathered;
}

// Compute and store the results of a warpgroup's tile. Without terms there are no branches: results that are not there are computed, too, from the
// last row or column.
template <class P, bool ALIGNED, class Finish> struct Epilogue {
    typedef typename P::T T;
    static constexpr int GROUPS = Sizes<P>::COLUMNS / 8;
    const float (&sums)[P::BN / 2];
    const Finish &finish;
    int first, column0;

    static __device__ __forceinline__ int lane_column() { return threadIdx.x % 4 * 2; }
    __device__ __forceinline__ int row(int half) const { return first + half * 8; }
    __device__ __forceinline__ bool in_range(int half) const { return row(half) < P::m; }
    __device__ __forceinline__ int safe_row(int half) const { return in_range(half) ? row(half) : P::m - 1; }
    __device__ __forceinline__ float value(int half, int j, int e) const {
        int r = row(half), column = column0 + j * 8 + lane_column() + e;
        if constexpr (Finish::ADDS) {
            if (!in_range(half) || column >= P::n) return 0;
        } else {
            r = safe_row(half);
            if (P::n % Sizes<P>::COLUMNS != 0) column = column < P::n ? column : P::n - 1;
        }
        const float sum = sums[j * 4 + half * 2 + e];
        if constexpr (P::GATED) return finish.value(r, column, sum, sums[(j + GROUPS) * 4 + half * 2 + e]);
        else return finish.value(r, column, sum);
    }
    template <int N> __device__ __forceinline__ void compute(u32 (&pairs)[N], int half, int j) const {
#pragma unroll
        for (int i = 0; i < N; ++i) pairs[i] = T::pack(value(half, j + i, 0), value(half, j + i, 1));
    }
    template <int N> __device__ __forceinline__ void store_row(u16 *line, u32 (&pairs)[N], int half, int j) const {
        if constexpr (ALIGNED) {
            store_groups<P>(line, column0, j, in_range(half), pairs);
        } else {
#pragma unroll
            for (int i = 0; i < 2 * N; ++i) {
                const int column = column0 + (j + i / 2) * 8 + lane_column() + i % 2;
                if (in_range(half) && column < P::n) line[column] = (u16)(pairs[i / 2] >> (i % 2 * 16));
            }
        }
    }
    // N groups of `ROWS` rows of a lane.
    template <int N, int ROWS> __device__ __forceinline__ void store_rows(u16 *(&lines)[ROWS], int half, int j) const {
        u32 pairs[ROWS][N];
#pragma unroll
        for (int r = 0; r < ROWS; ++r) compute<N>(pairs[r], half + r, j);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) store_row<N>(lines[r], pairs[r], half + r, j);
    }
    __device__ __forceinline__ void store() const {
        constexpr int ROWS = Finish::ADDS ? 1 : 2;  // the terms of two rows would take too many registers
#pragma unroll
        for (int half = 0; half < 2; half += ROWS) {
            u16 *lines[ROWS];
#pragma unroll
            for (int r = 0; r < ROWS; ++r) lines[r] = finish.line(safe_row(half + r));
#pragma unroll
            for (int j = 0; j + 4 <= GROUPS; j += 4) store_rows<4, ROWS>(lines, half, j);
            if constexpr (GROUPS % 4 == 2) store_rows<2, ROWS>(lines, half, GROUPS - 2);
        }
    }
};

template <class P, bool ALIGNED, class Finish>
__device__ __forceinline__ void store_tile(const float (&sums)[P::BN / 2], int row0, int column0, const Finish &finish) {
    const int row = row0 + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
    Epilogue<P, ALIGNED, Finish>{sums, finish, row, column0}.store();
}

// The sums of 64 rows of a tile before its products.
template <class P, class Finish> __device__ __forceinline__ void start(float (&sums)[P::BN / 2], int column0, const Finish &finish) {
    if constexpr (Finish::STARTS) {
        static_assert(!P::GATED, "both halves would start from the same terms");
#pragma unroll
        for (int i = 0; i < P::BN / 4; ++i) {
            const int column = column0 + i / 2 * 8 + threadIdx.x % 4 * 2 + i % 2;
            const float first = finish.start(P::n % P::BN == 0 || column < P::n ? column : P::n - 1);
            sums[i / 2 * 4 + i % 2] = sums[i / 2 * 4 + i % 2 + 2] = first;
        }
    }
}

// Issue the products of a step.
template <class P> __device__ __forceinline__ void multiply(float (&sums)[P::BN / 2], u64 a_tile, u64 b_tile, int at, bool accumulate) {
    hopper::reg_fence(sums);
    hopper::wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < BK / 16; ++kk)
        hopper::Wgmma<typename P::T, P::BN / 2>::ss(sums, hopper::advance_desc(a_tile, at + kk * 32), hopper::advance_desc(b_tile, at + kk * 32),
                                                    accumulate || kk > 0);
    hopper::wgmma_commit();
}

// Copy this block's tiles, and its half of those that the cluster shares. One thread calls it.
template <class P> __device__ __forceinline__ void produce(unsigned char *shared, const TensorMap &a_map, const TensorMap &b_map, Barriers<P> &barriers) {
    typedef Sizes<P> S;
    const int rank = blockIdx.x % CLUSTER;
    int stage = 0;
    u32 phase = 1;
    const auto acquire = [&]() {
        tma::wait(barriers.empty[stage], phase);
        const int now = stage;
        if (++stage == P::STAGES) stage = 0, phase ^= 1;
        return now;
    };
    for (int tile = blockIdx.x / CLUSTER; tile < S::TILES; tile += gridDim.x / CLUSTER)
        for (int step = 0; step < S::STEPS; ++step) {
            const int now = acquire();
            unsigned char *const to = shared + now * S::STAGE;
            tma::arrive_expecting(barriers.full[now], S::STAGE);
            tma::copy(to, a_map, S::row(tile, rank), step * BK, barriers.full[now]);
            tma::copy_to_all(to + S::A_BYTES + rank * S::HALF_BYTES, b_map, S::line(tile, rank), step * BK, barriers.full[now], (1 << CLUSTER) - 1);
        }
    for (int i = 0; i < P::STAGES; ++i) acquire();  // until then the other block arrives at this block's barriers
}

template <class P, class Finish> __device__ __forceinline__ void consume(unsigned char *shared, Barriers<P> &barriers, const Finish &finish) {
    typedef Sizes<P> S;
    const int group = threadIdx.x / 128 - 1, rank = blockIdx.x % CLUSTER;
    const u64 a_tile = hopper::matrix_desc(tensor::smem_addr(shared) + group * 64 * 128, 0), b_tile = hopper::matrix_desc(tensor::smem_addr(shared) + S::A_BYTES, 0);
    const auto release = [&](int stage) {
        if (threadIdx.x % 128 < CLUSTER) tma::arrive_at(barriers.empty[stage], threadIdx.x % 128);
    };
    int stage = 0;
    u32 phase = 0;
    // The second warpgroup begins a step later, so that the epilogue of one overlaps with products of the other.
    if (group == 1 && blockIdx.x / CLUSTER < S::TILES && S::STEPS > 1) tma::wait(barriers.full[1], 0);
    for (int tile = blockIdx.x / CLUSTER; tile < S::TILES; tile += gridDim.x / CLUSTER) {
        float sums[P::BN / 2];
        start<P>(sums, S::column(tile), finish);
        int before = 0;
        for (int step = 0; step < S::STEPS; ++step) {
            tma::wait(barriers.full[stage], phase);
            multiply<P>(sums, a_tile, b_tile, stage * S::STAGE, Finish::STARTS || step > 0);
            hopper::wgmma_wait<1>();
            if (step > 0) release(before);
            before = stage;
            if (++stage == P::STAGES) stage = 0, phase ^= 1;
        }
        hopper::wgmma_wait<0>();
        hopper::reg_fence(sums);
        release(before);
        store_tile<P, P::ALIGNED>(sums, S::row(tile, rank) + group * 64, S::column(tile), finish);
    }
}

// Without TMA, which needs matrices that start at multiples of 16 bytes: all threads copy a tile, and then two warpgroups multiply it.
template <class P, class Finish> __device__ __forceinline__ void run_unaligned(unsigned char *shared, const u16 *a, const u16 *b, const Finish &finish) {
    typedef Sizes<P> S;
    constexpr int CHUNKS = BK / 8, A_CHUNKS = BM * CHUNKS, ALL = A_CHUNKS + P::BN * CHUNKS;
    const int group = (int)threadIdx.x / 128 - 1, rank = blockIdx.x % CLUSTER;
    const u64 a_tile = hopper::matrix_desc(tensor::smem_addr(shared) + (group > 0 ? 64 * 128 : 0), 0);
    const u64 b_tile = hopper::matrix_desc(tensor::smem_addr(shared) + S::A_BYTES, 0);
    for (int tile = blockIdx.x / CLUSTER; tile < S::TILES; tile += gridDim.x / CLUSTER) {
        float sums[P::BN / 2];
        start<P>(sums, S::column(tile), finish);
        for (int step = 0; step < S::STEPS; ++step) {
            __syncthreads();  // the last step's products are complete
            for (int i = threadIdx.x; i < ALL; i += THREADS) {
                const bool of_a = i < A_CHUNKS;
                const int r = (of_a ? i : i - A_CHUNKS) / CHUNKS, chunk = i % CHUNKS, half = r / (P::BN / 2);
                const int row = of_a ? S::row(tile, rank) + r : S::line(tile, half) + r - half * (P::BN / 2);
                const bool there = row < (of_a ? P::m : P::n * (P::GATED ? 2 : 1));
                const u16 *const from = of_a ? a + (long long)(there ? row : 0) * P::a_row : b + (long long)(there ? row : 0) * P::b_row;
                tiles::load_chunk_async<false>(shared + (of_a ? 0 : S::A_BYTES) + tiles::swizzle<CHUNKS>(r, chunk) * 16, from, step * BK + chunk * 8, P::k, there);
            }
            hopper::fence_proxy_async();
            __syncthreads();
            if (group < 0) continue;
            multiply<P>(sums, a_tile, b_tile, 0, Finish::STARTS || step > 0);
            hopper::wgmma_wait<0>();
        }
        if (group < 0) continue;
        hopper::reg_fence(sums);
        store_tile<P, false>(sums, S::row(tile, rank) + group * 64, S::column(tile), finish);
    }
}

template <class P, class Finish>
__device__ __forceinline__ void run(const u16 *a, const u16 *b, const u16 *y, const TensorMap &a_map, const TensorMap &b_map, const Finish &finish) {
    DYNAMIC_SMEM(shared);
    if (((u64)a | (u64)b | (u64)y) % 16) {
        griddep_wait();
        run_unaligned<P>(shared, a, b, finish);
        return;
    }
    Barriers<P> &barriers = *(Barriers<P> *)(shared + P::STAGES * Sizes<P>::STAGE);
    if (threadIdx.x < P::STAGES) {
        tma::init(barriers.full[threadIdx.x], 1);
        tma::init(barriers.empty[threadIdx.x], CLUSTER * CONSUMERS);
    }
    cluster_arrive();
    cluster_wait();
    if (threadIdx.x < 128) {
        tma::give_registers<40>();
        griddep_wait();
        if (threadIdx.x == 0) produce<P>(shared, a_map, b_map, barriers);
    } else {
        tma::take_registers<232>();
        griddep_wait();
        consume<P>(shared, barriers, finish);
    }
}

}  // namespace hopper_gemm
