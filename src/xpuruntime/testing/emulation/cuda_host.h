// cuda_host: enough of CUDA C++ to run generated kernels on a CPU, one block at a time, so that machines without a GPU can check them.
//
// The threads of a block take turns. Where they meet (__syncthreads, shuffles) each is a context of its own that waits for the others;
// a kernel in which they never meet runs its threads one after another. Tensor cores: cuda_tensor.h.
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#define __global__
#define __device__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __shared__ static thread_local
#define __align__(n) __attribute__((aligned(n)))

struct three { unsigned x, y, z; };
static thread_local three threadIdx, blockIdx, blockDim, gridDim;

#define FUNCTION(NAME)                 \
    extern "C" double NAME(double);    \
    extern "C" float NAME##f(float);   \
    static inline float NAME(float x) { return NAME##f(x); }
FUNCTION(exp) FUNCTION(exp2) FUNCTION(expm1) FUNCTION(log) FUNCTION(log2) FUNCTION(log10) FUNCTION(log1p) FUNCTION(sqrt)
FUNCTION(sin) FUNCTION(cos) FUNCTION(tan) FUNCTION(asin) FUNCTION(acos) FUNCTION(atan) FUNCTION(sinh) FUNCTION(cosh) FUNCTION(tanh)
FUNCTION(asinh) FUNCTION(acosh) FUNCTION(atanh) FUNCTION(erf) FUNCTION(erfc) FUNCTION(floor) FUNCTION(ceil) FUNCTION(trunc) FUNCTION(rint)
#undef FUNCTION
#define FUNCTION(NAME)                        \
    extern "C" double NAME(double, double);   \
    extern "C" float NAME##f(float, float);   \
    static inline float NAME(float x, float y) { return NAME##f(x, y); }
FUNCTION(pow) FUNCTION(fmod) FUNCTION(atan2) FUNCTION(copysign)
#undef FUNCTION
static inline bool isnan(float x) { return x != x; }
static inline bool isnan(double x) { return x != x; }
static inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
static inline double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
static inline float fmaxf(float a, float b) { return __builtin_fmaxf(a, b); }
static inline float fminf(float a, float b) { return __builtin_fminf(a, b); }
static inline float __fdividef(float a, float b) { return a / b; }
template <class T> static inline T __ldg(const T *p) { return *p; }
template <class T> static inline T __ldcg(const T *p) { return *p; }
static inline void __threadfence() { __sync_synchronize(); }
static inline void __threadfence_system() { __sync_synchronize(); }
template <class T> static inline T atomicCAS(T *p, T have, T want) { return __sync_val_compare_and_swap(p, have, want); }
template <class T> static inline T atomicAdd(T *p, T more) {
    if constexpr ((T)0.5f == 0) return __sync_fetch_and_add(p, more);  // blocks of a launch may run on several threads
    const T old = *p;
    *p = old + more;
    return old;
}
static inline float __int_as_float(int x) { float y; memcpy(&y, &x, 4); return y; }
static inline int __float_as_int(float x) { int y; memcpy(&y, &x, 4); return y; }

static inline float __uint_as_float(unsigned x) { float y; memcpy(&y, &x, 4); return y; }
static inline unsigned __float_as_uint(float x) { unsigned y; memcpy(&y, &x, 4); return y; }

namespace host {

// IEEE 754 binary16, by arithmetic on float32's bits.
static inline float widen_f16(uint16_t h) {
    const uint32_t u = h, scaled = __float_as_uint(__uint_as_float((u & 0x7fffu) << 13) * 0x1p112f);
    const uint32_t size = (u & 0x7c00u) == 0x7c00u ? ((u & 0x7fffu) << 13) | 0x7f800000u : scaled;
    return __uint_as_float(size | ((u & 0x8000u) << 16));
}
static inline uint16_t narrow_f16(float x) {
    const uint32_t u = __float_as_uint(x), size = u & 0x7fffffffu, sign = (u >> 16) & 0x8000u;
    if (size > 0x7f800000u) return (uint16_t)(0x7e00u | sign);
    if (size >= 0x477ff000u) return (uint16_t)(0x7c00u | sign);
    if (size < 0x38800000u) return (uint16_t)((__float_as_uint(__uint_as_float(size) + 0.5f) - 0x3f000000u) | sign);
    return (uint16_t)(((size - 0x38000000u + 0xfffu + ((size >> 13) & 1u)) >> 13) | sign);
}

enum State { RUNS, AT_WARP, AT_BLOCK, AT_CLUSTER, DONE };
constexpr unsigned MOST = 4096;  // threads that run at once: a block, or all of a cluster's
constexpr size_t STACK = 64 << 10;
struct Block {
    ucontext_t home, at[MOST];
    State state[MOST];
    uint64_t slot[MOST];
    uint32_t wide[MOST][8];
    three index[MOST];
    char *stacks;
    unsigned char *shared;
    unsigned count, blocks, current;
    void (*run)(void *);
    void *with;
};
static thread_local Block *block;

constexpr size_t ROOM = 228 << 10, CLUSTER = 8;  // shared memory of a block: as much as any device has; blocks of a cluster
static inline unsigned rank() { return block->current / block->count; }
// Shared memory whose size the launch gives.
static inline unsigned char *dynamic() { return block->shared + rank() * ROOM; }
static void enter() {
    block->run(block->with);
    block->state[block->current] = DONE;
    swapcontext(&block->at[block->current], &block->home);
}
static inline void meet(State at) {
    const unsigned me = block->current;
    block->state[me] = at;
    swapcontext(&block->at[me], &block->home);
}
// Those that wait go on when everybody who is not done waits for the same.
static bool release(unsigned from, unsigned to, State at) {
    bool any = false;
    for (unsigned i = from; i < to; ++i) {
        if (block->state[i] != at && block->state[i] != DONE) return false;
        any |= block->state[i] == at;
    }
    for (unsigned i = from; any && i < to; ++i)
        if (block->state[i] == at) block->state[i] = RUNS;
    return any;
}
static bool run_meeting(unsigned count, unsigned blocks, void (*run)(void *), void *with) {
    if (!block) {
        constexpr size_t before = MOST * STACK + CLUSTER * ROOM;
        char *const room = (char *)mmap(nullptr, before + sizeof(Block), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        block = (Block *)(room + before);
        block->stacks = room;
        block->shared = (unsigned char *)room + MOST * STACK;
    }
    Block &b = *block;
    const unsigned all = count * blocks, first = blockIdx.x;
    if (all > MOST || blocks > CLUSTER) return false;
    b.count = count, b.blocks = blocks, b.run = run, b.with = with;
    for (unsigned i = 0; i < all; ++i) {
        getcontext(&b.at[i]);
        b.at[i].uc_stack.ss_sp = b.stacks + i * STACK;
        b.at[i].uc_stack.ss_size = STACK;
        b.at[i].uc_link = nullptr;
        makecontext(&b.at[i], enter, 0);
        b.state[i] = RUNS;
        b.index[i] = {i % count % blockDim.x, i % count / blockDim.x % blockDim.y, i % count / blockDim.x / blockDim.y};
    }
    for (;;) {
        bool ran = false;
        for (unsigned i = 0; i < all; ++i)
            if (b.state[i] == RUNS) {
                ran = true, b.current = i, threadIdx = b.index[i], blockIdx.x = first + i / count;
                swapcontext(&b.home, &b.at[i]);
            }
        if (ran) continue;
        bool any = false;
        for (unsigned from = 0; from < all; from += count)
            for (unsigned w = 0; w < count; w += 32) any |= release(from + w, from + (w + 32 < count ? w + 32 : count), AT_WARP);
        for (unsigned from = 0; !any && from < all; from += count) any = release(from, from + count, AT_BLOCK);
        if (any || release(0, all, AT_CLUSTER)) continue;
        for (unsigned i = 0; i < all; ++i)
            if (b.state[i] != DONE) return false;  // some wait for others that never come
        return true;
    }
}

template <class T> static inline T exchange(T v, unsigned lane) {  // another lane's value
    const unsigned me = block->current, from = me / 32 * 32 + lane % 32;
    memcpy(&block->slot[me], &v, sizeof v);
    meet(AT_WARP);
    T got;
    memcpy(&got, &block->slot[from < block->count * block->blocks ? from : me], sizeof got);
    meet(AT_WARP);
    return got;
}

// Blocks begin to end of a launch. Arguments are pointers, then numbers of eight bytes.
template <class A> static inline A argument(void *const *args, const uint64_t *params, int at, int pointers) {
    A a;
    if (at < pointers) memcpy(&a, &args[at], sizeof a);
    else memcpy(&a, &params[at - pointers], sizeof a);
    return a;
}
template <class T> constexpr int is_pointer = 0;
template <class T> constexpr int is_pointer<T *> = 1;
template <int... I> struct places {};
template <int N, int... I> struct up_to : up_to<N - 1, N - 1, I...> {};
template <int... I> struct up_to<0, I...> { typedef places<I...> type; };
template <class... A> struct Call {
    void (*f)(A...);
    void *const *args;
    const uint64_t *params;
    template <int... I> void go(places<I...>) const {
        constexpr int pointers = (0 + ... + is_pointer<A>);
        f(argument<A>(args, params, I, pointers)...);
    }
    static void one(void *self) { ((const Call *)self)->go(typename up_to<sizeof...(A)>::type()); }
};
template <class... A>
static bool launch(void (*f)(A...), three grid, three threads, bool meets, unsigned cluster, void *const *args, const void *params, int64_t begin, int64_t end) {
    Call<A...> call = {f, args, (const uint64_t *)params};
    const unsigned count = threads.x * threads.y * threads.z;
    gridDim = grid, blockDim = threads;
    for (int64_t at = begin; at < end; ++at) {
        blockIdx = {(unsigned)(at % grid.x), (unsigned)(at / grid.x % grid.y), (unsigned)(at / grid.x / grid.y)};
        if (meets) {  // the first block of a cluster represents all of them
            if (at % cluster == 0 && !run_meeting(count, cluster, Call<A...>::one, &call)) return false;
            continue;
        }
        for (unsigned i = 0; i < count; ++i) {
            threadIdx = {i % threads.x, i / threads.x % threads.y, i / threads.x / threads.y};
            Call<A...>::one(&call);
        }
    }
    return true;
}

}  // namespace host

#define XPURT_CLUSTER_MEET() host::meet(host::AT_CLUSTER)
#define XPURT_CLUSTER_BYTES host::ROOM
#define XPURT_CLUSTER_RANK (int)host::rank()
static inline void __syncthreads() { host::meet(host::AT_BLOCK); }
static inline int __syncthreads_and(int v) {
    host::block->slot[host::block->current] = v != 0;
    host::meet(host::AT_BLOCK);
    int all = 1;
    const unsigned first = host::rank() * host::block->count;
    for (unsigned i = 0; i < host::block->count; ++i) all &= (int)host::block->slot[first + i];
    host::meet(host::AT_BLOCK);
    return all;
}
static inline void __syncwarp(unsigned = 0) { host::meet(host::AT_WARP); }
static inline bool __any_sync(unsigned, bool x) {
    const unsigned me = host::block->current, first = me / 32 * 32;
    host::block->slot[me] = x;
    host::meet(host::AT_WARP);
    bool any = false;
    for (unsigned i = first; i < first + 32 && i < host::block->count * host::block->blocks; ++i) any |= host::block->slot[i] != 0;
    host::meet(host::AT_WARP);
    return any;
}
template <class T> static inline T __shfl_sync(unsigned, T v, int lane) { return host::exchange(v, lane); }
template <class T> static inline T __shfl_xor_sync(unsigned, T v, int mask) { return host::exchange(v, host::block->current % 32 ^ mask); }
template <class T> static inline T __shfl_down_sync(unsigned, T v, int by) {
    const unsigned lane = host::block->current % 32 + by;
    return host::exchange(v, lane < 32 ? lane : host::block->current % 32);
}
