// prelude: types, vectors, loads and stores of every dtype, conversions, selection. No header and no library is needed.
//
// A value is a scalar or a GNU vector; one template serves both. Storage types (bf16, f16, bool) differ from the types that
// are computed with: bf16 and f16 compute in float, bool is a mask (vectors: int32 lanes of 0 or -1; scalars: bool).

typedef __INT8_TYPE__ int8_t;
typedef __INT16_TYPE__ int16_t;
typedef __INT32_TYPE__ int32_t;
typedef __INT64_TYPE__ int64_t;
typedef __UINT8_TYPE__ uint8_t;
typedef __UINT16_TYPE__ uint16_t;
typedef __UINT32_TYPE__ uint32_t;
typedef __UINT64_TYPE__ uint64_t;
struct bf16 { uint16_t bits; };
struct f16 { uint16_t bits; };

#define INLINE static inline __attribute__((always_inline))
#define INLINE_MEMBER inline __attribute__((always_inline))
#define RESTRICT __restrict__

// Compilers emit calls of these four; there is no C library here to answer them.
extern "C" {
#define OWN __attribute__((visibility("hidden"), used, optimize("no-tree-loop-distribute-patterns")))
#if defined(__clang__)
#undef OWN
#define OWN __attribute__((visibility("hidden"), used, no_builtin))
#endif
OWN void *memcpy(void *to, const void *from, __SIZE_TYPE__ n) {
#if defined(__x86_64__)
    void *start = to;
    __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(n) : : "memory");
    return start;
#else
    for (__SIZE_TYPE__ i = 0; i < n; ++i) ((char *)to)[i] = ((const char *)from)[i];
    return to;
#endif
}
OWN void *memmove(void *to, const void *from, __SIZE_TYPE__ n) {
    char *t = (char *)to;
    const char *f = (const char *)from;
    if (t < f) for (__SIZE_TYPE__ i = 0; i < n; ++i) t[i] = f[i];
    else for (__SIZE_TYPE__ i = n; i-- > 0;) t[i] = f[i];
    return to;
}
OWN void *memset(void *to, int value, __SIZE_TYPE__ n) {
#if defined(__x86_64__)
    void *start = to;
    __asm__ volatile("rep stosb" : "+D"(to), "+c"(n) : "a"(value) : "memory");
    return start;
#else
    for (__SIZE_TYPE__ i = 0; i < n; ++i) ((char *)to)[i] = (char)value;
    return to;
#endif
}
OWN int memcmp(const void *a, const void *b, __SIZE_TYPE__ n) {
    for (__SIZE_TYPE__ i = 0; i < n; ++i)
        if (((const uint8_t *)a)[i] != ((const uint8_t *)b)[i]) return ((const uint8_t *)a)[i] - ((const uint8_t *)b)[i];
    return 0;
}
}

// ── vectors ──

template <class T, int N> struct vec_ { typedef T type __attribute__((vector_size(N * sizeof(T)))); };
template <class T> struct vec_<T, 1> { typedef T type; };
template <class T, int N> using vec = typename vec_<T, N>::type;  // N lanes of T; one lane is a scalar

template <class T> struct bare_ { typedef T type; };
template <class T> struct bare_<T &> { typedef T type; };
template <class T> struct bare_<const T &> { typedef T type; };
template <class T> struct bare_<const T> { typedef T type; };

template <class V> struct value_ {  // of a vector; scalars below
    typedef typename bare_<decltype((*(V *)0)[0])>::type elem;
    static constexpr int lanes = sizeof(V) / sizeof(elem);
};
#define SCALAR(T) template <> struct value_<T> { typedef T elem; static constexpr int lanes = 1; };
SCALAR(bool) SCALAR(int8_t) SCALAR(int16_t) SCALAR(int32_t) SCALAR(int64_t)
SCALAR(uint8_t) SCALAR(uint16_t) SCALAR(uint32_t) SCALAR(uint64_t) SCALAR(float) SCALAR(double)
#undef SCALAR
template <class V> using elem = typename value_<V>::elem;
template <class V> constexpr int lanes = value_<V>::lanes;
template <class V, class T> using like = vec<T, lanes<V>>;  // V's lanes in another type

