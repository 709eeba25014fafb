// simt.cuh: matrix products of any dtype by FMA instructions, for what the tensor cores do not compute: y[m, n] = a[m, k] b[k, n].
//
// A block has 16 x 16 threads and computes a tile of 16 * TM x 16 * TN results, TM x TN of them per thread. It steps over k by BK; the tiles
// of a and b are staged in shared memory, and the loads of the next step are issued before the FMAs of this one.
//
// P has C (type of the accumulators), TM and TN (4 or 8), m, n, k, A_ALONG_K and B_ALONG_K (true if k is contiguous in memory, so that
// consecutive threads load along k; false if rows of a or columns of b are).
// a(row, k) and b(k, column) return elements, and are called only with indices inside the matrices. finish.write(row, column, sum) stores a
// result. blockIdx.x is the number of the tile; callers use the other dimensions of the grid.
namespace simt {

constexpr int BK = 16, THREADS = 256;

template <class C> struct alignas(16) Vec4 { C x[4]; };

template <class P, class A, class B, class Finish>
__device__ __forceinline__ void run(const A &a, const B &b, const Finish &finish) {
    typedef typename P::C C;
    constexpr int BM = 16 * P::TM, BN = 16 * P::TN, A_LOADS = BM * BK / THREADS, B_LOADS = BN * BK / THREADS;
    // One vector of padding per row: if k is contiguous, the threads of a warp store to a column, which would be a single bank.
    __shared__ Vec4<C> a_tile[BK][BM / 4 + 1], b_tile[BK][BN / 4 + 1];
    const int thread = threadIdx.x, tx = thread % 16, ty = thread / 16;
    constexpr int TILES_N = (P::n + BN - 1) / BN;
    const int row0 = (int)(blockIdx.x / TILES_N) * BM, column0 = (int)(blockIdx.x % TILES_N) * BN;

    C next_a[A_LOADS], next_b[B_LOADS];
    const auto load_next = [&](int k0) {
#pragma unroll
        for (int i = 0; i < A_LOADS; ++i) {
            const int index = thread + i * THREADS, k = k0 + (P::A_ALONG_K ? index % BK : index / BM), r = row0 + (P::A_ALONG_K ? index / BK : index % BM);
            next_a[i] = k < P::k && r < P::m ? (C)a(r, k) : (C)0;
        }
#pragma unroll
        for (int i = 0; i < B_LOADS; ++i) {
            const int index = thread + i * THREADS, k = k0 + (P::B_ALONG_K ? index % BK : index / BN), c = column0 + (P::B_ALONG_K ? index / BK : index % BN);
            next_b[i] = k < P::k && c < P::n ? (C)b(k, c) : (C)0;
        }
    };

    C sums[P::TM][P::TN];
#pragma unroll
    for (int i = 0; i < P::TM; ++i)
#pragma unroll
        for (int j = 0; j < P::TN; ++j) sums[i][j] = 0;

    load_next(0);
    for (int k0 = 0; k0 < P::k; k0 += BK) {
#pragma unroll
        for (int i = 0; i < A_LOADS; ++i) {
            const int index = thread + i * THREADS;
            ((C *)a_tile[P::A_ALONG_K ? index % BK : index / BM])[P::A_ALONG_K ? index / BK : index % BM] = next_a[i];
        }
#pragma unroll
        for (int i = 0; i < B_LOADS; ++i) {
            const int index = thread + i * THREADS;
            ((C *)b_tile[P::B_ALONG_K ? index % BK : index / BN])[P::B_ALONG_K ? index / BK : index % BN] = next_b[i];
        }
        __syncthreads();
        if (k0 + BK < P::k) load_next(k0 + BK);
#pragma unroll
        for (int k = 0; k < BK; ++k) {
            Vec4<C> a_frag[P::TM / 4], b_frag[P::TN / 4];
#pragma unroll
            for (int i = 0; i < P::TM / 4; ++i) a_frag[i] = a_tile[k][i * 16 + ty];
#pragma unroll
            for (int j = 0; j < P::TN / 4; ++j) b_frag[j] = b_tile[k][j * 16 + tx];
#pragma unroll
            for (int i = 0; i < P::TM; ++i)
#pragma unroll
                for (int j = 0; j < P::TN; ++j) sums[i][j] += a_frag[i / 4].x[i % 4] * b_frag[j / 4].x[j % 4];
        }
        __syncthreads();
    }

    // A thread's results are groups of 4 x 4, 64 rows or columns apart: those that its vectors a_frag and b_frag cover.
#pragma unroll
    for (int i = 0; i < P::TM; ++i) {
        const int row = row0 + i / 4 * 64 + ty * 4 + i % 4;
        if (row >= P::m) continue;
#pragma unroll
        for (int j = 0; j < P::TN; ++j) {
            const int column = column0 + j / 4 * 64 + tx * 4 + j % 4;
            if (column < P::n) finish.write(row, column, sums[i][j]);
        }
    }
}

}  // namespace simt
