// table: 8-bit codes by a table of what each code becomes.

// Shuffles have tables of 16 bytes. An index beyond its table gets the highest bit, by which a shuffle gives zero; `from` and `to` may be the same.
static __attribute__((noinline)) void look_up(const uint8_t *table, const uint8_t *from, uint8_t *to, int64_t n) {
    int64_t i = 0;
#if defined(__AVX2__)
    typedef vec<uint8_t, VECTOR_BYTES> V;
    V part[16];
#pragma GCC unroll 16
    for (int k = 0; k < 16; ++k)
#pragma GCC unroll 4
        for (int j = 0; j < VECTOR_BYTES; j += 16) __builtin_memcpy((char *)&part[k] + j, table + 16 * k, 16);
    for (; i + VECTOR_BYTES <= n; i += VECTOR_BYTES) {
        V x = load<VECTOR_BYTES>(from + i), y = V{};
#pragma GCC unroll 16
        for (int k = 0; k < 16; ++k, x -= 16) {
            V index, found;
            __asm__("vpaddusb %2, %1, %0" : "=v"(index) : "v"(x), "v"(splat<V>(0x70)));
            __asm__("vpshufb %2, %1, %0" : "=v"(found) : "v"(part[k]), "v"(index));
            y |= found;
        }
        store<VECTOR_BYTES>(to + i, y);
    }
#endif
    for (; i < n; ++i) to[i] = table[from[i]];
}
