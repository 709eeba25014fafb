// prelude: types, loads and stores of every dtype, conversions and selection, under the names of the C++ prelude.
//
// No header is included. A value is one scalar: N is 1 in every template that takes N lanes. The storage types bf16 and f16 compute in float.
// The C++ parts compile against this prelude without change.

#if defined(__CUDACC_RTC__)
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
#endif
struct bf16 { uint16_t bits; };
struct f16 { uint16_t bits; };

#define INLINE static __device__ __forceinline__
#define INLINE_MEMBER __device__ __forceinline__
#define RESTRICT __restrict__
#define VECTOR_BYTES 4
#ifndef DYNAMIC_SMEM  // the block's dynamic shared memory, 1024-byte aligned
#define DYNAMIC_SMEM(name) extern __shared__ __align__(1024) unsigned char name[]
#endif

#if defined(__CUDACC_RTC__)  // names of compilers' builtins that the C++ parts use
#define __builtin_memcpy memcpy
#define __builtin_inff() __builtin_bit_cast(float, 0x7f800000)
#define __builtin_inf() __builtin_bit_cast(double, 0x7ff0000000000000ll)
#define __builtin_nanf(text) __builtin_bit_cast(float, 0x7fc00000)
#define __builtin_nan(text) __builtin_bit_cast(double, 0x7ff8000000000000ll)
#define __builtin_signbit(x) signbit(x)
#define __builtin_constant_p(x) false
#endif

template <class V> struct halves;  // of vectors, in the C++ parts: a thread has one lane

// Programmatic dependent launch (PTX ISA, "griddepcontrol"). After `griddep_launch_dependents` the next launch may start. After `griddep_wait`
// the previous launch is complete and its writes are visible. Between the two a kernel may read only memory that no launch writes: weights.
// Every thread waits, even one that reads nothing, so that completion of a launch implies completion of all launches before it.
INLINE void griddep_launch_dependents() {
#if defined(__CUDACC_RTC__) && SM >= 90
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}
INLINE void griddep_wait() {
#if defined(__CUDACC_RTC__) && SM >= 90
    asm volatile("griddepcontrol.wait;" ::: "memory");
#elif defined(XPURT_GRIDDEP_WAIT)  // an emulator that checks the order
    XPURT_GRIDDEP_WAIT();
#endif
}

INLINE void griddep_sync() {
    griddep_launch_dependents();
    griddep_wait();
}

// ── scalars where the C++ prelude has vectors ──

template <class T, int N> struct vec_;
template <class T> struct vec_<T, 1> { typedef T type; };
template <class T, int N> using vec = typename vec_<T, N>::type;
template <int N> struct boolean_;
template <> struct boolean_<1> { typedef bool type; };
template <int N> using boolean = typename boolean_<N>::type;
template <class V> struct bare_ { typedef V type; };
template <class V> struct bare_<V &> { typedef V type; };
template <class V> struct bare_<const V &> { typedef V type; };
template <class V> struct bare_<const V> { typedef V type; };
template <class V> using elem = typename bare_<V>::type;
template <class V> constexpr int lanes = 1;
template <class V, class T> using like = T;

template <int bytes> struct bits_;
template <> struct bits_<1> { typedef int8_t s; typedef uint8_t u; };
template <> struct bits_<2> { typedef int16_t s; typedef uint16_t u; };
template <> struct bits_<4> { typedef int32_t s; typedef uint32_t u; };
template <> struct bits_<8> { typedef int64_t s; typedef uint64_t u; };
template <class V> using ints = typename bits_<sizeof(V)>::s;
template <class V> using uints = typename bits_<sizeof(V)>::u;

template <class A, class B> struct same_ { static constexpr bool value = false; };
template <class A> struct same_<A, A> { static constexpr bool value = true; };
template <class A, class B> constexpr bool same = same_<A, B>::value;
template <class V> constexpr bool is_float = same<elem<V>, float> || same<elem<V>, double>;
template <class V> constexpr bool is_signed = elem<V>(-1) < elem<V>(1);

