// cuda_hopper: what templates/cuda/hopper.cuh has, in plain C++ on the threads of cuda_host.h: products of a warpgroup that are done at once,
// their tiles found as the PTX manual's matrix descriptors say (swizzle of 128 bytes).
namespace hopper {

using tensor::u16;
using tensor::u32;
using tensor::u64;

static inline u64 tile(u32 place, u32 across) { return (u64)(place >> 4) | (u64)(across >> 4) << 16; }
static inline u64 moved(u64 tile, int bytes) { return tile + (u64)(bytes >> 4); }
static inline void written() {}
static inline void arrive() {}
static inline void commit() {}
template <int pending> static inline void wait() {}
template <int N> static inline void landed(float (&)[N]) {}

// A value `bytes` from a tile's start, counted as if nothing were swizzled.
static inline u16 value(u64 tile, u32 bytes) {
    const u32 at = (u32)(tile & 0x3fff) * 16 + bytes;
    u16 x;
    memcpy(&x, tensor::place_at(at ^ (at >> 7 & 7) << 4), 2);
    return x;
}
static inline u16 along(u64 tile, u32 row, u32 k) { return value(tile, row / 8 * 1024 + row % 8 * 128 + k * 2); }
static inline u16 across_from(u64 tile, u32 k, u32 column) {
    return value(tile, column / 64 * (u32)(tile >> 16 & 0x3fff) * 16 + k / 8 * 1024 + k % 8 * 128 + column % 64 * 2);
}

template <class T, int N> struct Product {
    static void rows(float (&d)[N], u64 a, u64 b, bool keep) {
        const u32 me = host::block->current, lane = me % 32, warp = me / 32 % 4;
        for (u32 i = 0; i < N; ++i) {
            const u32 row = warp * 16 + i % 4 / 2 * 8 + lane / 4, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
            float sum = keep ? d[i] : 0;
            for (u32 k = 0; k < 16; ++k) sum += T::wide(along(a, row, k)) * T::wide(along(b, column, k));
            d[i] = sum;
        }
    }
    static void across(float (&d)[N], const u32 (&a)[4], u64 b) {
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