template <int bytes> struct bits_;
template <> struct bits_<1> { typedef int8_t s; typedef uint8_t u; };
template <> struct bits_<2> { typedef int16_t s; typedef uint16_t u; };
template <> struct bits_<4> { typedef int32_t s; typedef uint32_t u; };
template <> struct bits_<8> { typedef int64_t s; typedef uint64_t u; };
template <class V> using ints = like<V, typename bits_<sizeof(elem<V>)>::s>;   // integers as wide as V's elements
template <class V> using uints = like<V, typename bits_<sizeof(elem<V>)>::u>;

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
template <class V> INLINE V splat(elem<V> x) {
    if constexpr (lanes<V> == 1) return x;
    else return x - V{};
}
#if defined(__AVX2__) && !defined(__clang__)
typedef char v16qi __attribute__((vector_size(16)));
typedef int v16si __attribute__((vector_size(64)));
#if defined(__AVX512F__)
constexpr int BYTE_LANES = 16;
#else
constexpr int BYTE_LANES = 8;
#endif
// Eight or sixteen bytes as int32, and back without saturation: one instruction, which GCC does not find.
template <class V> INLINE like<V, int32_t> widened_bytes(V v) {
    constexpr bool is_unsigned = elem<V>(-1) > elem<V>(0);
#if defined(__AVX512F__)
    if constexpr (lanes<V> == 16) {
        const v16qi bytes = bitcast<v16qi>(v);
        return is_unsigned ? bitcast<like<V, int32_t>>(__builtin_ia32_pmovzxbd512_mask(bytes, v16si{}, (unsigned short)-1))
                           : bitcast<like<V, int32_t>>(__builtin_ia32_pmovsxbd512_mask(bytes, v16si{}, (unsigned short)-1));
    } else
#endif
    {
        const v16qi bytes = bitcast<v16qi>(vec<int64_t, 2>{bitcast<int64_t>(v), 0});
        return is_unsigned ? bitcast<like<V, int32_t>>(__builtin_ia32_pmovzxbd256(bytes)) : bitcast<like<V, int32_t>>(__builtin_ia32_pmovsxbd256(bytes));
    }
}
#endif
template <class T, class V> INLINE like<V, T> raw(V v) {  // C's conversion, lane by lane
    typedef elem<V> From;
    if constexpr (same<From, T>) return v;
    else if constexpr (lanes<V> == 1) return (T)v;
#if defined(__AVX2__) && !defined(__clang__)
    else if constexpr (sizeof(From) == 1 && sizeof(T) > 2 && (lanes<V> == 8 || lanes<V> == BYTE_LANES)) return raw<T>(widened_bytes(v));
#endif
#if defined(__AVX512F__) && !defined(__clang__)
    else if constexpr (sizeof(T) == 1 && sizeof(From) == 4 && !is_float<V> && lanes<V> == 16)
        return bitcast<like<V, T>>(__builtin_ia32_pmovdb512_mask(bitcast<v16si>(v), v16qi{}, (unsigned short)-1));
#endif
    // Bytes go by way of 16 and 32 bits: compilers have an instruction for each step, and convert all at once lane by lane.
    else if constexpr (sizeof(From) == 1 && sizeof(T) > 2) return raw<T>(raw<int32_t>(__builtin_convertvector(v, like<V, int16_t>)));
    else if constexpr (sizeof(T) == 1 && is_float<V>) return raw<T>(raw<int32_t>(v));
    else if constexpr (sizeof(T) == 1 && sizeof(From) == 4) return raw<T>(__builtin_convertvector(v, like<V, int16_t>));
    else return __builtin_convertvector(v, like<V, T>);
}
template <class V> struct halves { vec<elem<V>, lanes<V> / 2> low, high; };

// Apply a scalar function lane by lane, for functions without a vector form.
template <class V, class F> INLINE V lanewise(F f, V a) {
    if constexpr (lanes<V> == 1) return f(a);
    else {
        V y;
        for (int i = 0; i < lanes<V>; ++i) y[i] = f(a[i]);
        return y;
    }
}
template <class V, class F> INLINE V lanewise(F f, V a, V b) {
    if constexpr (lanes<V> == 1) return f(a, b);
    else {
        V y;
        for (int i = 0; i < lanes<V>; ++i) y[i] = f(a[i], b[i]);
        return y;
    }
}

