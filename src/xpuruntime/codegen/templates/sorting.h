// needs: movement
// sorting: stable bottom-up merge sort of places by their keys. NaN is the largest value; equal keys keep their order.

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
