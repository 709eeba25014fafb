// emulator.h: enough of a GPU, on a CPU, to run generated kernels: threads of a block are fibers that meet at barriers, and
// `tensor` (templates/cuda/tensor.cuh) is written out by the tables of the PTX manual. It is strict where a GPU is silent:
// shared memory starts as NaNs, copies land only when they are waited for, 16-byte accesses must be aligned, and threads
// that wait for a barrier which nobody else reaches end the program.
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <utility>
#include <vector>

#define __device__
#define __global__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __restrict__
#define __constant__ static
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))

namespace emulator {

struct Three {
    int x = 0, y = 0, z = 0;
};
struct Copy {
    unsigned to;
    const void *from;
    bool there;
};
struct Thread {
    ucontext_t context;
    std::vector<char> stack;
    bool done = false;
    std::vector<std::vector<Copy>> groups;
    std::vector<Copy> open;
};
struct Meeting {
    int arrived = 0;
    unsigned turn = 0;
};
struct Warp : Meeting {
    unsigned slot[32][8];
};

static std::vector<Thread> threads;
static std::vector<Warp> warps;
static std::vector<Meeting> block_meetings;
static Meeting cluster_meeting;
static ucontext_t scheduler;
static int current, count, cluster;  // threads of a block, blocks of a cluster, which run at once
static unsigned long progress;
static unsigned char *memory, *shared;  // of a cluster's blocks, and of the one whose turn it is
static int shared_bytes, apart;

// Before the first thread of a launch waits for its turn, what the launches before write is not there: NaNs are read instead.
struct Late {
    unsigned char *at;
    const unsigned char *value;
    long bytes;
};
static std::vector<Late> late;
static void turn() {
    for (const Late &l : late) memcpy(l.at, l.value, l.bytes);
    late.clear();
}
#define XPURT_GRIDDEP_WAIT emulator::turn

static void yield() { swapcontext(&threads[current].context, &scheduler); }

static void meet(Meeting &m, int people) {
    const unsigned turn = m.turn;
    if (++m.arrived == people) {
        m.arrived = 0;
        ++m.turn;
        ++progress;
    } else {
        while (m.turn == turn) yield();
    }
}
static Warp &warp() { return warps[current / 32]; }
static void meet_warp() { meet(warp(), count - current % count / 32 * 32 < 32 ? count % 32 : 32); }
#define XPURT_CLUSTER_MEET() emulator::meet(emulator::cluster_meeting, emulator::count *emulator::cluster)
#define XPURT_CLUSTER_BYTES emulator::apart
#define XPURT_CLUSTER_RANK (emulator::current / emulator::count)

static void wrong(const char *what) {
    fprintf(stderr, "emulator: %s\n", what);
    abort();
}
static unsigned char *at(unsigned place, unsigned bytes) {
    if (place % bytes) wrong("an access to shared memory is not aligned");
    if ((long)place + bytes > shared_bytes) wrong("an access beyond shared memory");
    return shared + place;
}

static void (*entry)(void **);
static void **arguments;
static void start() {
    entry(arguments);
    threads[current].done = true;
    ++progress;
    yield();
}

}  // namespace emulator

static thread_local emulator::Three threadIdx, blockIdx, blockDim, gridDim;

namespace emulator {

// The blocks of a cluster from blockIdx on.
static void run_cluster(unsigned seed) {
    const int all = count * cluster, first_block = blockIdx.x;
    memset(memory, 0xff, cluster * apart);
    for (Meeting &m : block_meetings) m = {};
    cluster_meeting = {};
    for (Warp &w : warps) w = {};
    for (int i = 0; i < all; ++i) {
        Thread &t = threads[i];
        t.done = false;
        t.groups.clear();
        t.open.clear();
        getcontext(&t.context);
        t.context.uc_stack.ss_sp = t.stack.data();
        t.context.uc_stack.ss_size = t.stack.size();
        t.context.uc_link = &scheduler;
        makecontext(&t.context, start, 0);
    }
    for (int left = all, idle = 0; left > 0;) {
        const unsigned long before = progress;
        const int first = rand_r(&seed) % all;
        left = 0;
        for (int n = 0; n < all; ++n) {
            const int i = (first + n) % all;
            if (threads[i].done) continue;
            current = i;
            threadIdx.x = i % count;
            blockIdx.x = first_block + i / count;
            shared = memory + i / count * apart;
            swapcontext(&scheduler, &threads[i].context);
            left += !threads[i].done;
        }
        idle = progress == before ? idle + 1 : 0;
        if (idle > 2) wrong("threads wait for a barrier that the others do not reach");
    }
}

}  // namespace emulator

