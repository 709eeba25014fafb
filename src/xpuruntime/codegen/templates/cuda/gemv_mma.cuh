// needs: gemv
// gemv_mma.cuh: up to 16 rows times a weight [n, k] of 16-bit floats on tensor cores, bound by the bandwidth of reading the weight once.
//
// Sixteen rows of the weight are the left operand of mma.m16n8k16, rows of x the right one. A step has STEP inputs of 16 rows. Warps of a block split
// the steps between them and copy them by cp.async, each to a ring of its own; STAGES - 1 steps are in flight, the first ones before griddep_wait.
// The order of the inputs in a step is free: lane t of a row multiplies inputs 8 t to 8 t + 7 of each half, 16 bytes, which are two products'.
// A warp stages x for its own steps only, so that no barrier precedes the products, but for the one that sums the squares of a norm.
//
// P: S (storage), T (tensor::Bf16 or F16), m, n, k, x_row and w_row (elements between rows), SPLIT (warps), STAGES, GRID (blocks; each has TILES /
// GRID tiles of RESULTS columns, rounded up or down), GATED (eight rows of a tile are gate columns, eight the columns, n rows further on, that the
// gate multiplies), NORM (x is RMS-normalized with eps() and scaled), ALIGNED, PREFETCH_WEIGHTS (weights do not change). `finish` is that of gemv.cuh.
namespace gemv_mma {

using tensor::Quad;
using tensor::u32;

// Sizes that follow from P, and the block's shared memory.
template <class P> struct Sizes {
    static constexpr int STEP = 64, SLOT = 16 * STEP * 2, STEPS = (P::k + STEP - 1) / STEP, OWN = (STEPS + P::SPLIT - 1) / P::SPLIT,
                         RESULTS = P::GATED ? 8 : 16, TILES = (P::n + RESULTS - 1) / RESULTS, COLUMN_TILES = (P::m + 7) / 8,
                         THREADS = P::SPLIT * 32, PASSES = (OWN + 3) / 4,
                         ROW = STEPS * STEP * 2 + 64,  // bytes of a row of x: neighboring rows begin in other banks
                         RING = P::SPLIT * P::STAGES * SLOT, X = P::m * ROW, PARTS = P::SPLIT * 16 * P::m * 4,
                         SQUARES = P::NORM ? P::SPLIT * P::m * 4 : 0, BYTES = RING + X + 2 * PARTS + SQUARES;
    static_assert(P::SPLIT <= STEPS && P::m <= 16, "");
};

// Copy 16 bytes of a row of k elements from element `at` on, zeros past its end, to shared memory.
template <bool ALIGNED, class S> __device__ __forceinline__ void copy_chunk(unsigned char *to, const S *row, int at, int k) {
    if constexpr (ALIGNED) tensor::cp_async_16(tensor::smem_addr(to), row + (at < k ? at : 0), at < k);
    else *(Quad *)to = gemv::read<false, false>(row, at, k);
}

// The rows of x in shared memory.
template <class P> struct Rows {
    typedef typename P::S S;
    typedef typename P::T T;
    typedef Sizes<P> Z;
    static constexpr int CHUNKS = P::m * Z::PASSES;
    static constexpr bool HELD = CHUNKS <= 16, SCALE_HELD = P::NORM && Z::PASSES <= 4;  // in registers
    static constexpr int UNROLL = HELD ? Z::PASSES : 1;
    const S *x, *scale;
    unsigned char *rows;
    float *squares;

    // The step of this lane in a pass of four steps of the warp, and its first input.
    __device__ __forceinline__ static int step_of(int pass) { return (int)threadIdx.x / 32 + (pass * 4 + (int)threadIdx.x % 32 / 8) * P::SPLIT; }
    __device__ __forceinline__ static int input_of(int pass) { return step_of(pass) * Z::STEP + (int)threadIdx.x % 8 * 8; }

    // The scale of the norm, which is read before griddep_wait if it does not change.
    struct Scale { Quad q[SCALE_HELD ? Z::PASSES : 1]; };
    __device__ __forceinline__ void hold(Scale &held) const {
        if constexpr (SCALE_HELD)
#pragma unroll
            for (int pass = 0; pass < Z::PASSES; ++pass) held.q[pass] = gemv::read<P::ALIGNED, false>(scale, input_of(pass), P::k);
    }
    __device__ __forceinline__ void stage(const Scale &held) const {
        if constexpr (P::NORM) {
            normalized(held);
        } else {
#pragma unroll 4
            for (int i = 0; i < CHUNKS; ++i) {
                const int row = i % P::m, at = input_of(i / P::m);
                if (step_of(i / P::m) < Z::STEPS) copy_chunk<P::ALIGNED>(rows + row * Z::ROW + at * 2, x + (long long)row * P::x_row, at, P::k);
            }
            tensor::cp_async_commit();
            tensor::cp_async_wait<0>();
        }
        __syncwarp();
    }
    __device__ __forceinline__ Quad chunk(int row, int pass) const { return gemv::read<P::ALIGNED, false>(x + (long long)row * P::x_row, input_of(pass), P::k); }
    __device__ __forceinline__ void normalized(const Scale &held) const {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        Quad own[HELD ? CHUNKS : 1];
        if constexpr (HELD)
#pragma unroll
            for (int i = 0; i < CHUNKS; ++i) own[i] = chunk(i % P::m, i / P::m);
        constexpr int N = gemv::power_above(P::m);
        float sums[N];
#pragma unroll
        for (int r = 0; r < N; ++r) sums[r] = 0;
#pragma unroll UNROLL
        for (int pass = 0; pass < Z::PASSES; ++pass)
#pragma unroll
            for (int r = 0; r < P::m; ++r) {
                float a[8];
                gemv::Chunk<S>::open(a, HELD ? own[HELD ? pass * P::m + r : 0] : chunk(r, pass));
#pragma unroll
                for (int e = 0; e < 8; ++e) sums[r] += a[e] * a[e];
            }
        const float sum = gemv::transpose_reduce(sums);
        if (lane % (32 / N) == 0 && lane / (32 / N) < P::m) squares[warp * P::m + lane / (32 / N)] = sum;
        __syncthreads();
        float factor = 0;
        if (lane < P::m) {
#pragma unroll
            for (int i = 0; i < P::SPLIT; ++i) factor += squares[i * P::m + lane];
            factor = gemv::reciprocal_sqrt(factor / P::k + P::eps());
        }
#pragma unroll
        for (int r = 0; r < P::m; ++r) {
            const float by = __shfl_sync(0xffffffffu, factor, r);
#pragma unroll UNROLL
            for (int pass = 0; pass < Z::PASSES; ++pass) {
                float a[8], g[8];
                gemv::Chunk<S>::open(a, HELD ? own[HELD ? pass * P::m + r : 0] : chunk(r, pass));
                gemv::Chunk<S>::open(g, SCALE_HELD ? held.q[SCALE_HELD ? pass : 0] : gemv::read<P::ALIGNED, false>(scale, input_of(pass), P::k));
                Quad words;
#pragma unroll
                for (int i = 0; i < 4; ++i) words.x[i] = T::pack(a[2 * i] * by * g[2 * i], a[2 * i + 1] * by * g[2 * i + 1]);
                if (step_of(pass) < Z::STEPS) *(Quad *)(rows + r * Z::ROW + input_of(pass) * 2) = words;
            }
        }
    }
};

template <class P, class Finish>
__device__ __forceinline__ void run(const typename P::S *x, const typename P::S *w, const typename P::S *scale, const Finish &finish) {
    DYNAMIC_SMEM(shared);
    typedef Sizes<P> Z;
    typedef typename P::S S;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    unsigned char *const ring = shared + warp * P::STAGES * Z::SLOT;
    float *const parts = (float *)(shared + Z::RING + Z::X);
    const Rows<P> rows = {x, scale, shared + Z::RING, parts + 2 * Z::PARTS / 4};
    const int first = (int)((long long)blockIdx.x * Z::TILES / P::GRID), end = (int)(((long long)blockIdx.x + 1) * Z::TILES / P::GRID);

    // The next step to copy: four rows of the weight per lane, each 128 bytes by eight lanes; odd rows have their halves exchanged in the ring.
    int copied_tile = first, copied_step = warp;
    const S *lines[4];
    const auto next_tile = [&] {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int r = i * 4 + lane / 8, column = copied_tile * Z::RESULTS + r % Z::RESULTS, last = P::n - 1;
            lines[i] = w + ((long long)(column < last ? column : last) + (P::GATED && r >= 8 ? P::n : 0)) * P::w_row;
        }
    };
    const auto fetch = [&](int stage) {
        if (copied_tile < end) {
            const int at = copied_step * Z::STEP + lane % 8 * 8;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int r = i * 4 + lane / 8;
                copy_chunk<P::ALIGNED>(ring + stage * Z::SLOT + r * 128 + (lane % 8 ^ r % 2 * 4) * 16, lines[i], at, P::k);
            }
            copied_step += P::SPLIT;
            if (copied_step >= Z::STEPS) {
                copied_step = warp, ++copied_tile;
                next_tile();
            }
        }
        tensor::cp_async_commit();
    };
    next_tile();
    if (!P::PREFETCH_WEIGHTS) griddep_wait();
