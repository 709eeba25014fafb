// needs: hopper
// cuda_wgmma: the part wgmma in plain C++ on the threads of cuda_host.h: a product is done at once, its tiles found as the PTX ISA's matrix
// descriptors say (128-byte swizzle).
namespace hopper {

// A value `bytes` from a tile's start, counted as if nothing were swizzled.
static inline u16 value(u64 tile, u32 bytes) {
    const u32 at = (u32)(tile & 0x3fff) * 16 + bytes;
    u16 x;
    memcpy(&x, tensor::smem_ptr(at ^ (at >> 7 & 7) << 4), 2);
    return x;
}
static inline u16 along(u64 tile, u32 row, u32 k) { return value(tile, row / 8 * 1024 + row % 8 * 128 + k * 2); }
static inline u16 across_from(u64 tile, u32 k, u32 column) {
    return value(tile, column / 64 * (u32)(tile >> 16 & 0x3fff) * 16 + k / 8 * 1024 + k % 8 * 128 + column % 64 * 2);
}

template <class T, int N> struct Wgmma {
    static void ss(float (&d)[N], u64 a, u64 b, bool keep) {
        const u32 me = host::block->current, lane = me % 32, warp = me / 32 % 4;
        for (u32 i = 0; i < N; ++i) {
            const u32 row = warp * 16 + i % 4 / 2 * 8 + lane / 4, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
            float sum = keep ? d[i] : 0;
            for (u32 k = 0; k < 16; ++k) sum += T::wide(along(a, row, k)) * T::wide(along(b, column, k));
            d[i] = sum;
        }
    }
    static void rs(float (&d)[N], const u32 (&a)[4], u64 b) {
        const u32 me = host::block->current, first = me / 32 * 32, lane = me % 32;
        memcpy(host::block->wide[me], a, sizeof a);
        host::meet(host::AT_WARP);
        for (u32 i = 0; i < N; ++i) {
            const u32 half = i % 4 / 2, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
            for (u32 k = 0; k < 16; ++k) {
                const u32 pair = host::block->wide[first + lane / 4 * 4 + k % 8 / 2][half + k / 8 * 2];
                d[i] += (k % 2 ? T::high(pair) : T::low(pair)) * T::wide(across_from(b, k, column));
            }
        }
        host::meet(host::AT_WARP);
    }
};

}  // namespace hopper