// What the prelude asks of whoever compiles it without a GPU.
namespace host {
static inline float widen_f16(uint16_t h) { _Float16 x; memcpy(&x, &h, 2); return (float)x; }
static inline uint16_t narrow_f16(float x) { const _Float16 y = (_Float16)x; uint16_t h; memcpy(&h, &y, 2); return h; }
}  // namespace host

#define __syncthreads() emulator::meet(emulator::block_meetings[emulator::current / emulator::count], emulator::count)
#define __syncwarp(...) emulator::meet_warp()
static inline float __uint_as_float(unsigned x) { float y; memcpy(&y, &x, 4); return y; }
static inline unsigned __float_as_uint(float x) { unsigned y; memcpy(&y, &x, 4); return y; }
template <class T>
static inline T __ldcg(const T *p) { return *p; }
static inline void __threadfence() {}
static inline void __threadfence_system() {}
template <class T>
static inline T atomicAdd(T *p, T more) { const T old = *p; *p = old + more; return old; }
template <class T>
static inline T atomicCAS(T *p, T from, T to) { const T old = *p; if (old == from) *p = to; return old; }
template <class T>
static inline T emulated_shuffle(T x, int from) {
    static_assert(sizeof(T) % 4 == 0 && sizeof(T) <= 8, "");
    emulator::Warp &w = emulator::warp();
    memcpy(w.slot[emulator::current % 32], &x, sizeof x);
    emulator::meet_warp();
    memcpy(&x, w.slot[from % 32], sizeof x);
    emulator::meet_warp();
    return x;
}
template <class T>
static inline T __shfl_xor_sync(unsigned, T x, int mask) { return emulated_shuffle(x, (emulator::current % 32) ^ mask); }
template <class T>
static inline T __shfl_sync(unsigned, T x, int from) { return emulated_shuffle(x, from); }
static inline bool __any_sync(unsigned, bool x) {
    unsigned any = 0;
    emulator::Warp &w = emulator::warp();
    w.slot[emulator::current % 32][0] = x;
    emulator::meet_warp();
    for (int i = 0; i < 32; ++i) any |= w.slot[i][0];
    emulator::meet_warp();
    return any != 0;
}

static inline int __syncthreads_and(int x) {
    static int none;
    __syncthreads();
    if (!x) none = 1;
    __syncthreads();
    const int all = !none;
    __syncthreads();
    none = 0;
    return all;
}

namespace tensor {

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

struct Bf16 {
    static float wide(u16 x) { return __uint_as_float((u32)x << 16); }
    static float low(u32 pair) { return wide((u16)pair); }
    static float high(u32 pair) { return wide((u16)(pair >> 16)); }
    static u32 narrow(float x) {
        const u32 bits = __float_as_uint(x);
        if (x != x) return 0x7fff;
        return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    }
    static u32 pack(float low, float high) { return narrow(low) | narrow(high) << 16; }
};
struct F16 {
    static float wide(u16 x) { _Float16 y; memcpy(&y, &x, 2); return (float)y; }
    static float low(u32 pair) { return wide((u16)pair); }
    static float high(u32 pair) { return wide((u16)(pair >> 16)); }
    static u32 narrow(float x) { const _Float16 y = (_Float16)x; u16 z; memcpy(&z, &y, 2); return z; }
    static u32 pack(float low, float high) { return narrow(low) | narrow(high) << 16; }
};

#define DYNAMIC_SMEM(name) unsigned char *const name = emulator::shared
static u32 smem_addr(const void *p) { return (u32)((const unsigned char *)p - emulator::shared); }

static void cp_async_16(u32 to, const void *from, bool there) {
    if (there && (uintptr_t)from % 16) emulator::wrong("a copy of 16 bytes from an odd address");
    emulator::threads[emulator::current].open.push_back({to, from, there});
}
static void cp_async_commit() {
    emulator::Thread &t = emulator::threads[emulator::current];
    t.groups.push_back(t.open);
    t.open.clear();
}
template <int pending>
static void cp_async_wait() {
    emulator::Thread &t = emulator::threads[emulator::current];
    while ((int)t.groups.size() > pending) {
        for (const emulator::Copy &c : t.groups.front())
            c.there ? memcpy(emulator::at(c.to, 16), c.from, 16) : memset(emulator::at(c.to, 16), 0, 16);
        t.groups.erase(t.groups.begin());
    }
}

static void matrices(u32 (&r)[4], u32 from, bool transposed) {
    emulator::Warp &w = emulator::warp();
    const int lane = emulator::current % 32;
    w.slot[lane][0] = from;
    emulator::meet_warp();
    for (int m = 0; m < 4; ++m) {
        u16 two[2];
        for (int e = 0; e < 2; ++e) {
            const int row = transposed ? lane % 4 * 2 + e : lane / 4, column = transposed ? lane / 4 : lane % 4 * 2 + e;
            memcpy(&two[e], emulator::at(w.slot[m * 8 + row][0], 16) + column * 2, 2);
        }
        r[m] = two[0] | (u32)two[1] << 16;
    }
    emulator::meet_warp();
}
static void ldmatrix_x4(u32 (&r)[4], u32 from) { matrices(r, from, false); }
static void ldmatrix_x4_trans(u32 (&r)[4], u32 from) { matrices(r, from, true); }

static u32 movmatrix_trans(u32 pair) {
    emulator::Warp &w = emulator::warp();
    const int lane = emulator::current % 32;
    w.slot[lane][0] = pair;
    emulator::meet_warp();
    u32 two[2];
    for (int e = 0; e < 2; ++e) two[e] = w.slot[(lane % 4 * 2 + e) * 4 + lane / 8][0] >> lane / 4 % 2 * 16 & 0xffff;
    emulator::meet_warp();
    return two[0] | two[1] << 16;
}

template <class T>
static void mma_m16n8k16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    emulator::Warp &w = emulator::warp();
    const int lane = emulator::current % 32;
    for (int i = 0; i < 4; ++i) w.slot[lane][i] = a[i];
    w.slot[lane][4] = b0;
    w.slot[lane][5] = b1;
    emulator::meet_warp();
    for (int e = 0; e < 4; ++e) {
        const int row = lane / 4 + e / 2 * 8, column = lane % 4 * 2 + e % 2;
        float sum = 0;
        for (int k = 0; k < 16; ++k) {
            const u32 pa = w.slot[row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2];
            const u32 pb = w.slot[column * 4 + k % 8 / 2][4 + k / 8];
            sum += (k % 2 ? T::high(pa) : T::low(pa)) * (k % 2 ? T::high(pb) : T::low(pb));
        }
        d[e] += sum;
    }
    emulator::meet_warp();
}

