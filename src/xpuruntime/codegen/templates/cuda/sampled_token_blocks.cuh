// needs: sampled_token reduce
// sampled_token_blocks: sample_token in three launches. Blocks of a row compute logits and their maximum; then weights and histograms of them; then one
// block finds the thresholds and the token. Sums are integers, so their order does not matter.
//
// P: S (logits), vocab, padded (vocab as a multiple of 4), chunk (elements of a block, a multiple of 4), chunks.
namespace sampled {

constexpr int WIDE = 1024;   // threads of the last launch
constexpr int LISTED = 2048;  // tokens of boundary bins that fit into shared memory
typedef unsigned long long u64;

template <class P, int THREADS>
INLINE void logits_of_chunk(const typename P::S *logits, const int32_t *counts, const Row &row, float *x, float *maxima, uint32_t *number, u64 *mass) {
    __shared__ float parts[THREADS / 32];
    const int64_t begin = (int64_t)blockIdx.x * P::chunk, end = begin + P::chunk < P::padded ? begin + P::chunk : P::padded;
    float top = -__builtin_inff();
    for (int64_t i = begin + threadIdx.x; i < end; i += THREADS) {
        const float v = i < P::vocab ? logit(logits, counts, i, row) : -__builtin_inff();
        x[i] = v;
        top = maximum(top, v);
    }
    top = block_reduce<THREADS / 32>(top, amax_of(), parts);
    if (threadIdx.x == 0) maxima[blockIdx.x] = top;
    if (blockIdx.x == 0)
        for (int b = threadIdx.x; b < BINS; b += THREADS) number[b] = 0, mass[b] = 0;
}

// Add to a sum in shared memory by 32-bit atomics: one of 64 bits there is a loop that repeats for every other thread with the same sum.
INLINE void add_shared(u64 *sum, u64 amount) {
    uint32_t *const words = (uint32_t *)sum;
    const uint32_t low = (uint32_t)amount, carry = atomicAdd(words, low) > ~low, high = (uint32_t)(amount >> 32) + carry;
    if (high) atomicAdd(words + 1, high);
}

template <int CHUNKS, int THREADS> INLINE float largest(const float *maxima, float *parts) {
    float top = -__builtin_inff();
    for (int c = threadIdx.x; c < CHUNKS; c += THREADS) top = maximum(top, maxima[c]);
    return block_reduce<THREADS / 32>(top, amax_of(), parts);
}
INLINE bool is_finite(float x) { return abs(x) < __builtin_inff(); }
template <class P> INLINE bool limits_count(const Row &row) { return row.top_k > 0 && row.top_k < P::vocab; }

template <class P, int THREADS>
INLINE void weights_of_chunk(const float *x, const float *maxima, const Row &row, u64 *sums, uint32_t *number, u64 *mass) {
    __shared__ u64 parts[THREADS / 32], own_mass[BINS];
    __shared__ uint32_t own_number[BINS];
    const float top = largest<P::chunks, THREADS>(maxima, (float *)parts);
    if (!(row.temperature > 0) || !is_finite(top)) return;
    const bool bins = limits_count<P>(row) || row.top_p < 1;
    if (bins)
        for (int b = threadIdx.x; b < BINS; b += THREADS) own_number[b] = 0, own_mass[b] = 0;
    __syncthreads();
    const int64_t begin = (int64_t)blockIdx.x * P::chunk, end = begin + P::chunk < P::padded ? begin + P::chunk : P::padded;
    u64 sum = 0;
    for (int64_t i = begin + threadIdx.x; i < end; i += THREADS) {
        const float d = top - x[i];
        const u64 w = weight(d);
        if (d <= row.cutoff) sum += w;
        if (bins && d < FARTHEST) {
            atomicAdd(own_number + bin(d), 1u);
            add_shared(own_mass + bin(d), w);
        }
    }
    sum = block_reduce<THREADS / 32>(sum, sum_of(), parts);  // also a barrier after the last update of the bins
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
    if (bins)
        for (int b = threadIdx.x; b < BINS; b += THREADS)
            if (own_number[b]) {
                atomicAdd(number + b, own_number[b]);
                atomicAdd(mass + b, own_mass[b]);
            }
}

// What the threads of the last launch share.
struct Shared {
    u64 bins[BINS], parts[32], before;
    u64 segments[32];  // for each segment, the weight of its tokens
    uint32_t list[LISTED], listed;
    uint8_t segment_of[LISTED];  // of each listed token
    int bin;
    bool summed;  // segments is known
};

INLINE u64 warp_scan(u64 sum) {  // inclusive
#pragma unroll
    for (int by = 1; by < 32; by *= 2) {
        const u64 other = __shfl_up_sync(0xffffffffu, sum, by);
        if ((int)(threadIdx.x % 32) >= by) sum += other;
    }
    return sum;
}

// The sum of the amounts of all earlier threads; `total` is that of all threads.
INLINE u64 scan(u64 amount, Shared &s, u64 &total) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const u64 sum = warp_scan(amount);
    __syncthreads();  // earlier readers are done
    if (lane == 31) s.parts[warp] = sum;
    __syncthreads();
    const u64 warps = warp_scan(s.parts[lane]);
    total = __shfl_sync(0xffffffffu, warps, WIDE / 32 - 1);
    const u64 earlier = __shfl_sync(0xffffffffu, warps, warp ? warp - 1 : 0);
    return (warp ? earlier : 0) + sum - amount;
}

