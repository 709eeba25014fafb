// needs: arith
// trig: circular functions, in double (float32 is rounded once, and polynomials have the terms that it needs). Angles lose pi/2 in three parts
// (Cody and Waite, 1980), exact below 2**20; larger ones lose it exactly, by the bits of 2/pi that matter (M. Payne and R. Hanek, 1983).

// 2/pi in binary: a word of zeros, then 64 bits a word after the point; they reach past the largest double's exponent.
static const uint64_t two_over_pi[20] = {
    0x0000000000000000, 0xa2f9836e4e441529, 0xfc2757d1f534ddc0, 0xdb6295993c439041,
    0xfe5163abdebbc561, 0xb7246e3a424dd2e0, 0x06492eea09d1921c, 0xfe1deb1cb129a73e,
    0xe88235f52ebb4484, 0xe99c7026b45f7e41, 0x3991d639835339f4, 0x9c845f8bbdf9283b,
    0x1ff897ffde05980f, 0xef2f118b5a0a6d1f, 0x6d367ecf27cb09b7, 0x4f463f669e5fea2d,
    0x7527bac7ebe5f17b, 0x3d0739f78a5292ea, 0x6bfb5fb11f8d5d08, 0x56033046fc7b6bab,
};

struct rem_pio2_scalar { double r; int64_t k; };
static __attribute__((noinline)) rem_pio2_scalar rem_pio2_large(double x) {  // |x| - k * pi/2, |r| <= pi/4, for finite |x| >= 2**20
    const uint64_t bits = bitcast<uint64_t>(x);
    const uint64_t m = (bits & (((uint64_t)1 << 52) - 1)) | ((uint64_t)1 << 52);
    const int64_t e = (int64_t)((bits >> 52) & 0x7ff) - 1075;  // |x| = m * 2**e
    // Bits of 2/pi above weight 2**(2 - e) give multiples of 4 quadrants: leave them out (64 counts the word of zeros).
    const int64_t start = e - 2 + 64, word = start / 64, shift = start % 64;
    uint64_t w[3];
    for (int i = 0; i < 3; ++i) {
        const uint64_t next = shift ? two_over_pi[word + i + 1] >> (64 - shift) : 0;
        w[i] = two_over_pi[word + i] << shift | next;
    }
    // m * w modulo 2**192 is |x| * 2/pi * 2**190 modulo 4 quadrants: two bits of quadrant, then the fraction.
    typedef unsigned __int128 u128;
    const u128 p2 = (u128)m * w[2], p1 = (u128)m * w[1] + (uint64_t)(p2 >> 64), p0 = (u128)m * w[0] + (uint64_t)(p1 >> 64);
    uint64_t high = (uint64_t)p0 << 2 | (uint64_t)p1 >> 62, low = (uint64_t)p1 << 2 | (uint64_t)p2 >> 62;
    int64_t k = (int64_t)((uint64_t)p0 >> 62);
    const bool round = high >> 63;  // the fraction is above one half: the next quadrant, from the other side
    if (round) {
        ++k;
        low = ~low + 1;
        high = ~high + (low == 0);
    }
    const double fraction = ((double)high + (double)low * 0x1p-64) * 0x1p-64 * 1.5707963267948966;
    return {round ? -fraction : fraction, k};
}
template <class V> struct rem_pio2_result { V r; like<V, int64_t> k; };  // of k the two lowest bits count
template <class V> INLINE rem_pio2_result<V> rem_pio2(V x) {
    const V magic = splat<V>(0x1.8p52), t = fma(x, splat<V>(0.63661977236758134308), magic), q = t - magic;  // t has the whole number in the low bits
    V r = fma(q, splat<V>(-1.5707963267341256), x);
    r = fma(q, splat<V>(-6.077100506303966e-11), r);
    r = fma(q, splat<V>(-2.0222662487959506e-21), r);
    const auto near = abs(x) < splat<V>(0x1p20);
    like<V, int64_t> k = bitcast<like<V, int64_t>>(t);
    if (__builtin_expect(every(near), 1)) return {r, k};
    for (int i = 0; i < lanes<V>; ++i) {
        double one, size;
        if constexpr (lanes<V> == 1) one = x; else one = x[i];
        size = abs(one);
        if (!(size >= 0x1p20)) continue;
        const rem_pio2_scalar far = size < __builtin_inf() ? rem_pio2_large(size) : rem_pio2_scalar{__builtin_nan(""), 0};
        if constexpr (lanes<V> == 1) r = one < 0 ? -far.r : far.r, k = one < 0 ? -far.k : far.k;
        else r[i] = one < 0 ? -far.r : far.r, k[i] = one < 0 ? -far.k : far.k;
    }
    return {r, k};
}
// Within pi/4, for results in S.
template <class S, class V> INLINE V sin_near(V r, V z) {
    if constexpr (same<S, float>)
        return fma(r * z, horner(z, 2.7249864666003384e-06, -0.00019840086263847351, 0.0083333318738373005, -0.16666666663853047), r);
    else
        return fma(r * z, horner(z, -7.5866824971577858333e-13, 1.6058531370931902916e-10, -2.5052106230882411533e-8,
                                 2.7557319219334660159e-6, -0.00019841269841265059154, 0.0083333333333333314894,
                                 -0.16666666666666666666), r);
}
template <class S, class V> INLINE V cos_near(V z) {
    const V first = splat<V>(1) - z * splat<V>(0.5);
    if constexpr (same<S, float>) return fma(z * z, horner(z, 2.4547891619624941e-05, -0.0013888302802308244, 0.041666664658300434), first);
    else
        return fma(z * z, horner(z, 4.7458637732829625451e-14, -1.1470460749696861766e-11, 2.0876755790210227856e-9,
                                 -2.7557319221400318978e-7, 0.000024801587301584643208, -0.0013888888888888887864,
                                 0.041666666666666666666), first);
}
template <class S, class V> INLINE V sin_of(rem_pio2_result<V> t) {
    typedef like<V, int64_t> I;
    const V z = t.r * t.r, y = select((t.k & 1) != 0, cos_near<S>(z), sin_near<S>(t.r, z));
    return bitcast<V>((I)(bitcast<I>(y) ^ (t.k & 2) << 62));
}
template <class V> INLINE V sin(V x) {
    return by_double([](auto d) { return select(abs(d) < 1e-8, d, sin_of<elem<V>, decltype(d)>(rem_pio2(d))); }, x);
}
template <class V> INLINE V cos(V x) {
    return by_double([](auto d) {
        auto t = rem_pio2(d);
        t.k += 1;
        return sin_of<elem<V>, decltype(d)>(t);
    }, x);
}
template <class V> INLINE V tan(V x) {
    return by_double([](auto d) {
        typedef decltype(d) D;
        const auto t = rem_pio2(d);
        const D z = t.r * t.r, s = sin_near<elem<V>>(t.r, z), c = cos_near<elem<V>>(z);
        return select(abs(d) < 1e-8, d, select((t.k & 1) != 0, (D)(-c / s), (D)(s / c)));
    }, x);
}