#define MASKED_SCORE (-__builtin_inff())
static float exp2(float x) { return __builtin_exp2f(x); }

struct Quad {
    u32 x[4];
};
static Quad load16(const void *from) {
    if ((uintptr_t)from % 16) emulator::wrong("a load of 16 bytes from an odd address");
    Quad q;
    memcpy(&q, from, 16);
    return q;
}
static Quad ld_streaming_16(const void *from) { return load16(from); }

}  // namespace tensor

// A kernel's arguments from an array of pointers.
template <class... A, size_t... I>
static void emulated_call(void (*kernel)(A...), void **a, std::index_sequence<I...>) {
    kernel((A)a[I]...);
}
template <class... A>
static void emulated_call(void (*kernel)(A...), void **a) {
    emulated_call(kernel, a, std::index_sequence_for<A...>());
}

// What the next launch may read only after its turn has come.
extern "C" void arrives_late(void *at, const void *value, long bytes) {
    memset(at, 0xff, bytes);
    emulator::late.push_back({(unsigned char *)at, (const unsigned char *)value, bytes});
}

// Every block of the grid, one cluster after the other.
extern "C" void emulate(void (*kernel)(void **), void **args, const int *grid, int block, int blocks, int bytes, unsigned seed) {
    using namespace emulator;
    entry = kernel;
    arguments = args;
    count = block;
    shared_bytes = bytes;
    cluster = blocks;
    apart = (bytes + 2047) / 1024 * 1024;
    memory = (unsigned char *)aligned_alloc(1024, blocks * apart);
    threads.clear();
    threads.resize(block * blocks);
    for (Thread &t : threads) t.stack.resize(128 * 1024);
    warps.resize((block + 31) / 32 * blocks);
    block_meetings.resize(blocks);
    if (blocks > 1 && (block % 32 || grid[0] % blocks)) wrong("a cluster that is not whole");
    blockDim.x = block;
    blockDim.y = blockDim.z = 1;
    gridDim.x = grid[0], gridDim.y = grid[1], gridDim.z = grid[2];
    for (blockIdx.z = 0; blockIdx.z < grid[2]; ++blockIdx.z)
        for (blockIdx.y = 0; blockIdx.y < grid[1]; ++blockIdx.y)
            for (int x = 0; x < grid[0]; x += blocks) blockIdx.x = x, run_cluster(seed++);
    if (!late.empty()) wrong("a launch never waits for its turn");
    free(memory);
}
