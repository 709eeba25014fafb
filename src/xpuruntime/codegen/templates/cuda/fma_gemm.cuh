// needs: tensor last_block
// fma_gemm.cuh: matrix products of float32 by FMA, without TF32. A block computes a BM x BN tile of y; tiles of 16 k are loaded by cp.async in a
// pipeline of STAGES. A warp has 4 x 8 threads, each of which accumulates WM/4 x WN/8 results.
//
// With SPLITS > 1 the blocks along y each have a part of k. They write their sums to memory, and the last one to arrive adds them in order.
//
// P: BM, BN, WARPS_M, WARPS_N, STAGES, SPLITS, m, n, k, TILES_N.
// `a` and `b` locate lines of k: `row(r)` once per line, and `fetch(row, k, to)` copies four elements asynchronously, zeros beyond the matrix.
// finish.write(row, column, sum) is the epilogue.
namespace fma_gemm {

constexpr int BK = 16, CHUNKS = BK / 4, LINE = BK + 4;  // 16-byte rows of neighboring lines are in different banks
struct alignas(16) Vec4 { float x[4]; };

// LIMIT lines of k contiguous elements, `ld` elements apart. ALIGNED: every line starts at 16 bytes, and k is a multiple of 4.
template <int LIMIT, int k, bool ALIGNED>
struct Lines {
    const float *base;
    long long ld;
    struct Row {
        const float *at;
        bool there;
    };
    __device__ __forceinline__ Row row(int r) const { return Row{base + (r < LIMIT ? r : 0) * ld, r < LIMIT}; }
    __device__ __forceinline__ void fetch(const Row &r, int at, float *to) const {
        if constexpr (ALIGNED) {
            const bool there = r.there && at < k;
            tensor::cp_async_16(tensor::smem_addr(to), there ? r.at + at : base, there);
        } else {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const bool there = r.there && at + e < k;
                tensor::cp_async_4(tensor::smem_addr(to + e), there ? r.at + at + e : base, there);
            }
        }
    }
};

template <class P, class A, class B, class Finish>
__device__ __forceinline__ void run(const A &a, const B &b, float *parts, uint32_t *counters, const Finish &finish) {
    DYNAMIC_SMEM(shared);
    constexpr int THREADS = P::WARPS_M * P::WARPS_N * 32, WM = P::BM / P::WARPS_M, WN = P::BN / P::WARPS_N, TM = WM / 4, TN = WN / 8;
    constexpr int STEP = THREADS / CHUNKS, A_LOADS = (P::BM + STEP - 1) / STEP, B_LOADS = (P::BN + STEP - 1) / STEP;
    constexpr int STAGE = (P::BM + P::BN) * LINE, STEPS = (P::k + BK - 1) / BK;
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32, tx = lane % 8, ty = lane / 8;
    const int row0 = (int)(blockIdx.x / P::TILES_N) * P::BM, column0 = (int)(blockIdx.x % P::TILES_N) * P::BN;
    const int begin = (int)((long long)blockIdx.y * STEPS / P::SPLITS), end = (int)((long long)(blockIdx.y + 1) * STEPS / P::SPLITS);

    // This thread's lines, located once.
    const int chunk = thread % CHUNKS, line = thread / CHUNKS;
    typename A::Row a_rows[A_LOADS];
    typename B::Row b_rows[B_LOADS];
#pragma unroll
    for (int i = 0; i < A_LOADS; ++i) a_rows[i] = a.row(row0 + line + i * STEP);
#pragma unroll
    for (int i = 0; i < B_LOADS; ++i) b_rows[i] = b.row(column0 + line + i * STEP);
    const auto fetch = [&](int step, int stage) {
        float *const to = (float *)shared + stage * STAGE + chunk * 4;
        const int k = step * BK + chunk * 4;
#pragma unroll
        for (int i = 0; i < A_LOADS; ++i)
            if (P::BM % STEP == 0 || line + i * STEP < P::BM) a.fetch(a_rows[i], k, to + (line + i * STEP) * LINE);
#pragma unroll
        for (int i = 0; i < B_LOADS; ++i)
            if (P::BN % STEP == 0 || line + i * STEP < P::BN) b.fetch(b_rows[i], k, to + (P::BM + line + i * STEP) * LINE);
    };

    float sums[TM][TN];
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j) sums[i][j] = 0;
#pragma unroll
    for (int s = 0; s < P::STAGES - 1; ++s) {
        if (begin + s < end) fetch(begin + s, s);
        tensor::cp_async_commit();
    }
    const int wm = warp / P::WARPS_N * WM, wn = warp % P::WARPS_N * WN;
    const float *const left = (const float *)shared + (wm + ty) * LINE, *const right = (const float *)shared + (P::BM + wn + tx) * LINE;
    int stage = 0;
    for (int step = begin; step < end; ++step) {
        tensor::cp_async_wait<P::STAGES - 2>();
        __syncthreads();  // the tile has arrived for all warps, and no warp reads the buffer that the next copy overwrites
        const int next = step + P::STAGES - 1;
        if (next < end) fetch(next, stage == 0 ? P::STAGES - 1 : stage - 1);
        tensor::cp_async_commit();
        const float *const tile_a = left + stage * STAGE, *const tile_b = right + stage * STAGE;
#pragma unroll
        for (int k = 0; k < BK; k += 4) {
            Vec4 fb[TN];
#pragma unroll
            for (int j = 0; j < TN; ++j) fb[j] = *(const Vec4 *)(tile_b + j * 8 * LINE + k);
#pragma unroll
            for (int i = 0; i < TM; ++i) {
                const Vec4 fa = *(const Vec4 *)(tile_a + i * 4 * LINE + k);
#pragma unroll
                for (int e = 0; e < 4; ++e)
#pragma unroll
                    for (int j = 0; j < TN; ++j) sums[i][j] += fa.x[e] * fb[j].x[e];
            }
        }
        stage = stage + 1 == P::STAGES ? 0 : stage + 1;
    }

    if constexpr (P::SPLITS > 1) {
        const long long tile = (long long)blockIdx.z * gridDim.x + blockIdx.x;
        float *const own = parts + tile * P::SPLITS * (P::BM * P::BN) + thread;
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int j = 0; j < TN; ++j) own[blockIdx.y * (P::BM * P::BN) + (i * TN + j) * THREADS] = sums[i][j];
        if (!is_last_block(counters + tile, P::SPLITS)) return;
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int j = 0; j < TN; ++j) {
                float sum = 0;
#pragma unroll
                for (int s = 0; s < P::SPLITS; ++s) sum += ld_cg(own + s * (P::BM * P::BN) + (i * TN + j) * THREADS);
                sums[i][j] = sum;
            }
    }

#pragma unroll
    for (int i = 0; i < TM; ++i) {
        const int row = row0 + wm + ty + i * 4;
        if (row >= P::m) continue;
#pragma unroll
        for (int j = 0; j < TN; ++j) {
            const int column = column0 + wn + tx + j * 8;
            if (column < P::n) finish.write(row, column, sums[i][j]);
        }
    }
}

}  // namespace fma_gemm