// Set s.bin and s.before: the bin in which amounts, of two bins per thread, reach the target, and the sum before it. They do reach it.
INLINE void find(u64 first, u64 second, u64 before, u64 target, Shared &s) {
    u64 total;
    const u64 at = before + scan(first + second, s, total);
    if (at < target && at + first >= target) s.bin = 2 * threadIdx.x, s.before = at;
    else if (at + first < target && at + first + second >= target) s.bin = 2 * threadIdx.x + 1, s.before = at + first;
    __syncthreads();
}

// Call f(distance) for the tokens of the warp's segment, the 32nd part of a row. Loads of IN_FLIGHT vectors are issued before the first use.
template <class P> constexpr int64_t SEGMENT = (P::padded / 4 + 31) / 32 * 4;
template <class P, class F> INLINE void each_of_segment(const float *x, float top, F f) {
    constexpr int IN_FLIGHT = 4;
    const int64_t begin = threadIdx.x / 32 * SEGMENT<P>, end = begin + SEGMENT<P> < P::padded ? begin + SEGMENT<P> : P::padded;
#pragma unroll 1
    for (int64_t i = begin + 4 * (threadIdx.x % 32); i < end; i += IN_FLIGHT * 4 * 32) {
        decltype(decoded<float>(fetch<4>(x, true))) read[IN_FLIGHT];
#pragma unroll
        for (int n = 0; n < IN_FLIGHT; ++n)
            if (i + n * 4 * 32 < end) read[n] = decoded<float>(fetch<4>(x + i + n * 4 * 32, true));
#pragma unroll
        for (int n = 0; n < IN_FLIGHT; ++n)
            if (i + n * 4 * 32 < end)
#pragma unroll
                for (int e = 0; e < 4; ++e) f(top - read[n].at[e]);
    }
}

// Call f(key) for every token with a weight whose bin is from `low` to `high`: those of the list, or of the whole row.
template <class P, class F> INLINE void each(const float *x, float top, bool is_listed, int low, int high, const Shared &s, F f) {
    if (is_listed) {
#pragma unroll 1
        for (int i = threadIdx.x; i < (int)s.listed; i += WIDE) {
            const int b = bin(bitcast<float>(s.list[i]));
            if (b >= low && b <= high) f(s.list[i]);
        }
        return;
    }
    each_of_segment<P>(x, top, [&](float d) {
        if (d < FARTHEST && bin(d) >= low && bin(d) <= high) f(key(d));
    });
}

// The smallest key up to which the tokens of bin s.bin reach the target, counted from s.before. Each round divides the range of keys by 2048.
template <class P, bool BY_WEIGHT>
INLINE uint32_t threshold(const float *x, float top, bool is_listed, uint32_t most, u64 target, Shared &s) {
    const int from = s.bin;
    uint32_t low = first_key(from), width = first_key(from + 1) - low;
    while (width > 1) {
        int shift = 0;
        while ((width - 1) >> shift >= BINS) ++shift;
        const u64 before = s.before;
        __syncthreads();  // everyone has read it
        s.bins[2 * threadIdx.x] = s.bins[2 * threadIdx.x + 1] = 0;
        __syncthreads();
        each<P>(x, top, is_listed, from, from, s, [&](uint32_t k) {
            if (k <= most && k - low < width) add_shared(s.bins + ((k - low) >> shift), BY_WEIGHT ? (u64)weight(bitcast<float>(k)) : (u64)1);
        });
        __syncthreads();
        find(s.bins[2 * threadIdx.x], s.bins[2 * threadIdx.x + 1], before, target, s);
        low += (uint32_t)s.bin << shift;
        width = 1u << shift;
        __syncthreads();
    }
    return low;
}

