// RMS norm of rows: a block has a row.
constexpr int COLS = in0_shape[in0_rank - 1];

__global__ void rms_norm(const in0_t *x, const in1_t *weight, out0_t *y) {
    __shared__ float sums[THREADS];
    const in0_t *from = x + (int64_t)blockIdx.x * COLS;
    float squares = 0;
    for (int c = threadIdx.x; c < COLS; c += THREADS) {
        const float v = load<1>(from + c);
        squares += v * v;
    }
    sums[threadIdx.x] = squares;
    for (int half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    __syncthreads();
    const float scale = 1.0f / sqrt(sums[0] / COLS + (float)attr_eps);
    for (int c = threadIdx.x; c < COLS; c += THREADS)
        store<1>(y + (int64_t)blockIdx.x * COLS + c, load<1>(from + c) * scale * load<1>(weight + c));
}