// ── masks ──

template <int N> struct boolean_ { typedef vec<int32_t, N> type; };
template <> struct boolean_<1> { typedef bool type; };
template <int N> using boolean = typename boolean_<N>::type;  // the one form that bool values have between operations

template <class M> INLINE boolean<lanes<M>> truth(M m) {  // of a comparison, whatever its width
    if constexpr (lanes<M> == 1) return (bool)m;
    else return raw<int32_t>(m);
}
template <class V, class M> INLINE auto mask(M m) {  // as wide as V's elements
    if constexpr (lanes<V> == 1) return (bool)m;
    else return raw<elem<ints<V>>>(m);
}
template <class M, class V> INLINE V select(M m, V a, V b) {
    if constexpr (lanes<V> == 1) return m ? a : b;
    else return mask<V>(m) ? a : b;
}
template <class M> INLINE M negated(M m) {  // of a boolean
    if constexpr (lanes<M> == 1) return !m;
    else return ~m;
}
template <class V> INLINE auto isnan(V x) { return x != x; }

// ── narrow floats ──

template <int N> INLINE vec<float, N> widen_bf16(vec<uint16_t, N> h) {
    return bitcast<vec<float, N>>(raw<uint32_t>(h) << 16);
}
template <int N> INLINE vec<uint16_t, N> narrow_bf16(vec<float, N> x) {  // nearest, ties to even; NaN stays one
#if defined(__AVX512BF16__) && !defined(__clang__)
    if constexpr (N == 16) {  // the instruction flushes subnormal numbers to zero; the integers below keep them
        constexpr int subnormal = 0x20;
        if (__builtin_expect(!__builtin_ia32_fpclassps512_mask(x, subnormal, 0xffff), 1))
            return bitcast<vec<uint16_t, 16>>(__builtin_ia32_cvtneps2bf16_v16sf(x));
    }
#endif
    typedef vec<uint32_t, N> U;
    const U u = bitcast<U>(x);
    const U rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16, quiet = (u >> 16) | 0x40u;
    return raw<uint16_t>(select(x != x, quiet, rounded));
}
template <int N> INLINE vec<float, N> widen_f16(vec<uint16_t, N> h) {
#if defined(__F16C__) && !defined(__clang__)
    typedef short v8hi __attribute__((vector_size(16)));
    typedef short v16hi __attribute__((vector_size(32)));
    if constexpr (N == 8) return __builtin_ia32_vcvtph2ps256(bitcast<v8hi>(h));
#if defined(__AVX512F__)
    if constexpr (N == 16) return __builtin_ia32_vcvtph2ps512_mask(bitcast<v16hi>(h), vec<float, 16>{}, -1, 4);
#endif
#elif defined(__F16C__)
    if constexpr (N > 1) return __builtin_convertvector(bitcast<vec<_Float16, N>>(h), vec<float, N>);
#endif
    typedef vec<uint32_t, N> U;
    const U u = raw<uint32_t>(h);
    // The exponent moves by 2**112, which also makes half's subnormal numbers normal.
    const vec<float, N> scaled = bitcast<vec<float, N>>((u & 0x7fffu) << 13) * 0x1p112f;
    const U size = select((u & 0x7c00u) == 0x7c00u, ((u & 0x7fffu) << 13) | 0x7f800000u, bitcast<U>(scaled));
    return bitcast<vec<float, N>>(size | ((u & 0x8000u) << 16));
}
template <int N> INLINE vec<uint16_t, N> narrow_f16(vec<float, N> x) {  // nearest, ties to even; NaN stays one
#if defined(__F16C__) && !defined(__clang__)
    typedef short v16hi __attribute__((vector_size(32)));
    if constexpr (N == 8) return bitcast<vec<uint16_t, 8>>(__builtin_ia32_vcvtps2ph256(x, 0));
#if defined(__AVX512F__)
    if constexpr (N == 16) return bitcast<vec<uint16_t, 16>>(__builtin_ia32_vcvtps2ph512_mask(x, 0, v16hi{}, -1));
#endif
#elif defined(__F16C__)
    if constexpr (N > 1) return bitcast<vec<uint16_t, N>>(__builtin_convertvector(x, vec<_Float16, N>));
#endif
    typedef vec<uint32_t, N> U;
    typedef vec<float, N> F;
    const U u = bitcast<U>(x), size = u & 0x7fffffffu;
    const U normal = (size - 0x38000000u + 0xfffu + ((size >> 13) & 1u)) >> 13;
    // Adding 0.5 makes the unit in the last place half's smallest subnormal number: the addition rounds.
    const U subnormal = bitcast<U>(bitcast<F>(size) + 0.5f) - 0x3f000000u;
    const U finite = select(size < 0x38800000u, subnormal, normal);
    const U infinite = select(size > 0x7f800000u, 0x7e00u | ((size >> 13) & 0x3ffu), splat<U>(0x7c00u));
    return raw<uint16_t>(select(size >= 0x477ff000u, infinite, finite) | ((u >> 16) & 0x8000u));
}