template <class To, class From> INLINE To bitcast(From v) {
    static_assert(sizeof(To) == sizeof(From), "a bitcast keeps the size");
    To to;
    __builtin_memcpy(&to, &v, sizeof to);
    return to;
}
struct true_type { static constexpr bool value = true; };  // compile-time flags for generic lambdas
struct false_type { static constexpr bool value = false; };
template <class V> INLINE V splat(V x) { return x; }
template <class T, class V> INLINE T raw(V v) { return (T)v; }
template <int N, class T> INLINE T number(T x) { return x; }
template <class V, class F> INLINE V lanewise(F f, V a) { return f(a); }
template <class V, class F> INLINE V lanewise(F f, V a, V b) { return f(a, b); }
template <class V, class F> INLINE V across(V v, F f) { return v; }
template <class V> INLINE V sum_across(V v) { return v; }

INLINE bool truth(bool m) { return m; }
template <class V, class M> INLINE bool mask(M m) { return (bool)m; }
template <class M, class V> INLINE V select(M m, V a, V b) { return m ? a : b; }
INLINE bool negated(bool m) { return !m; }

// ── narrow floats: to nearest, ties to even; a NaN stays one ──

template <int N = 1> INLINE float widen_bf16(uint16_t h) { return bitcast<float>((uint32_t)h << 16); }
template <int N = 1> INLINE uint16_t narrow_bf16(float x) {
#if defined(__CUDACC_RTC__)
    uint16_t h;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(x));
    return h;
#else
    const uint32_t u = bitcast<uint32_t>(x);
    return x != x ? 0x7fff : (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
#endif
}
template <int N = 1> INLINE float widen_f16(uint16_t h) {
#if defined(__CUDACC_RTC__)
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h));
    return x;
#else
    return host::widen_f16(h);
#endif
}
template <int N = 1> INLINE uint16_t narrow_f16(float x) {
#if defined(__CUDACC_RTC__)
    uint16_t h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
    return h;
#else
    return host::narrow_f16(x);
#endif
}

// ── storage ──

template <class S> struct storage_ { typedef S compute; };
template <> struct storage_<bf16> { typedef float compute; };
template <> struct storage_<f16> { typedef float compute; };
template <class S, int N = 1> using loaded = typename storage_<S>::compute;
template <class S> struct bits_of_ { typedef S type; };
template <> struct bits_of_<bf16> { typedef uint16_t type; };
template <> struct bits_of_<f16> { typedef uint16_t type; };
template <> struct bits_of_<bool> { typedef uint8_t type; };

template <int N, class S> INLINE loaded<S> decode(typename bits_of_<S>::type r, const S *) {
    if constexpr (same<S, bf16>) return widen_bf16(r);
    else if constexpr (same<S, f16>) return widen_f16(r);
    else if constexpr (same<S, bool>) return r != 0;
    else return r;
}
template <int N, class S> INLINE typename bits_of_<S>::type encode(loaded<S> v, const S *) {
    if constexpr (same<S, bf16>) return narrow_bf16(v);
    else if constexpr (same<S, f16>) return narrow_f16(v);
    else if constexpr (same<S, bool>) return v ? 1 : 0;
    else return v;
}

template <int N, class S> INLINE loaded<S> load(const S *p, int64_t n = 1) {
    return decode<1>(*(const typename bits_of_<S>::type *)p, p);
}
template <int N, class S> INLINE void store(S *p, loaded<S> v, int64_t n = 1) {
    *(typename bits_of_<S>::type *)p = encode<1>(v, (const S *)p);
}
template <int N, class S> INLINE loaded<S> gather(const S *p, int64_t stride, int64_t n = 1) { return load<1>(p); }
template <int N, class S> INLINE void scatter(S *p, int64_t stride, loaded<S> v, int64_t n = 1) { store<1>(p, v); }
template <int N, class S> INLINE loaded<S> broadcast(const S *p) { return load<1>(p); }

// ── vectorized access: several elements per thread ──

