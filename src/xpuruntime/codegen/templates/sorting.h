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