// ── storage ──

template <class S> struct storage_ { typedef S compute; };
template <> struct storage_<bf16> { typedef float compute; };
template <> struct storage_<f16> { typedef float compute; };
template <class S, int N> struct loaded_ { typedef vec<typename storage_<S>::compute, N> type; };
template <int N> struct loaded_<bool, N> { typedef boolean<N> type; };
template <class S, int N> using loaded = typename loaded_<S, N>::type;  // the result type of a load of N elements of S

template <class S> struct bits_of_ { typedef S type; };
template <> struct bits_of_<bf16> { typedef uint16_t type; };
template <> struct bits_of_<f16> { typedef uint16_t type; };
template <> struct bits_of_<bool> { typedef uint8_t type; };

template <int N, class S> INLINE loaded<S, N> decode(vec<typename bits_of_<S>::type, N> r, const S *) {
    if constexpr (same<S, bf16>) return widen_bf16<N>(r);
    else if constexpr (same<S, f16>) return widen_f16<N>(r);
    else if constexpr (same<S, bool> && N == 1) return r != 0;
    else if constexpr (same<S, bool>) return raw<int32_t>(r) != 0;
    else return r;
}
template <int N, class S> INLINE vec<typename bits_of_<S>::type, N> encode(loaded<S, N> v, const S *) {
    if constexpr (same<S, bf16>) return narrow_bf16<N>(v);
    else if constexpr (same<S, f16>) return narrow_f16<N>(v);
    else if constexpr (same<S, bool> && N == 1) return v ? 1 : 0;
    else if constexpr (same<S, bool>) return raw<uint8_t>(v & 1);
    else return v;
}

template <class B, int N> struct row { B at[N]; };

