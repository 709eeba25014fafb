// needs: exp
// sampled_token: numbers of the op sample_token, the same on every device: penalties, weights, bins and random numbers.
namespace sampled {

// Distances from the largest logit are divided into bins of 1/64. Tokens from FARTHEST on have no weight, so the last bins stay empty.
constexpr int BINS = 2048;
constexpr float FARTHEST = 28.4f;
constexpr uint32_t ALL = 0x7f800000;  // the key of infinity

struct Row {
    float temperature, top_p, cutoff, repetition, presence, frequency;
    uint64_t seed, step, sample;
    int64_t top_k;
    bool counted;
};
INLINE Row row_of(const float *settings, const int64_t *numbers) {
    return {settings[0], settings[1], settings[2], settings[3], settings[4], settings[5],
            (uint64_t)numbers[0], (uint64_t)numbers[1], (uint64_t)numbers[2], numbers[3], numbers[4] != 0};
}

// A logit after penalties and temperature.
template <class S> INLINE float logit(const S *logits, const int32_t *counts, int64_t i, const Row &row) {
    float x = (float)load<1>(logits + i);
    if (row.counted) {
        const int32_t count = counts[i], generated = count >> 1;
        if (count < 0) return -__builtin_inff();
        if (count) x = x < 0 ? x * row.repetition : x / row.repetition;
        if (generated) x = x - row.frequency * (float)generated - row.presence;
    }
    return row.temperature > 0 ? x / row.temperature : x;
}

// The weight of a token at distance d, in units of 2**-40 of the most likely one's.
INLINE uint64_t weight(float d) { return d < FARTHEST ? (uint64_t)rint(exp(-d) * 0x1p40f) : 0; }
// Distances in their order as integers, and the bin of one.
INLINE uint32_t key(float d) { return bitcast<uint32_t>(d); }
INLINE int bin(float d) { return (int)(d * 64.0f); }
INLINE uint32_t first_key(int bin) { return key((float)bin / 64.0f); }

// Of a total weight, the part that top_p must reach, and the point of a random number.
INLINE uint64_t nucleus(float top_p, uint64_t total) {
    const double part = (double)top_p * (double)total;
    const uint64_t whole = (uint64_t)part;
    return whole + ((double)whole < part);
}
INLINE uint64_t point(double number, uint64_t total) {
    const uint64_t at = (uint64_t)(number * (double)total);
    return at < total ? at : total - 1;
}

// Philox4x32-10 of (seed; step, sample): a number in [0, 1) of 53 bits.
INLINE double uniform(const Row &row) {
    uint32_t a = (uint32_t)row.step, b = (uint32_t)row.sample, c = 0, d = 0;
    uint32_t k0 = (uint32_t)row.seed, k1 = (uint32_t)(row.seed >> 32);
    for (int round = 0; round < 10; ++round) {
        const uint64_t p = (uint64_t)0xd2511f53u * a, q = (uint64_t)0xcd9e8d57u * c;
        a = (uint32_t)(q >> 32) ^ b ^ k0, b = (uint32_t)q;
        c = (uint32_t)(p >> 32) ^ d ^ k1, d = (uint32_t)p;
        k0 += 0x9e3779b9u, k1 += 0xbb67ae85u;
    }
    return (double)(((uint64_t)b << 32 | a) >> 11) * 0x1p-53;
}

}  // namespace sampled