#pragma unroll
    for (int s = 0; s < P::STAGES - 1; ++s) fetch(s);
    typename Rows<P>::Scale held;
    rows.hold(held);
    if (P::PREFETCH_WEIGHTS) griddep_wait();
    rows.stage(held);

    const unsigned char *columns[Z::COLUMN_TILES];  // columns beyond the rows repeat the last one; nobody reads their sums
#pragma unroll
    for (int i = 0; i < Z::COLUMN_TILES; ++i) columns[i] = rows.rows + (i * 8 + g < P::m ? i * 8 + g : P::m - 1) * Z::ROW + t * 16;
    const int own = g * 128 + (t ^ g % 2 * 4) * 16;
    int stage = 0;
#pragma unroll 1
    for (int tile = first; tile < end; ++tile) {
        // The results of this thread: the first one's terms are loaded before the sums are complete.
        const int value = threadIdx.x, column = tile * Z::RESULTS + value % Z::RESULTS, row = value / Z::RESULTS;
        typename Finish::Terms terms = {};
        if (row < P::m && column < P::n) terms = finish.terms(row, column);
        float sums[Z::COLUMN_TILES][4] = {};
#pragma unroll 1
        for (int step = warp; step < Z::STEPS; step += P::SPLIT) {
            tensor::cp_async_wait<P::STAGES - 2>();
            __syncwarp();  // the step has arrived for all lanes, and no lane reads the one that the next copy overwrites
            fetch(stage == 0 ? P::STAGES - 1 : stage - 1);
            const unsigned char *const slot = ring + stage * Z::SLOT;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const Quad upper = tensor::load16(slot + (own ^ half * 64)), lower = tensor::load16(slot + 1024 + (own ^ half * 64));
                const u32 even[4] = {upper.x[0], lower.x[0], upper.x[1], lower.x[1]}, odd[4] = {upper.x[2], lower.x[2], upper.x[3], lower.x[3]};
#pragma unroll
                for (int i = 0; i < Z::COLUMN_TILES; ++i) {
                    const Quad b = tensor::load16(columns[i] + step * Z::STEP * 2 + half * 64);
                    tensor::mma_m16n8k16<typename P::T>(sums[i], even, b.x[0], b.x[1]);
                    tensor::mma_m16n8k16<typename P::T>(sums[i], odd, b.x[2], b.x[3]);
                }
            }
            stage = stage + 1 == P::STAGES ? 0 : stage + 1;
        }
        float *const buffer = parts + (tile & 1) * Z::PARTS / 4;  // double-buffered between tiles
#pragma unroll
        for (int i = 0; i < Z::COLUMN_TILES; ++i)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int r = i * 8 + t * 2 + e % 2;
                if (r < P::m) buffer[(warp * 16 + g + e / 2 * 8) * P::m + r] = sums[i][e];
            }
        __syncthreads();
        for (int v = value; v < Z::RESULTS * P::m; v += Z::THREADS) {
            const int c = v % Z::RESULTS, r = v / Z::RESULTS;
            if (tile * Z::RESULTS + c >= P::n) continue;
            if (v != value) terms = finish.terms(r, tile * Z::RESULTS + c);
            float sum = 0, gate = 0;
#pragma unroll
            for (int i = 0; i < P::SPLIT; ++i) {
                sum += buffer[(i * 16 + c) * P::m + r];
                if (P::GATED) gate += buffer[(i * 16 + 8 + c) * P::m + r];
            }
            finish.write(r, tile * Z::RESULTS + c, sum, gate, terms);
        }
    }
}

}  // namespace gemv_mma