// The first n of N elements of B, zeros behind them; and back. With AVX-512 by masks, with AVX2 loads of words by masks, else one by one:
// then the load of the vector waits for the stores of its elements.
#if defined(__AVX2__) && !defined(__clang__)
typedef int v4si __attribute__((vector_size(16)));
typedef int v8si __attribute__((vector_size(32)));
typedef long long v4di __attribute__((vector_size(32)));
#endif
#if defined(__AVX512BW__) && defined(__AVX512VL__) && !defined(__clang__)
#define MASKED
typedef short v8hi __attribute__((vector_size(16)));
typedef short v16hi __attribute__((vector_size(32)));
typedef short v32hi __attribute__((vector_size(64)));
typedef long long v8di __attribute__((vector_size(64)));
#endif
template <int N, class B> INLINE vec<B, N> load_first(const B *p, int64_t n) {
#if defined(MASKED)
    const unsigned first = (1u << n) - 1;
    constexpr int size = sizeof(B) * 100 + N;
    if constexpr (size == 116) return bitcast<vec<B, N>>(__builtin_ia32_loaddquqi128_mask((const char *)p, v16qi{}, first));
    else if constexpr (size == 208) return bitcast<vec<B, N>>(__builtin_ia32_loaddquhi128_mask((const short *)p, v8hi{}, first));
    else if constexpr (size == 216) return bitcast<vec<B, N>>(__builtin_ia32_loaddquhi256_mask((const short *)p, v16hi{}, first));
    else if constexpr (size == 232) return bitcast<vec<B, N>>(__builtin_ia32_loaddquhi512_mask((const short *)p, v32hi{}, first));
    else if constexpr (size == 404) return bitcast<vec<B, N>>(__builtin_ia32_loaddqusi128_mask((const int *)p, v4si{}, first));
    else if constexpr (size == 408) return bitcast<vec<B, N>>(__builtin_ia32_loaddqusi256_mask((const int *)p, v8si{}, first));
    else if constexpr (size == 416) return bitcast<vec<B, N>>(__builtin_ia32_loaddqusi512_mask((const int *)p, v16si{}, first));
    else if constexpr (size == 804) return bitcast<vec<B, N>>(__builtin_ia32_loaddqudi256_mask((const long long *)p, v4di{}, first));
    else if constexpr (size == 808) return bitcast<vec<B, N>>(__builtin_ia32_loaddqudi512_mask((const long long *)p, v8di{}, first));
    else
#elif defined(__AVX2__) && !defined(__clang__)
    constexpr int size = sizeof(B) * 100 + N;
    if constexpr (size == 404) return bitcast<vec<B, N>>(__builtin_ia32_maskloadd((const v4si *)p, v4si{0, 1, 2, 3} < (int)n));
    else if constexpr (size == 408) return bitcast<vec<B, N>>(__builtin_ia32_maskloadd256((const v8si *)p, v8si{0, 1, 2, 3, 4, 5, 6, 7} < (int)n));
    else if constexpr (size == 804) return bitcast<vec<B, N>>(__builtin_ia32_maskloadq256((const v4di *)p, v4di{0, 1, 2, 3} < (long long)n));
    else
#endif
    {
        row<B, N> r = {};
        for (int64_t i = 0; i < n; ++i) r.at[i] = p[i];
        return bitcast<vec<B, N>>(r);
    }
}
template <int N, class B> INLINE void store_first(B *p, vec<B, N> v, int64_t n) {
#if defined(MASKED)
    const unsigned first = (1u << n) - 1;
    constexpr int size = sizeof(B) * 100 + N;
    if constexpr (size == 116) __builtin_ia32_storedquqi128_mask((char *)p, bitcast<v16qi>(v), first);
    else if constexpr (size == 208) __builtin_ia32_storedquhi128_mask((short *)p, bitcast<v8hi>(v), first);
    else if constexpr (size == 216) __builtin_ia32_storedquhi256_mask((short *)p, bitcast<v16hi>(v), first);
    else if constexpr (size == 232) __builtin_ia32_storedquhi512_mask((short *)p, bitcast<v32hi>(v), first);
    else if constexpr (size == 404) __builtin_ia32_storedqusi128_mask((int *)p, bitcast<v4si>(v), first);
    else if constexpr (size == 408) __builtin_ia32_storedqusi256_mask((int *)p, bitcast<v8si>(v), first);
    else if constexpr (size == 416) __builtin_ia32_storedqusi512_mask((int *)p, bitcast<v16si>(v), first);
    else if constexpr (size == 804) __builtin_ia32_storedqudi256_mask((long long *)p, bitcast<v4di>(v), first);
    else if constexpr (size == 808) __builtin_ia32_storedqudi512_mask((long long *)p, bitcast<v8di>(v), first);
    else
#endif
    {
        const auto r = bitcast<row<B, N>>(v);
        for (int64_t i = 0; i < n; ++i) p[i] = r.at[i];
    }
}

