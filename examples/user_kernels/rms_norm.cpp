// RMS norm of rows. Tasks are rows; in0_t, in0_size and attr_eps are constants of the call.
constexpr int64_t COLS = in0_shape[in0_rank - 1];

void rms_norm(const in0_t *x, const in1_t *weight, out0_t *y, int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
        const in0_t *from = x + r * COLS;
        float squares = 0;
        for (int64_t c = 0; c < COLS; ++c) {
            const float v = load<1>(from + c);  // bfloat16 and float16 compute in float
            squares += v * v;
        }
        const float scale = 1.0f / sqrt(squares / COLS + (float)attr_eps);
        for (int64_t c = 0; c < COLS; ++c) store<1>(y + r * COLS + c, load<1>(from + c) * scale * load<1>(weight + c));
    }
}
