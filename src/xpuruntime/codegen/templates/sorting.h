// needs: movement
// sorting: stable bottom-up merge sorts of places by their keys. NaN is the largest value; equal keys keep their order.

template <bool DOWN, class K> INLINE bool before(K a, K b) {
    if (DOWN) { const K c = a; a = b; b = c; }
    return a < b || (b != b && a == a);
}

template <bool DOWN, class K>
static const int32_t *merge_sort(const K *keys, int32_t *from, int32_t *to, int64_t n) {
    constexpr int64_t RUN = 16;  // short runs by insertion
    for (int64_t low = 0; low < n; low += RUN) {
        const int64_t high = low + RUN < n ? low + RUN : n;
        for (int64_t i = low + 1; i < high; ++i) {
            const int32_t place = from[i];
            int64_t j = i;
            for (; j > low && before<DOWN>(keys[place], keys[from[j - 1]]); --j) from[j] = from[j - 1];
            from[j] = place;
        }
    }
    for (int64_t width = RUN; width < n; width *= 2) {
        for (int64_t low = 0; low < n; low += 2 * width) {
            const int64_t middle = low + width < n ? low + width : n, high = low + 2 * width < n ? low + 2 * width : n;
            int64_t a = low, b = middle;
            for (int64_t i = low; i < high; ++i)
                to[i] = a < middle && (b >= high || !before<DOWN>(keys[from[b]], keys[from[a]])) ? from[a++] : from[b++];
        }
        int32_t *const sorted = to;
        to = from;
        from = sorted;
    }
    return from;
}

// ── keys of up to 32 bits: words of a key's bits, in an order of unsigned integers, above its place, so that no comparison decides a branch ──

template <bool DOWN> INLINE uint32_t ordered(float key) {
    const uint32_t bits = bitcast<uint32_t>(key + 0.0f);  // -0 equals 0
    const uint32_t up = key != key ? ~0u : bits >> 31 ? ~bits : bits | 0x80000000u;
    return DOWN ? ~up : up;
}
template <bool DOWN, class K> INLINE uint32_t ordered(K key) {
    const uint32_t up = (uint32_t)key ^ (K(-1) < K(0) ? 0x80000000u : 0u);
    return DOWN ? ~up : up;
}

// Sort `n` words, which end with words behind all others up to a multiple of 16. Returns `from` or `to`.
static const uint64_t *sort_words(uint64_t *from, uint64_t *to, int64_t n) {
    constexpr int64_t RUN = 16;
    n = (n + RUN - 1) / RUN * RUN;
    for (int64_t low = 0; low < n; low += RUN) {  // the place of a word is the number of smaller ones
        int64_t place[RUN];
        for (int64_t i = 0; i < RUN; ++i) {
            const uint64_t word = from[low + i];
            int64_t smaller = 0;
            for (int64_t j = 0; j < RUN; ++j) smaller += from[low + j] < word;
            place[i] = smaller;
        }
        for (int64_t i = 0; i < RUN; ++i) to[low + place[i]] = from[low + i];
    }
    for (int64_t width = RUN;; width *= 2) {
        uint64_t *const sorted = to;
        to = from;
        from = sorted;
        if (width >= n) return from;
        for (int64_t low = 0; low < n; low += 2 * width) {
            const int64_t middle = low + width < n ? low + width : n, high = low + 2 * width < n ? low + 2 * width : n;
            int64_t a = low, b = middle, i = low;
            if (high == low + 2 * width) {  // from both ends at once: neither run ends before half of the words are taken
                int64_t c = middle - 1, d = high - 1;
                for (int64_t j = high - 1; i < middle; ++i, --j) {
                    const uint64_t first = from[a], second = from[b], third = from[c], fourth = from[d];
                    const bool later = second < first, earlier = fourth < third;
                    to[i] = later ? second : first, to[j] = earlier ? third : fourth;
                    a += !later, b += later, c -= earlier, d -= !earlier;
                }
                continue;
            }
            for (; a < middle && b < high; ++i) {
                const uint64_t first = from[a], second = from[b];
                const bool later = second < first;
                to[i] = later ? second : first;
                a += !later, b += later;
            }
            for (; a < middle; ++i) to[i] = from[a++];
            for (; b < high; ++i) to[i] = from[b++];
        }
    }
}

// ── top k of a line: a heap of the best so far, the worst of them at its root (J. W. J. Williams, 1964) ──

template <bool DOWN, class K> INLINE bool comes_after(const K *keys, const int32_t *places, int64_t a, int64_t b) {
    return before<DOWN>(keys[b], keys[a]) || (!before<DOWN>(keys[a], keys[b]) && places[a] > places[b]);
}
template <class K> INLINE void exchange(K *keys, int32_t *places, int64_t a, int64_t b) {
    const K key = keys[a];
    const int32_t place = places[a];
    keys[a] = keys[b], places[a] = places[b];
    keys[b] = key, places[b] = place;
}
template <bool DOWN, class K> static void sift_down(K *keys, int32_t *places, int64_t at, int64_t n) {
    for (int64_t child = 2 * at + 1; child < n; child = 2 * at + 1) {
        if (child + 1 < n && comes_after<DOWN>(keys, places, child + 1, child)) ++child;
        if (!comes_after<DOWN>(keys, places, child, at)) return;
        exchange(keys, places, child, at);
        at = child;
    }
}
// Push the next element of the line; of equal ones the earlier stay.
template <bool DOWN, class K> INLINE void heap_push(K *keys, int32_t *places, int64_t count, K key, int64_t place) {
    if (place >= count) {
        if (!before<DOWN>(key, keys[0])) return;
        keys[0] = key, places[0] = (int32_t)place;
        return sift_down<DOWN>(keys, places, 0, count);
    }
    keys[place] = key, places[place] = (int32_t)place;
    if (place == count - 1)
        for (int64_t i = count / 2; i-- > 0;) sift_down<DOWN>(keys, places, i, count);
}
template <bool DOWN, class K> static void heap_sort(K *keys, int32_t *places, int64_t count) {
    for (int64_t n = count; n-- > 1;) exchange(keys, places, 0, n), sift_down<DOWN>(keys, places, 0, n);
}