// N elements in a row; with n only the first n of them, and zeros.
template <int N, class S> INLINE loaded<S, N> load(const S *p) {
    typedef typename bits_of_<S>::type B;
    vec<B, N> r;
    __builtin_memcpy(&r, p, N * sizeof(B));
    return decode<N>(r, p);
}
template <int N, class S> INLINE loaded<S, N> load(const S *p, int64_t n) {
    typedef typename bits_of_<S>::type B;
    return decode<N>(load_first<N>((const B *)p, n), p);
}
template <int N, class S> INLINE void store(S *p, loaded<S, N> v) {
    const auto r = encode<N>(v, (const S *)p);
    __builtin_memcpy(p, &r, sizeof r);
}
template <int N, class S> INLINE void store(S *p, loaded<S, N> v, int64_t n) {
    typedef typename bits_of_<S>::type B;
    store_first<N>((B *)p, encode<N>(v, (const S *)p), n);
}
#if defined(__SSSE3__) && !defined(__clang__)
// Every third byte of 22 or 46, such as one channel of 8 or 16 pixels.
template <int N> INLINE vec<char, N> third_bytes(const char *p) {
    typedef vec<char, 16> V;
    constexpr char o = -1;  // leaves a zero
    V a, b, c;
    __builtin_memcpy(&a, p, 16), __builtin_memcpy(&b, p + (N == 8 ? 6 : 15), 16), __builtin_memcpy(&c, p + (N == 8 ? 6 : 30), 16);
    a = __builtin_ia32_pshufb128(a, V{0, 3, 6, 9, 12, 15, o, o, o, o, o, o, o, o, o, o});
    if constexpr (N == 8) {
        a |= __builtin_ia32_pshufb128(b, V{o, o, o, o, o, o, 12, 15, o, o, o, o, o, o, o, o});
        return bitcast<halves<V>>(a).low;
    } else
        return a | __builtin_ia32_pshufb128(b, V{o, o, o, o, o, o, 3, 6, 9, 12, 15, o, o, o, o, o}) |
               __builtin_ia32_pshufb128(c, V{o, o, o, o, o, o, o, o, o, o, o, 3, 6, 9, 12, 15});
}
#endif
// Every second, third or fourth element, by shuffles of whole vectors. The last vector ends with the last element. J is 0, 1 ... N - 1.
template <int... J> struct StridedLanes {
    template <int STRIDE, class B> static INLINE_MEMBER auto load(const B *p) {
        constexpr int N = sizeof...(J);
        vec<B, N> a, b, c, d;
        __builtin_memcpy(&a, p, sizeof a);
        if constexpr (STRIDE == 2) {
            __builtin_memcpy(&b, p + N - 1, sizeof b);
            return __builtin_shufflevector(a, b, (2 * J + (2 * J >= N))...);
        } else {
            __builtin_memcpy(&b, p + N, sizeof b);
            a = __builtin_shufflevector(a, b, (STRIDE * J < 2 * N ? STRIDE * J : 0)...);
            if constexpr (STRIDE == 3) {
                __builtin_memcpy(&c, p + 2 * N - 2, sizeof c);
                return __builtin_shufflevector(a, c, (3 * J < 2 * N ? J : 3 * J - N + 2)...);
            } else {
                __builtin_memcpy(&c, p + 2 * N, sizeof c), __builtin_memcpy(&d, p + 3 * N - 3, sizeof d);
                c = __builtin_shufflevector(c, d, (4 * J < 2 * N ? 0 : 4 * J < 3 * N ? 4 * J - 2 * N : 4 * J - 2 * N + 3)...);
                return __builtin_shufflevector(a, c, (4 * J < 2 * N ? J : N + J)...);
            }
        }
    }
};
template <int N, int... J> struct Strided : Strided<N - 1, N - 1, J...> {};
template <int... J> struct Strided<0, J...> : StridedLanes<J...> {};
// Elements that are stride apart.
template <int N, class S> INLINE loaded<S, N> gather(const S *p, int64_t stride, int64_t n = N) {
    typedef typename bits_of_<S>::type B;
    if constexpr (N >= 4 && N * sizeof(B) >= 16 && N * sizeof(B) <= VECTOR_BYTES && sizeof(B) > 1)
        if (n == N && __builtin_constant_p(stride)) {
            if (stride == 2) return decode<N>(Strided<N>::template load<2>((const B *)p), p);
            if (stride == 3) return decode<N>(Strided<N>::template load<3>((const B *)p), p);
            if (stride == 4) return decode<N>(Strided<N>::template load<4>((const B *)p), p);
        }
#if defined(__SSSE3__) && !defined(__clang__)
    if constexpr ((N == 8 || N == 16) && sizeof(B) == 1)
        if (stride == 3 && n == N) return decode<N>(bitcast<vec<B, N>>(third_bytes<N>((const char *)p)), p);
#endif
    row<B, N> r = {};
    for (int64_t i = 0; i < n; ++i) r.at[i] = ((const B *)p)[i * stride];
    return decode<N>(bitcast<vec<B, N>>(r), p);
}
template <int N, class S> INLINE void scatter(S *p, int64_t stride, loaded<S, N> v, int64_t n = N) {
    typedef typename bits_of_<S>::type B;
    row<B, N> r;
    const auto whole = encode<N>(v, (const S *)p);
    __builtin_memcpy(&r, &whole, sizeof whole);
    for (int64_t i = 0; i < n; ++i) ((B *)p)[i * stride] = r.at[i];
}
// Elements at offsets.
template <int N, class S, class I> INLINE loaded<S, N> gather_at(const S *p, I at) {
    typedef typename bits_of_<S>::type B;
    if constexpr (N == 1) return load<1>(p + at);
#if defined(__AVX512F__) && !defined(__clang__)
    else if constexpr (N == 16 && same<S, float> && same<I, vec<int32_t, 16>>)
        return __builtin_ia32_gathersiv16sf(vec<float, 16>{}, p, at, -1, 4);
#endif
#if defined(__AVX2__) && !defined(__clang__)
    else if constexpr (N == 8 && same<S, float> && same<I, vec<int32_t, 8>>)
        return __builtin_ia32_gathersiv8sf(vec<float, 8>{}, p, at, bitcast<vec<float, 8>>(at == at), 4);
#endif
    else {
        vec<B, N> r;
        for (int i = 0; i < N; ++i) r[i] = ((const B *)p)[at[i]];
        return decode<N>(r, p);
    }
}
// One element in every lane.
template <int N, class S> INLINE loaded<S, N> broadcast(const S *p) {
    if constexpr (N == 1) return load<1>(p);
    else if constexpr (same<S, bool>) return splat<boolean<N>>(load<1>(p) ? -1 : 0);
    else return splat<loaded<S, N>>(load<1>(p));
}
template <int N, class T> INLINE vec<T, N> number(T x) { return splat<vec<T, N>>(x); }