// ── inverses ──

template <class V> INLINE V atan_double(V x) {  // 1/x above 1, then (t - 1) / (t + 1) above tan(pi/8)
    const V a = abs(x);
    const auto above = a > splat<V>(1);
    const V t = select(above, splat<V>(1) / a, a);
    const auto upper = t > splat<V>(0.41421356237309503);
    const V u = select(upper, (t - splat<V>(1)) / (t + splat<V>(1)), t), z = u * u;
    const V series = fma(u * z, horner(z, 0.016285183029865667568, -0.034570044186095536639, 0.045515730866641905265,
                                       -0.052304498567092406686, 0.058789283985172323161, -0.066664248336135523586,
                                       0.076922963721299638171, -0.090909087534004995957, 0.11111111105153429367,
                                       -0.1428571428565980691, 0.19999999999999804444, -0.33333333333333333217), u);
    const V part = select(upper, series + splat<V>(0.78539816339744830962), series);
    return copysign(select(above, splat<V>(1.57079632679489661923) - part, part), x);
}
template <class V> INLINE V atan2_double(V y, V x) {
    const double pi = 3.14159265358979323846;
    const V infinity = splat<V>(__builtin_inf());
    const auto both = (abs(x) == infinity) & (abs(y) == infinity), none = (x == 0) & (y == 0);
    const V size = select(both, splat<V>(1), select(none, splat<V>(0), abs(y) / abs(x)));
    const V first = atan_double(size);
    const auto left = copysign(splat<V>(1), x) < 0;
    const V angle = copysign(select(left, splat<V>(pi) - first, first), y);
    return select((x != x) | (y != y), x + y, angle);
}
// In float32: a polynomial of the smaller side over the larger one, and parts of pi to which it is the difference.
template <class V> INLINE V atan2_float(V y, V x) {
    const V a = abs(x), b = abs(y);
    const auto steep = b > a;
    const V low = select(steep, a, b), high = select(steep, b, a);
    const V fraction = select(low == high, splat<V>(1), low / high), t = select(high == 0, low, fraction), z = t * t;
    const V part = fma(t * z, horner(z, -0.00238699731, 0.0135077714, -0.0358715389, 0.0625016944, -0.0865688043, 0.110337641,
                                     -0.142785687, 0.199997393, -0.333333317), t);
    const V up = select(steep, splat<V>(1.57079637f) - part + splat<V>(-4.37113883e-8f), part);
    const auto left = copysign(splat<V>(1), x) < 0;
    return copysign(select(left, splat<V>(3.14159274f) - up + splat<V>(-8.74227766e-8f), up), y);
}
template <class V> INLINE V atan2(V y, V x) {
    if constexpr (same<elem<V>, float>) return atan2_float(y, x);
    else return atan2_double(y, x);
}
template <class V> INLINE V atan(V x) {
    if constexpr (same<elem<V>, float>) return atan2_float(x, splat<V>(1));
    else return atan_double(x);
}
template <class V> INLINE V asin(V x) {
    return by_double([](auto d) {
        typedef decltype(d) D;
        return atan2_double(d, sqrt((D)((1.0 - d) * (1.0 + d))));
    }, x);
}
template <class V> INLINE V acos(V x) {
    return by_double([](auto d) {
        typedef decltype(d) D;
        return (D)(2.0 * atan2_double(sqrt((D)(1.0 - d)), sqrt((D)(1.0 + d))));
    }, x);
}
