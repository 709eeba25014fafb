// needs: tiles
// gemm.cuh: matrix products of 16-bit floats on tensor cores. A block computes a BM x BN tile of y; tiles of 64 k are loaded by cp.async in a
// pipeline of STAGES.
//
// P: T (tensor::Bf16, tensor::F16), BM, BN, STAGES, WARPS_M, WARPS_N,
// m, n, k, TILES_N;
//   B_ROWS    b is [k, n] with n contiguous; else [n, k] with k contiguous; rows are `ldb` elements apart
//   B_ALIGNED rows of b are 16-byte aligned and multiples of eight elements
//   PAIRS     two results may be stored at once
// `a` locates the rows of A (Rows below; convolutions have their own). `finish` is the epilogue: `line(row)` is a row of y,
// `value(row, column, sum)` applies alpha, bias, residual and activation; `skips(row)`, if there is one, says which rows have no result.
namespace gemm {

using tensor::u16;
using tensor::u32;

constexpr int BK = 64, CHUNKS = BK / 8;  // a row of a tile is eight chunks of 16 bytes

// Rows of a matrix, `ld` elements apart: LIMIT rows of k elements. ALIGNED: every row starts at 16 bytes and k is a multiple of 8.
template <int LIMIT, int k, bool ALIGNED>
struct Rows {
    const u16 *base;
    long long ld;
    struct Row {
        const u16 *at;
        bool there;
    };
    __device__ __forceinline__ Row row(int r) const { return Row{base + (r < LIMIT ? r : 0) * ld, r < LIMIT}; }
    __device__ __forceinline__ void fetch(const Row &r, int at, unsigned char *to) const {
        tiles::load_chunk_async<ALIGNED>(to, r.at, at, k, r.there);
    }
};

// Rasterize tiles in bands of eight tile rows, so that concurrent blocks share operands in L2.
__device__ __forceinline__ void tile_of(int block, int tiles_m, int tiles_n, int &tm, int &tn) {
    constexpr int BAND = 8;
    const int band = block / (BAND * tiles_n), first = band * BAND;
    const int rows = tiles_m - first < BAND ? tiles_m - first : BAND;
    const int in = block - band * BAND * tiles_n;
    tm = first + in % rows;
    tn = in / rows;
}

template <class Finish>
__device__ __forceinline__ auto skips(const Finish &finish, int row, int) -> decltype(finish.skips(row)) {
    return finish.skips(row);
}
template <class Finish> __device__ __forceinline__ bool skips(const Finish &, int, long) { return false; }

template <class P, class A, class Finish>
__device__ __forceinline__ void run(const A &a, const u16 *b, long long ldb, const Finish &finish) {
    DYNAMIC_SMEM(shared);
    typedef typename P::T T;
    constexpr int THREADS = P::WARPS_M * P::WARPS_N * 32, WM = P::BM / P::WARPS_M, WN = P::BN / P::WARPS_N;
    constexpr int MI = WM / 16, NI = WN / 8;
    constexpr int A_BYTES = P::BM * BK * 2, B_BYTES = P::BN * BK * 2, STAGE = A_BYTES + B_BYTES;
    constexpr int A_LOADS = P::BM * CHUNKS / THREADS, B_WIDE = P::B_ROWS ? P::BN / 8 : CHUNKS;
    constexpr int B_LOADS = P::BN * CHUNKS / THREADS, B_STEP = THREADS / B_WIDE;
    constexpr int STEPS = (P::k + BK - 1) / BK;
    static_assert(P::BM * CHUNKS % THREADS == 0 && P::BN * CHUNKS % THREADS == 0 && NI % 2 == 0 && THREADS % B_WIDE == 0, "");

    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    int tm, tn;
    tile_of(blockIdx.x, (P::m + P::BM - 1) / P::BM, P::TILES_N, tm, tn);
    const int row0 = tm * P::BM, col0 = tn * P::BN;
    const u32 base = tensor::smem_addr(shared);

    // This thread's rows of A, computed once.
    const int a_chunk = thread % CHUNKS, a_row = thread / CHUNKS;
    typename A::Row rows[A_LOADS];
#pragma unroll
    for (int i = 0; i < A_LOADS; ++i) rows[i] = a.row(row0 + a_row + i * (THREADS / CHUNKS));
    const int b_chunk = thread % B_WIDE, b_row = thread / B_WIDE;

    const auto fetch = [&](int step, int stage) {
        unsigned char *const to_a = shared + stage * STAGE, *const to_b = to_a + A_BYTES;
        const int k0 = step * BK;
#pragma unroll
        for (int i = 0; i < A_LOADS; ++i) {
            const int r = a_row + i * (THREADS / CHUNKS);
            a.fetch(rows[i], k0 + a_chunk * 8, to_a + tiles::swizzle<CHUNKS>(r, a_chunk) * 16);
        }
#pragma unroll
        for (int i = 0; i < B_LOADS; ++i) {
            const int r = b_row + i * B_STEP;
            // [k, n]: r is a k, the chunk eight columns. [n, k]: r is a column, the chunk eight of k.
            constexpr int LINES = P::B_ROWS ? P::k : P::n, WIDTH = P::B_ROWS ? P::n : P::k;
            const int line = P::B_ROWS ? k0 + r : col0 + r, at = (P::B_ROWS ? col0 : k0) + b_chunk * 8;
            tiles::load_chunk_async<P::B_ALIGNED>(to_b + tiles::swizzle<B_WIDE>(r, b_chunk) * 16,
                                       b + (line < LINES ? line : 0) * ldb, at, WIDTH, line < LINES);
        }
    };

    float sums[MI][NI][4];
#pragma unroll
    for (int i = 0; i < MI; ++i)
#pragma unroll
        for (int j = 0; j < NI; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) sums[i][j][e] = 0;

#pragma unroll
    for (int s = 0; s < P::STAGES - 1; ++s) {
        if (s < STEPS) fetch(s, s);
        tensor::cp_async_commit();
    }
    const int wm = warp / P::WARPS_N * WM, wn = warp % P::WARPS_N * WN;
    const u32 a_place = tiles::tile_addr<CHUNKS>(tiles::ldmatrix_rows_addr<CHUNKS>(base, lane), wm, 0);
    const u32 b_place = P::B_ROWS ? tiles::tile_addr<B_WIDE>(tiles::ldmatrix_rows_addr<B_WIDE>(base + A_BYTES, lane), 0, wn / 8)
                                  : tiles::tile_addr<B_WIDE>(tiles::ldmatrix_columns_addr<B_WIDE>(base + A_BYTES, lane), wn, 0);
    int stage = 0;
    for (int step = 0; step < STEPS; ++step) {
        tensor::cp_async_wait<P::STAGES - 2>();
        __syncthreads();  // the tile has arrived for all warps, and no warp reads the buffer that the next copy overwrites
        const int next = step + P::STAGES - 1;
        if (next < STEPS) fetch(next, stage == 0 ? P::STAGES - 1 : stage - 1);
        tensor::cp_async_commit();
        const u32 tile_a = a_place + stage * STAGE, tile_b = b_place + stage * STAGE;
#pragma unroll
        for (int kk = 0; kk < BK / 16; ++kk) {
            u32 fa[MI][4], fb[NI / 2][4];
#pragma unroll
            for (int i = 0; i < MI; ++i) tiles::load_a_16x16<CHUNKS>(fa[i], tile_a, i * 16, kk * 2);
#pragma unroll
            for (int j = 0; j < NI / 2; ++j) {
                if (P::B_ROWS)
                    tiles::load_b_trans_16x16<B_WIDE>(fb[j], tile_b, kk * 16, j * 2);
                else
                    tiles::load_b_16x16<B_WIDE>(fb[j], tile_b, j * 16, kk * 2);
            }
#pragma unroll
            for (int i = 0; i < MI; ++i)
#pragma unroll
                for (int j = 0; j < NI; ++j)
                    tensor::mma_m16n8k16<T>(sums[i][j], fa[i], fb[j / 2][j % 2 * 2], fb[j / 2][j % 2 * 2 + 1]);
        }
        stage = stage + 1 == P::STAGES ? 0 : stage + 1;
    }

#pragma unroll
    for (int i = 0; i < MI; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = row0 + wm + i * 16 + half * 8 + lane / 4;
            if (row >= P::m || skips(finish, row, 0)) continue;
            const auto line = finish.line(row);
#pragma unroll
            for (int j = 0; j < NI; ++j) {
                const int column = col0 + wn + j * 8 + lane % 4 * 2;
                if (column >= P::n) continue;
                const float x = finish.value(row, column, sums[i][j][half * 2]);
                if (P::PAIRS) {
                    const float y = finish.value(row, column + 1, sums[i][j][half * 2 + 1]);
                    *(u32 *)(line + column) = T::pack(x, y);
                } else {
                    line[column] = (u16)T::pack(x, 0);
                    if (column + 1 < P::n)
                        line[column + 1] = (u16)T::pack(finish.value(row, column + 1, sums[i][j][half * 2 + 1]), 0);
                }
            }
        }
}

}  // namespace gemm