// Whether every lane of a comparison of 32-bit or 64-bit values is true.
template <class M> INLINE bool every(M m) {
#if defined(__x86_64__) && !defined(__clang__)
    typedef float v4sf __attribute__((vector_size(16)));
    typedef float v8sf __attribute__((vector_size(32)));
#endif
    if constexpr (lanes<M> == 1) return m;
#if defined(__x86_64__) && !defined(__clang__)
    else if constexpr (sizeof(M) == 16) return __builtin_ia32_movmskps(bitcast<v4sf>(m)) == 0xf;
#if defined(__AVX__)
    else if constexpr (sizeof(M) == 32) return __builtin_ia32_movmskps256(bitcast<v8sf>(m)) == 0xff;
#endif
#if defined(__AVX512DQ__)
    else if constexpr (sizeof(M) == 64) return __builtin_ia32_cvtd2mask512(bitcast<v16si>(m)) == 0xffff;
#endif
#endif
    else {
        bool all = true;
        for (int i = 0; i < lanes<M>; ++i) all &= m[i] != 0;
        return all;
    }
}

// ── conversions, as the IR's cast means them ──

template <class V> INLINE auto low_bits(V x) {  // of float32: the low 32 bits of the whole number, as wrapping from int64 gives
    typedef ints<V> I;
    typedef uints<V> U;
    const U u = bitcast<U>(x);
    const I shift = bitcast<I>((u >> 23) & 0xffu) - 150;  // from 2**31 on the fraction's bits end left of the point
    const I inside = select(shift < 32, shift, splat<I>(0)) & 31;
    const U size = select(shift < 32, ((u & 0x7fffffu) | 0x800000u) << bitcast<U>(inside), splat<U>(0));
    const U wide = select(shift < 40, size, splat<U>(0));
    return bitcast<I>(select(x < 0, 0u - wide, wide));
}
template <class V> INLINE like<V, int64_t> whole64(V x) {  // NaN and values out of range give the smallest int64
    typedef elem<V> T;
    const auto fits = (x >= splat<V>((T)-0x1p63)) & (x < splat<V>((T)0x1p63));
    const auto whole = raw<int64_t>(select(fits, x, splat<V>(0)));
    return select(fits, whole, splat<like<V, int64_t>>((int64_t)(-0x7fffffffffffffff - 1)));
}
template <class V> INLINE like<V, uint64_t> whole_u64(V x) {
    typedef elem<V> T;
    typedef like<V, uint64_t> U;
    const auto large = (x >= splat<V>((T)0x1p63)) & (x < splat<V>((T)0x1p64));
    const U low = bitcast<U>(whole64(select(large, x - splat<V>((T)0x1p63), x)));
    return select(large, low + (uint64_t)0x8000000000000000u, low);
}
// float64 to float32 such that rounding on to a narrower type equals rounding once (Boldo and Melquiond, 2008).
template <class V> INLINE like<V, float> round_to_odd(V x) {
    typedef like<V, float> F;
    typedef uints<F> U;
    const F near = raw<float>(x);
    const V back = raw<double>(near);
    const U bits = bitcast<U>(near);
    const auto away = select(back < 0, -back, back) > select(x < 0, -x, x);
    const U towards = select(away, bits - 1u, bits);
    return bitcast<F>(select((back != x) & (x == x), towards | 1u, bits));
}

