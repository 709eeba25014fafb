// needs: sampled_token
// sampled_token_row: one row of sample_token on one thread. A histogram finds the bin of a threshold, and only that bin is searched.
namespace sampled {

// The bin in which amounts reach the target, and the sum before it. They do reach it.
struct Found { int bin; uint64_t before; };
static Found find(const uint64_t *amounts, uint64_t target) {
    Found f = {0, 0};
    while (f.bin < BINS - 1 && f.before + amounts[f.bin] < target) f.before += amounts[f.bin++];
    return f;
}

// The smallest key up to which the tokens of a bin reach the target. `by_weight`: they weigh what they weigh, else one each.
static uint32_t threshold(const float *d, int64_t vocab, Found f, uint64_t target, bool by_weight, uint32_t most, uint32_t *keys, uint64_t *amounts) {
    int64_t n = 0;
    for (int64_t i = 0; i < vocab; ++i)
        if (d[i] < FARTHEST && bin(d[i]) == f.bin && key(d[i]) <= most) keys[n] = key(d[i]), amounts[n++] = by_weight ? weight(d[i]) : 1;
    uint32_t low = first_key(f.bin), high = first_key(f.bin + 1);
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        uint64_t sum = f.before;
        for (int64_t i = 0; i < n; ++i) sum += keys[i] <= middle ? amounts[i] : 0;
        if (sum >= target) high = middle;
        else low = middle + 1;
    }
    return low;
}

// scratch: memory of vocab * 16 + BINS * 16 bytes.
template <class S>
static int64_t token_of(const S *logits, const int32_t *counts, const Row &row, int64_t vocab, char *scratch) {
    uint64_t *const number = (uint64_t *)scratch, *const mass = number + BINS, *const amounts = mass + BINS;
    float *const d = (float *)(amounts + vocab);
    uint32_t *const keys = (uint32_t *)(d + vocab);
    float top = -__builtin_inff();
    bool is_number = true;
    int64_t best = 0;
    for (int64_t i = 0; i < vocab; ++i) {
        const float x = d[i] = logit(logits, counts, i, row);
        is_number &= x == x;
        if (x > top) top = x, best = i;
    }
    if (!is_number || !(abs(top) < __builtin_inff())) return -1;
    if (!(row.temperature > 0)) return best;
    for (int64_t i = 0; i < vocab; ++i) d[i] = top - d[i];
    uint32_t most = ALL;
    const bool by_count = row.top_k > 0 && row.top_k < vocab, by_mass = row.top_p < 1;
    if (by_count || by_mass) {
        for (int b = 0; b < BINS; ++b) number[b] = mass[b] = 0;
        uint64_t tokens = 0, total = 0;
        for (int64_t i = 0; i < vocab; ++i)
            if (d[i] < FARTHEST) {
                const uint64_t w = weight(d[i]);
                number[bin(d[i])] += 1, mass[bin(d[i])] += w, tokens += 1, total += w;
            }
        if (by_count && tokens > (uint64_t)row.top_k) {
            const Found f = find(number, (uint64_t)row.top_k);
            most = threshold(d, vocab, f, (uint64_t)row.top_k, false, ALL, keys, amounts);
            total = mass[f.bin] = 0;
            for (int64_t i = 0; i < vocab; ++i)
                if (d[i] < FARTHEST && bin(d[i]) == f.bin && key(d[i]) <= most) mass[f.bin] += weight(d[i]);
            for (int b = 0; b <= f.bin; ++b) total += mass[b];
        }
        if (by_mass) {
            const uint64_t target = nucleus(row.top_p, total);
            most = threshold(d, vocab, find(mass, target), target, true, most, keys, amounts);
        }
    }
    if (key(row.cutoff) < most) most = key(row.cutoff);
    uint64_t total = 0;
    for (int64_t i = 0; i < vocab; ++i) total += amounts[i] = key(d[i]) <= most ? weight(d[i]) : 0;
    const uint64_t at = point(uniform(row), total);
    int64_t i = 0;
    for (uint64_t sum = amounts[0]; sum <= at; sum += amounts[i]) ++i;
    return i;
}

}  // namespace sampled
