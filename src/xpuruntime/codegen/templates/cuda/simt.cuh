// simt.cuh: matrix products of any dtype by FMA; a thread accumulates TM x TN results, tiles of k are staged in shared memory.
//
// P: C (accumulator), TM, TN (4 or 8), m, n, k, A_ALONG_K, B_ALONG_K (k is the contiguous dimension, for coalesced loads).
// a(row, k) and b(k, column) read elements inside the matrices; finish.write(row, column, sum) writes a result.
namespace simt {

constexpr int BK = 16, THREADS = 256;

template <class C> struct alignas(16) Vec4 { C x[4]; };

template <class P, class A, class B, class Finish>
__device__ __forceinline__ void run(const A &a, const B &b, const Finish &finish) {
    typedef typename P::C C;
    constexpr int BM = 16 * P::TM, BN = 16 * P::TN, LA = BM * BK / THREADS, LB = BN * BK / THREADS;
    __shared__ Vec4<C> left[BK][BM / 4 + 1], right[BK][BN / 4 + 1];
    const int thread = threadIdx.x, tx = thread % 16, ty = thread / 16;
    constexpr int TILES_N = (P::n + BN - 1) / BN;
    const int row0 = (int)(blockIdx.x / TILES_N) * BM, column0 = (int)(blockIdx.x % TILES_N) * BN;

    C next_a[LA], next_b[LB];
    const auto read = [&](int k0) {
#pragma unroll
        for (int i = 0; i < LA; ++i) {
            const int at = thread + i * THREADS, k = k0 + (P::A_ALONG_K ? at % BK : at / BM), r = row0 + (P::A_ALONG_K ? at / BK : at % BM);
            next_a[i] = k < P::k && r < P::m ? (C)a(r, k) : (C)0;
        }
#pragma unroll
        for (int i = 0; i < LB; ++i) {
            const int at = thread + i * THREADS, k = k0 + (P::B_ALONG_K ? at % BK : at / BN), c = column0 + (P::B_ALONG_K ? at / BK : at % BN);
            next_b[i] = k < P::k && c < P::n ? (C)b(k, c) : (C)0;
        }
    };

    C sums[P::TM][P::TN];
#pragma unroll
    for (int i = 0; i < P::TM; ++i)
#pragma unroll
        for (int j = 0; j < P::TN; ++j) sums[i][j] = 0;

    read(0);
    for (int k0 = 0; k0 < P::k; k0 += BK) {
#pragma unroll
        for (int i = 0; i < LA; ++i) {
            const int at = thread + i * THREADS;
            ((C *)left[P::A_ALONG_K ? at % BK : at / BM])[P::A_ALONG_K ? at / BK : at % BM] = next_a[i];
        }
#pragma unroll
        for (int i = 0; i < LB; ++i) {
            const int at = thread + i * THREADS;
            ((C *)right[P::B_ALONG_K ? at % BK : at / BN])[P::B_ALONG_K ? at / BK : at % BN] = next_b[i];
        }
        __syncthreads();
        if (k0 + BK < P::k) read(k0 + BK);
#pragma unroll
        for (int k = 0; k < BK; ++k) {
            Vec4<C> fa[P::TM / 4], fb[P::TN / 4];
#pragma unroll
            for (int i = 0; i < P::TM / 4; ++i) fa[i] = left[k][i * 16 + ty];
#pragma unroll
            for (int j = 0; j < P::TN / 4; ++j) fb[j] = right[k][j * 16 + tx];
#pragma unroll
            for (int i = 0; i < P::TM; ++i)
#pragma unroll
                for (int j = 0; j < P::TN; ++j) sums[i][j] += fa[i / 4].x[i % 4] * fb[j / 4].x[j % 4];
        }
        __syncthreads();
    }

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