// A value of compute type in storage type To's compute type. bool is spelled out: its vectors look like int32's.
template <class To, class V> INLINE auto convert(V v) {
    typedef elem<V> From;
    constexpr int N = lanes<V>;
    if constexpr (same<To, bool>) return truth(v != splat<V>(0));
    else if constexpr (same<To, bf16> || same<To, f16>) {  // round to To's precision, in float
        vec<float, N> f;
        if constexpr (same<From, double>) f = round_to_odd(v);
        else if constexpr (sizeof(From) > 2 && !is_float<V>) f = round_to_odd(raw<double>(v));
        else f = raw<float>(v);
        return decode<N>(encode<N>(f, (const To *)0), (const To *)0);
    } else if constexpr (!is_float<V> || is_float<vec<To, 1>>) return raw<To>(v);
    else if constexpr (same<To, uint64_t>) return whole_u64(v);
    else if constexpr (sizeof(To) == 8) return raw<To>(whole64(v));
    else if constexpr (same<From, double>) return raw<To>(whole64(v));
    else {
        typedef ints<V> I;
#if defined(__x86_64__) && !defined(__clang__)
        if constexpr (N > 1 && sizeof(To) < 4) {
            const I whole = raw<int32_t>(v);  // the smallest int32 for NaN and what is out of range, on x86
            if (every(whole != splat<I>((int32_t)0x80000000))) return raw<To>(whole);
        }
#endif
        const auto small = (v > splat<V>(-0x1p31f)) & (v < splat<V>(0x1p31f));
#if !defined(__x86_64__) || defined(__clang__)
        if constexpr (N > 1 && sizeof(To) < 4)
            if (every(small)) return raw<To>(raw<int32_t>(v));
#endif
        const I whole = raw<int32_t>(select(small, v, splat<V>(0)));
        return raw<To>(select(small, whole, low_bits(v)));
    }
}
template <class To, class M> INLINE auto convert_bool(M m) {  // of a boolean: 0 or 1
    if constexpr (same<To, bool>) return m;
    else if constexpr (lanes<M> == 1) return (typename storage_<To>::compute)(m ? 1 : 0);
    else return raw<typename storage_<To>::compute>(m & 1);
}

// ── across lanes ──

template <class V, class F> INLINE elem<V> across(V v, F f) {  // f of two values, by halves: a fixed order
    if constexpr (lanes<V> == 1) return v;
    else {
        const auto h = bitcast<halves<V>>(v);
        return across(f(h.low, h.high), f);
    }
}
struct add_ { template <class V> INLINE_MEMBER V operator()(V a, V b) const { return a + b; } };
template <class V> INLINE elem<V> sum_across(V v) { return across(v, add_{}); }
