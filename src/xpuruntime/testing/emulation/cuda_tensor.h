// cuda_tensor: what templates/cuda/tensor.cuh has, in plain C++ on the threads of cuda_host.h: matrix instructions by the tables of the PTX
// manual, copies that land at once.
namespace tensor {

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

struct Bf16 {
    static float wide(u16 x) { return __uint_as_float((u32)x << 16); }
    static float low(u32 pair) { return wide((u16)pair); }
    static float high(u32 pair) { return wide((u16)(pair >> 16)); }
    static u32 pack(float low, float high) { return narrow_bf16(low) | (u32)narrow_bf16(high) << 16; }
};
struct F16 {
    static float wide(u16 x) { return host::widen_f16(x); }
    static float low(u32 pair) { return wide((u16)pair); }
    static float high(u32 pair) { return wide((u16)(pair >> 16)); }
    static u32 pack(float low, float high) { return host::narrow_f16(low) | (u32)host::narrow_f16(high) << 16; }
};

#define DYNAMIC_SMEM(name) unsigned char *const name = host::dynamic()
#define MASKED_SCORE (-__builtin_inff())

static inline u32 smem_addr(const void *shared) { return (u32)((const unsigned char *)shared - host::dynamic()); }
static inline unsigned char *smem_ptr(u32 addr) { return host::dynamic() + addr; }
static inline void cp_async_16(u32 to, const void *from, bool there) {
    if (there) memcpy(smem_ptr(to), from, 16);
    else memset(smem_ptr(to), 0, 16);
}
static inline void cp_async_commit() {}
template <int pending> static inline void cp_async_wait() {}

static inline void matrices(u32 (&r)[4], u32 from, bool transposed) {
    const unsigned me = host::block->current, first = me / 32 * 32, lane = me % 32;
    host::block->wide[me][0] = from;
    host::meet(host::AT_WARP);
    for (int m = 0; m < 4; ++m) {
        u16 two[2];
        for (unsigned e = 0; e < 2; ++e) {
            const unsigned row = transposed ? lane % 4 * 2 + e : lane / 4, column = transposed ? lane / 4 : lane % 4 * 2 + e;
            memcpy(&two[e], smem_ptr(host::block->wide[first + m * 8 + row][0]) + column * 2, 2);
        }
        r[m] = two[0] | (u32)two[1] << 16;
    }
    host::meet(host::AT_WARP);
}
static inline void ldmatrix_x4(u32 (&r)[4], u32 from) { matrices(r, from, false); }
static inline void ldmatrix_x4_trans(u32 (&r)[4], u32 from) { matrices(r, from, true); }

static inline u32 movmatrix_trans(u32 pair) {
    const unsigned me = host::block->current, first = me / 32 * 32, lane = me % 32;
    host::block->wide[me][0] = pair;
    host::meet(host::AT_WARP);
    u32 two[2];
    for (unsigned e = 0; e < 2; ++e) two[e] = host::block->wide[first + (lane % 4 * 2 + e) * 4 + lane / 8][0] >> lane / 4 % 2 * 16 & 0xffff;
    host::meet(host::AT_WARP);
    return two[0] | two[1] << 16;
}

template <class T> static inline void mma_m16n8k16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    const unsigned me = host::block->current, first = me / 32 * 32, lane = me % 32;
    const u32 mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
    memcpy(host::block->wide[me], mine, sizeof mine);
    host::meet(host::AT_WARP);
    for (unsigned e = 0; e < 4; ++e) {
        const unsigned row = lane / 4 + e / 2 * 8, column = lane % 4 * 2 + e % 2;
        float sum = 0;
        for (unsigned k = 0; k < 16; ++k) {
            const u32 pa = host::block->wide[first + row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2];
            const u32 pb = host::block->wide[first + column * 4 + k % 8 / 2][4 + k / 8];
            sum += (k % 2 ? T::high(pa) : T::low(pa)) * (k % 2 ? T::high(pb) : T::low(pb));
        }
        d[e] += sum;
    }
    host::meet(host::AT_WARP);
}

static inline float exp2(float x) { return exp2f(x); }
struct Quad { u32 x[4]; };
static inline Quad load16(const void *from) { Quad q; memcpy(&q, from, 16); return q; }
static inline Quad ld_streaming_16(const void *from) { return load16(from); }

}  // namespace tensor
