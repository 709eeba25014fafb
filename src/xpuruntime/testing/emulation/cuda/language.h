// language.h: the words of CUDA C++ that a C++ compiler lacks: keywords, built-in variables, functions of libm, conversions.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sched.h>
#include <sys/mman.h>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __constant__ static
#define __shared__ static  // all of it is in .bss, where shared_memory.h finds it
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))

// Functions and variables of the emulator. They are compiled once, with EMULATOR_ITSELF, and linked with each text of kernels, which only calls them.
// The compiler reports every load and store of a kernel to accesses.h, but none of these.
#define EMULATOR_HIDDEN __attribute__((visibility("hidden")))
#ifdef EMULATOR_ITSELF
#define EMULATOR EMULATOR_HIDDEN __attribute__((noinline))
#define EMULATOR_STATE(TYPE, NAME) EMULATOR_HIDDEN __attribute__((section(".data"))) TYPE NAME = {}  // .bss is shared memory
#else
#define EMULATOR EMULATOR_HIDDEN inline __attribute__((gnu_inline, noinline, no_sanitize("thread")))  // the body is not compiled here
#define EMULATOR_STATE(TYPE, NAME) extern EMULATOR_HIDDEN TYPE NAME
#endif
// Functions that are compiled with the kernels: templates, and those of parts that few kernels use.
#define EMULATOR_HERE static __attribute__((noinline, no_sanitize("thread")))
#define EMULATOR_INLINE static inline __attribute__((always_inline, no_sanitize("thread")))

struct three { unsigned x, y, z; };
// Kernels see constants, so that reading them is not reported. The scheduler writes them by a second name.
#ifdef EMULATOR_ITSELF
#define WORD(NAME) ".globl xpurt_" NAME "\n.hidden xpurt_" NAME "\nxpurt_" NAME ":\n"
asm(".pushsection .data\n.balign 16\n" WORD("built_in") WORD("thread_idx") ".zero 12\n" WORD("block_idx") ".zero 12\n" WORD("block_dim") ".zero 12\n"
    WORD("grid_dim") ".zero 12\n.popsection");
#undef WORD
#endif
#define BUILT_IN extern "C" EMULATOR_HIDDEN
BUILT_IN const three threadIdx asm("xpurt_thread_idx");
BUILT_IN const three blockIdx asm("xpurt_block_idx");
BUILT_IN const three blockDim asm("xpurt_block_dim");
BUILT_IN const three gridDim asm("xpurt_grid_dim");
namespace host {
struct BuiltIn { three thread, block, threads, grid; };
BUILT_IN BuiltIn built_in asm("xpurt_built_in");
}  // namespace host
#undef BUILT_IN

// Where kernels report errors to (part `movement`). It is no shared variable, so it may not be in .bss.
extern "C" __attribute__((section(".data"))) unsigned long long xpurt_report[2];

#define FUNCTION(NAME)                 \
    extern "C" double NAME(double);    \
    extern "C" float NAME##f(float);   \
    static __forceinline__ float NAME(float x) { return NAME##f(x); }
FUNCTION(exp) FUNCTION(exp2) FUNCTION(expm1) FUNCTION(log) FUNCTION(log2) FUNCTION(log10) FUNCTION(log1p) FUNCTION(sqrt)
FUNCTION(sin) FUNCTION(cos) FUNCTION(tan) FUNCTION(asin) FUNCTION(acos) FUNCTION(atan) FUNCTION(sinh) FUNCTION(cosh) FUNCTION(tanh)
FUNCTION(asinh) FUNCTION(acosh) FUNCTION(atanh) FUNCTION(erf) FUNCTION(erfc) FUNCTION(floor) FUNCTION(ceil) FUNCTION(trunc) FUNCTION(rint)
#undef FUNCTION
#define FUNCTION(NAME)                        \
    extern "C" double NAME(double, double);   \
    extern "C" float NAME##f(float, float);   \
    static __forceinline__ float NAME(float x, float y) { return NAME##f(x, y); }
FUNCTION(pow) FUNCTION(fmod) FUNCTION(atan2) FUNCTION(copysign)
#undef FUNCTION
static __forceinline__ bool isnan(float x) { return x != x; }
static __forceinline__ bool isnan(double x) { return x != x; }
static __forceinline__ float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
static __forceinline__ double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
static __forceinline__ float fmaxf(float a, float b) { return __builtin_fmaxf(a, b); }
static __forceinline__ float fminf(float a, float b) { return __builtin_fminf(a, b); }
static __forceinline__ float __fdividef(float a, float b) { return a / b; }
static __forceinline__ float __int_as_float(int x) { float y; memcpy(&y, &x, 4); return y; }
static __forceinline__ int __float_as_int(float x) { int y; memcpy(&y, &x, 4); return y; }
static __forceinline__ float __uint_as_float(unsigned x) { float y; memcpy(&y, &x, 4); return y; }
static __forceinline__ unsigned __float_as_uint(float x) { unsigned y; memcpy(&y, &x, 4); return y; }
static __forceinline__ unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
    const uint64_t bytes = (uint64_t)high << 32 | low;
    unsigned y = 0;
    for (int i = 0; i < 4; ++i) y |= (unsigned)(bytes >> (selector >> 4 * i & 7) * 8 & 255) << 8 * i;
    return y;
}
template <class T> static __forceinline__ T __ldg(const T *p) { return *p; }
template <class T> static __forceinline__ T __ldcg(const T *p) { return *p; }
static __forceinline__ void __threadfence() {}
static __forceinline__ void __threadfence_system() {}

namespace host {

// IEEE 754 binary16, by arithmetic on float32's bits.
static __forceinline__ float widen_f16(uint16_t h) {
    const uint32_t u = h, scaled = __float_as_uint(__uint_as_float((u & 0x7fffu) << 13) * 0x1p112f);
    const uint32_t size = (u & 0x7c00u) == 0x7c00u ? ((u & 0x7fffu) << 13) | 0x7f800000u : scaled;
    return __uint_as_float(size | ((u & 0x8000u) << 16));
}
static __forceinline__ uint16_t narrow_f16(float x) {
    const uint32_t u = __float_as_uint(x), size = u & 0x7fffffffu, sign = (u >> 16) & 0x8000u;
    if (size > 0x7f800000u) return (uint16_t)(0x7e00u | sign);
    if (size >= 0x477ff000u) return (uint16_t)(0x7c00u | sign);
    if (size < 0x38800000u) return (uint16_t)((__float_as_uint(__uint_as_float(size) + 0.5f) - 0x3f000000u) | sign);
    return (uint16_t)(((size - 0x38000000u + 0xfffu + ((size >> 13) & 1u)) >> 13) | sign);
}

}  // namespace host