// The token of elements begin to end at a point of their cumulative weight.
template <class P> INLINE int64_t pick(const float *x, float top, uint32_t most, int64_t begin, int64_t end, u64 at, Shared &s) {
    const int64_t each = (end - begin + WIDE - 1) / WIDE, first = begin + each * threadIdx.x, last = first + each < end ? first + each : end;
    u64 sum = 0, total;
#pragma unroll 4
    for (int64_t i = first; i < last; ++i) {
        const float d = top - x[i];
        if (key(d) <= most) sum += weight(d);
    }
    const u64 before = scan(sum, s, total);
    if (before <= at && at < before + sum) {
        u64 reached = before;
#pragma unroll 1
        for (int64_t i = first; i < last; ++i) {
            const float d = top - x[i];
            if (key(d) <= most) reached += weight(d);
            if (reached > at) {
                s.before = (u64)i;
                break;
            }
        }
    }
    __syncthreads();
    return (int64_t)s.before;
}

// The key of the most distant token that top_k, top_p and the cutoff keep. Where boundary bins fit into the list, the pass that lists their tokens also
// sums the weights of the others, so the row is read once.
template <class P>
INLINE uint32_t kept(const float *x, float top, const Row &row, const uint32_t *number, const u64 *mass, Shared &s) {
    const uint32_t cutoff = key(row.cutoff);
    if (threadIdx.x == 0) s.summed = false;
    const int b0 = 2 * threadIdx.x, b1 = b0 + 1;
    const u64 n0 = number[b0], n1 = number[b1];
    u64 m0 = mass[b0], m1 = mass[b1], tokens, total;
    scan(n0 + n1, s, tokens);
    scan(m0 + m1, s, total);
    const bool by_count = limits_count<P>(row) && tokens > (u64)row.top_k, by_mass = row.top_p < 1;
    if (!by_count && !by_mass) return cutoff;
    // Bins that hold the thresholds. That of top_p depends on what top_k leaves of its own bin, so it is one of several.
    int count_bin = -1, low = BINS, high = -1;
    u64 least = total, count_before = 0;
    if (by_count) {
        find(n0, n1, 0, (u64)row.top_k, s);
        count_bin = low = high = s.bin, count_before = s.before;
        u64 all;
        __syncthreads();
        scan((b0 < count_bin ? m0 : 0) + (b1 < count_bin ? m1 : 0), s, least);
        scan((b0 <= count_bin ? m0 : 0) + (b1 <= count_bin ? m1 : 0), s, all);
        total = all;
    }
    if (by_mass) {
        find(m0, m1, 0, nucleus(row.top_p, total), s);
        const int last = s.bin;
        __syncthreads();
        int first = last;
        if (by_count && least) {
            find(m0, m1, 0, nucleus(row.top_p, least), s);
            first = s.bin;
            __syncthreads();
        } else if (by_count) first = 0;
        low = first < low ? first : low, high = last > high ? last : high;
    }
    u64 inside;
    scan((b0 >= low && b0 <= high ? n0 : 0) + (b1 >= low && b1 <= high ? n1 : 0), s, inside);
    const bool is_listed = inside <= LISTED;
    if (is_listed) {
        if (threadIdx.x == 0) s.listed = 0;
        __syncthreads();
        const float from = (float)low / 64.0f, to = (float)(high + 1) / 64.0f;  // of the bins' distances
        u64 nearer = 0;
        each_of_segment<P>(x, top, [&](float d) {
            if (d < from && key(d) <= cutoff) nearer += weight(d);
            if (!(d >= from && d < to && d < FARTHEST)) return;
            const uint32_t at = atomicAdd(&s.listed, 1u);
            s.list[at] = key(d), s.segment_of[at] = (uint8_t)(threadIdx.x / 32);
        });
        nearer = warp_reduce<32>(nearer, sum_of());
        if (threadIdx.x % 32 == 0) s.segments[threadIdx.x / 32] = nearer;
        __syncthreads();
    }
    uint32_t most = ALL;
    if (by_count) {
        if (threadIdx.x == 0) s.bin = count_bin, s.before = count_before;
        __syncthreads();
        most = threshold<P, false>(x, top, is_listed, ALL, (u64)row.top_k, s);
        u64 sum = 0, rest;
        each<P>(x, top, is_listed, count_bin, count_bin, s, [&](uint32_t k) {
            if (k <= most) sum += weight(bitcast<float>(k));
        });
        scan(sum, s, rest);
        if (b0 >= count_bin) m0 = b0 == count_bin ? rest : 0;
        if (b1 >= count_bin) m1 = b1 == count_bin ? rest : 0;
        scan(m0 + m1, s, total);
    }
    if (by_mass) {
        const u64 target = nucleus(row.top_p, total);
        find(m0, m1, 0, target, s);
        most = threshold<P, true>(x, top, is_listed, most, target, s);
    }
    if (cutoff < most) most = cutoff;
    if (is_listed) {
#pragma unroll 1
        for (int i = threadIdx.x; i < (int)s.listed; i += WIDE)
            if (s.list[i] <= most) add_shared(s.segments + s.segment_of[i], weight(bitcast<float>(s.list[i])));
        if (threadIdx.x == 0) s.summed = true;
        __syncthreads();
    }
    return most;
}