// N contiguous elements, as bits. `whole`: they are aligned for one vector access of up to 16 bytes.
template <class S, int N> struct alignas(sizeof(S) * N < 16 ? sizeof(S) * N : 16) pack { typename bits_of_<S>::type at[N]; };
template <int N, class S> INLINE pack<S, N> fetch(const S *p, bool whole, int n = N) {
    if (whole && n >= N) return *(const pack<S, N> *)p;
    pack<S, N> r = {};
#pragma unroll
    for (int i = 0; i < N; ++i)
        if (i < n) r.at[i] = ((const typename bits_of_<S>::type *)p)[i];
    return r;
}
template <int N, class S> INLINE void put(S *p, const pack<S, N> &r, bool whole, int n = N) {
    if (whole && n >= N) {
        *(pack<S, N> *)p = r;
        return;
    }
#pragma unroll
    for (int i = 0; i < N; ++i)
        if (i < n) ((typename bits_of_<S>::type *)p)[i] = r.at[i];
}
// The same elements as compute values; 16-bit types convert in pairs.
template <class S, int N> struct unpacked { loaded<S> at[N]; };
template <class S, int N> INLINE unpacked<S, N> decoded(const pack<S, N> &r) {
    unpacked<S, N> v;
    if constexpr (same<S, bf16> && N % 2 == 0) {
        uint32_t words[N / 2];
        __builtin_memcpy(words, r.at, sizeof words);
#pragma unroll
        for (int i = 0; i < N / 2; ++i) {
            v.at[2 * i] = bitcast<float>(words[i] << 16);
            v.at[2 * i + 1] = bitcast<float>(words[i] & 0xffff0000u);
        }
    } else {
#pragma unroll
        for (int i = 0; i < N; ++i) v.at[i] = decode<1>(r.at[i], (const S *)0);
    }
    return v;
}
template <class S, int N> INLINE pack<S, N> encoded(const unpacked<S, N> &v) {
    pack<S, N> r;
#if defined(__CUDACC_RTC__)
    if constexpr ((same<S, bf16> || same<S, f16>) && N % 2 == 0) {
        uint32_t words[N / 2];
#pragma unroll
        for (int i = 0; i < N / 2; ++i) {
            if constexpr (same<S, bf16>) asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(words[i]) : "f"(v.at[2 * i + 1]), "f"(v.at[2 * i]));
            else asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(words[i]) : "f"(v.at[2 * i + 1]), "f"(v.at[2 * i]));
        }
        __builtin_memcpy(r.at, words, sizeof words);
        return r;
    }
#endif
#pragma unroll
    for (int i = 0; i < N; ++i) r.at[i] = encode<1>(v.at[i], (const S *)0);
    return r;
}
template <int N, class S> INLINE bool fits(const S *p) { return (uint64_t)p % alignof(pack<S, N>) == 0; }

// ── conversions, as the IR's cast means them ──

template <class V> INLINE int64_t whole64(V x) {  // NaN and values out of range give the smallest int64
    return x >= (V)-0x1p63 && x < (V)0x1p63 ? (int64_t)x : (int64_t)(-0x7fffffffffffffffll - 1);
}
template <class V> INLINE uint64_t whole_u64(V x) {
    const bool large = x >= (V)0x1p63 && x < (V)0x1p64;
    const uint64_t low = (uint64_t)whole64(large ? x - (V)0x1p63 : x);
    return large ? low + 0x8000000000000000ull : low;
}
// float64 to float32 such that rounding on to a narrower type equals rounding once (Boldo and Melquiond, 2008).
INLINE float round_to_odd(double x) {
    const float near = (float)x;
    const double back = (double)near;
    if (!(back != x) || x != x) return near;
    const uint32_t bits = bitcast<uint32_t>(near);
    const bool away = (back < 0 ? -back : back) > (x < 0 ? -x : x);
    return bitcast<float>((away ? bits - 1u : bits) | 1u);
}
// A value of compute type in storage type To's compute type.
template <class To, class V> INLINE loaded<To> convert(V v) {
    if constexpr (same<To, bool>) return v != (V)0;
    else if constexpr (same<To, bf16> || same<To, f16>) {  // round to To's precision, in float
        float f;
        if constexpr (same<V, double>) f = round_to_odd(v);
        else if constexpr (sizeof(V) > 2 && !is_float<V>) f = round_to_odd((double)v);
        else f = (float)v;
        return decode<1>(encode<1>(f, (const To *)0), (const To *)0);
    } else if constexpr (!is_float<V> || is_float<To>) return (To)v;
    else if constexpr (same<To, uint64_t>) return whole_u64(v);
    else return (To)whole64(v);
}
template <class To> INLINE loaded<To> convert_bool(bool m) {
    if constexpr (same<To, bool>) return m;
    else return (loaded<To>)(m ? 1 : 0);
}

// ── thread index ──

INLINE int64_t global_thread_id() { return (int64_t)blockIdx.x * blockDim.x + threadIdx.x; }
