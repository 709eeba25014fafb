// needs: recurrent reduce
// recurrent_steps: the recurrent product of one step of an RNN, by all threads of a block.

// gates[s * STRIDE + row] = r[row] . state[s]. LANES threads share a row, so that its loads are coalesced; a row is read once for all
// samples. r: [rows, H]; state: [S, H] in shared memory.
template <int LANES, int THREADS, int S, int H, int STRIDE, class A, class T> INLINE void recurrent_gates(A *gates, const T *r, const A *state, int rows) {
    const int lane = threadIdx.x % LANES;
    for (int first = 0; first < rows; first += THREADS / LANES) {
        const int row = first + threadIdx.x / LANES;
        A sums[S];
#pragma unroll
        for (int s = 0; s < S; ++s) sums[s] = 0;
        if (row < rows) {
            for (int k = lane; k < H; k += LANES) {
                const A w = (A)load<1>(r + (int64_t)row * H + k);
#pragma unroll
                for (int s = 0; s < S; ++s) sums[s] += w * state[s * H + k];
            }
        }
#pragma unroll
        for (int s = 0; s < S; ++s) {  // all lanes take part in the shuffle, also those without a row
            const A sum = warp_reduce<LANES>(sums[s], sum_of());
            if (lane == 0 && row < rows) gates[s * STRIDE + row] = sum;
        }
    }
}
