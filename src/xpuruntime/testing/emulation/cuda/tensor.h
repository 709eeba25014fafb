// tensor.h: the part `tensor` in plain C++: matrix instructions by the tables of the PTX ISA, and copies that arrive when they are waited for.
//
// A copy that no wait covers has not arrived: shared memory there may not be touched. The thread that waits has written it then, so that others
// need a barrier.
namespace tensor {

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

struct Bf16 {
    static __forceinline__ float wide(u16 x) { return __uint_as_float((u32)x << 16); }
    static __forceinline__ float low(u32 pair) { return wide((u16)pair); }
    static __forceinline__ float high(u32 pair) { return wide((u16)(pair >> 16)); }
    static __forceinline__ u32 pack(float low, float high) { return narrow_bf16(low) | (u32)narrow_bf16(high) << 16; }
};
struct F16 {
    static __forceinline__ float wide(u16 x) { return host::widen_f16(x); }
    static __forceinline__ float low(u32 pair) { return wide((u16)pair); }
    static __forceinline__ float high(u32 pair) { return wide((u16)(pair >> 16)); }
    static __forceinline__ u32 pack(float low, float high) { return host::narrow_f16(low) | (u32)host::narrow_f16(high) << 16; }
};

#define MASKED_SCORE (-__builtin_inff())

static __forceinline__ u32 and_or(u32 x, u32 mask, u32 bits) { return (x & mask) | bits; }
static __forceinline__ u32 mul_bf16x2(u32 x, u32 y) { return Bf16::pack(Bf16::low(x) * Bf16::low(y), Bf16::high(x) * Bf16::high(y)); }

EMULATOR_HERE u32 smem_addr(const void *shared) { return (u32)((const unsigned char *)shared - host::dynamic_memory()); }

EMULATOR_HERE void cp_async(u32 to, const void *from, bool there, u32 bytes) {
    using namespace host;
    if (there) aligned(from, bytes, false);
    Cell *const cells = dynamic_cells(to, bytes);
    touch(cells, bytes, true);
    for (u32 i = 0; i < bytes; ++i) cells[i].writer = UNDER_WAY;
    if (!copies.free && copies.used == MAX_COPIES) FAULT("more than %u copies are under way", MAX_COPIES - 1);
    const uint32_t at = copies.free ? copies.free : copies.used++;
    if (copies.free) copies.free = copies.at[at].next;
    copies.at[at] = {to, machine.thread->copy_groups, 0, bytes, there, from};
    if (machine.thread->first_copy) copies.at[machine.thread->last_copy].next = at;
    else machine.thread->first_copy = at;
    machine.thread->last_copy = at;
}
static __forceinline__ void cp_async_16(u32 to, const void *from, bool there) { cp_async(to, from, there, 16); }
static __forceinline__ void cp_async_4(u32 to, const void *from, bool there) { cp_async(to, from, there, 4); }
EMULATOR_HERE void cp_async_commit() { ++host::machine.thread->copy_groups; }
EMULATOR_HERE void cp_async_land(u32 pending) {
    using namespace host;
    Thread &t = *machine.thread;
    for (uint32_t at = t.first_copy; at && copies.at[at].group + pending < t.copy_groups; at = t.first_copy) {
        const Copy c = copies.at[at];
        unsigned char *const to = dynamic_memory() + c.to;
        if (c.reads) memcpy(to, c.from, c.bytes);
        else memset(to, 0, c.bytes);
        Cell *const cells = shared.cells + t.rank * shared.apart + c.to;
        for (u32 i = 0; i < c.bytes; ++i) cells[i].writer = (uint16_t)machine.current, cells[i].written = machine.tick;
        t.first_copy = c.next;
        copies.at[at].next = copies.free, copies.free = at;
    }
}
template <int pending> static __forceinline__ void cp_async_wait() { cp_async_land(pending); }

struct Four { u32 x[4]; };
EMULATOR_HERE Four matrices(u32 from, bool transposed) {
    const host::Slots &slots = host::meet_warp(host::LDMATRIX, ~0u, host::Slot{{from}});
    const unsigned lane = host::machine.thread->lane;
    Four r;
    for (int i = 0; i < 4; ++i) {
        u16 two[2];
        for (unsigned e = 0; e < 2; ++e) {
            const unsigned row = transposed ? lane % 4 * 2 + e : lane / 4, column = transposed ? lane / 4 : lane % 4 * 2 + e;
            const u32 at = slots.of[i * 8 + row].word[0];
            if (at % 16) FAULT("ldmatrix reads a row at %u, which is no multiple of 16", at);
            memcpy(&two[e], host::read_shared(at + column * 2, 2), 2);
        }
        r.x[i] = two[0] | (u32)two[1] << 16;
    }
    return r;
}
static __forceinline__ void ldmatrix_x4(u32 (&r)[4], u32 from) {
    const Four four = matrices(from, false);
    for (int i = 0; i < 4; ++i) r[i] = four.x[i];
}
static __forceinline__ void ldmatrix_x4_trans(u32 (&r)[4], u32 from) {
    const Four four = matrices(from, true);
    for (int i = 0; i < 4; ++i) r[i] = four.x[i];
}

EMULATOR_HERE u32 movmatrix_trans(u32 pair) {
    const host::Slots &slots = host::meet_warp(host::MOVMATRIX, ~0u, host::Slot{{pair}});
    const unsigned lane = host::machine.thread->lane;
    u32 two[2];
    for (unsigned e = 0; e < 2; ++e) two[e] = slots.of[(lane % 4 * 2 + e) * 4 + lane / 8].word[0] >> lane / 4 % 2 * 16 & 0xffff;
    return two[0] | two[1] << 16;
}

struct Floats { float x[4]; };
template <class T> EMULATOR_HERE Floats products(Floats d, Four a, u32 b0, u32 b1) {
    const host::Slots &slots = host::meet_warp(host::MMA, ~0u, host::Slot{{a.x[0], a.x[1], a.x[2], a.x[3], b0, b1}});
    const unsigned lane = host::machine.thread->lane;
    float rows[2][16], columns[2][16];
    for (unsigned half = 0; half < 2; ++half)
        for (unsigned k = 0; k < 16; k += 2) {
            const u32 pa = slots.of[lane / 4 * 4 + k % 8 / 2].word[half + k / 8 * 2], pb = slots.of[(lane % 4 * 2 + half) * 4 + k % 8 / 2].word[4 + k / 8];
            rows[half][k] = T::low(pa), rows[half][k + 1] = T::high(pa);
            columns[half][k] = T::low(pb), columns[half][k + 1] = T::high(pb);
        }
    for (unsigned e = 0; e < 4; ++e) {
        float sum = 0;
        for (unsigned k = 0; k < 16; ++k) sum += rows[e / 2][k] * columns[e % 2][k];
        d.x[e] += sum;
    }
    return d;
}
template <class T> static __forceinline__ void mma_m16n8k16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    const Floats sums = products<T>(Floats{{d[0], d[1], d[2], d[3]}}, Four{{a[0], a[1], a[2], a[3]}}, b0, b1);
    for (int i = 0; i < 4; ++i) d[i] = sums.x[i];
}

static __forceinline__ float exp2(float x) { return exp2f(x); }
struct Quad { u32 x[4]; };
EMULATOR_HERE Quad load16(const void *from) {
    host::aligned(from, 16, false);
    Quad q;
    memcpy(&q, from, 16);
    return q;
}
EMULATOR_HERE void store16(void *to, const Quad &q) {
    host::aligned(to, 16, true);
    memcpy(to, &q, 16);
}
static __forceinline__ Quad ld_streaming_16(const void *from) { return load16(from); }

}  // namespace tensor