// The token of a row; -1 if it has none.
template <class P>
INLINE int64_t token_of(const float *x, const float *maxima, const u64 *sums, const uint32_t *number, const u64 *mass, const Row &row) {
    __shared__ Shared s;
    const float top = largest<P::chunks, WIDE>(maxima, (float *)s.parts);
    if (!is_finite(top)) return -1;
    __syncthreads();
    if (!(row.temperature > 0)) {  // the first of the largest
        int64_t best = P::vocab;
        for (int c = threadIdx.x; c < P::chunks; c += WIDE)
            if (maxima[c] == top && c < best) best = c;
        const int64_t begin = block_reduce<WIDE / 32>(best, amin_of(), s.parts) * P::chunk;
        best = P::vocab;
        for (int64_t i = begin + threadIdx.x; i < begin + P::chunk && i < P::vocab; i += WIDE)
            if (x[i] == top && i < best) best = i;
        return block_reduce<WIDE / 32>(best, amin_of(), s.parts);
    }
    const double number_of_row = uniform(row);
    if (!limits_count<P>(row) && !(row.top_p < 1)) {  // sums of chunks are known
        constexpr int EACH = (P::chunks + WIDE - 1) / WIDE;
        u64 sum = 0, total;
        for (int c = EACH * threadIdx.x; c < EACH * (int)(threadIdx.x + 1) && c < P::chunks; ++c) sum += sums[c];
        u64 before = scan(sum, s, total);
        const u64 at = point(number_of_row, total);
        if (before <= at && at < before + sum)
            for (int c = EACH * threadIdx.x; c < P::chunks; before += sums[c++])
                if (at < before + sums[c]) {
                    s.bin = c, s.before = at - before;
                    break;
                }
        __syncthreads();
        const int64_t begin = (int64_t)s.bin * P::chunk;
        const u64 rest = s.before;
        __syncthreads();
        return pick<P>(x, top, key(row.cutoff), begin, begin + P::chunk < P::padded ? begin + P::chunk : P::padded, rest, s);
    }
    const uint32_t most = kept<P>(x, top, row, number, mass, s);
    __syncthreads();
    if (!s.summed) {
        u64 sum = 0;
        each_of_segment<P>(x, top, [&](float d) {
            if (key(d) <= most) sum += weight(d);
        });
        sum = warp_reduce<32>(sum, sum_of());
        if (threadIdx.x % 32 == 0) s.segments[threadIdx.x / 32] = sum;
        __syncthreads();
    }
    // The segment of the token, then the token.
    u64 total = 0;
    const u64 reached = warp_scan(s.segments[threadIdx.x % 32]);
    total = __shfl_sync(0xffffffffu, reached, 31);
    u64 at = point(number_of_row, total);
    const int w = __ffs(__ballot_sync(0xffffffffu, reached > at)) - 1;
    if (w > 0) at -= __shfl_sync(0xffffffffu, reached, w - 1);
    __syncthreads();
    return pick<P>(x, top, most, w * SEGMENT<P>, (w + 1) * SEGMENT<P> < P::padded ? (w + 1) * SEGMENT<P> : P::padded, at, s);
}

}  // namespace sampled
