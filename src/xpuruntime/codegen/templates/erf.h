// needs: exp
// erf: below 1 an odd polynomial; from 1 on 1 - erfc: float32 by exp of a polynomial, float64 by erfc(x) * exp(x*x) * (1 + 2x) as
// a polynomial in (x - 2) / (x + 2) (the scaling of M. M. Shepherd and J. G. Laframboise, 1981). Chebyshev interpolations.

template <class V> INLINE V erf(V x) {
    const V a = abs(x), z = x * x;
    if constexpr (same<elem<V>, float>) {
        const V small = x * horner(z, -9.66704457e-6, 0.00011265959, -0.000848408041, 0.00522103181, -0.0268654307,
                                   0.112837825, -0.376126385, 1.12837917);
        const V b = select(a > splat<V>(4.0f), splat<V>(4.0f), a);
        const V tail = horner(b, 1.63715141e-6, -4.60580427e-5, 0.000596805626, -0.00475959629, 0.026421136, -0.110080083,
                              0.368173948, -1.13023343, 0.00032013805);
        const V large = splat<V>(1) - exp((V)(tail - b * b));
        return select(a < splat<V>(1), small, copysign(large, x));
    } else {
        const V small = x * horner(z, 2.8067128195611262471e-13, -6.1967364287876999834e-12, 9.3237235181530266337e-11,
                                   -1.2277734486795523848e-9, 1.4806027146128751663e-8, -1.6365768648832072118e-7,
                                   1.6462110782018636387e-6, -0.000014925650236967501742, 0.00012055332978879483867,
                                   -0.00085483270234030006089, 0.0052239776254416740139, -0.026866170645131218518,
                                   0.11283791670955125626, -0.37612638903183752462, 1.1283791670955125739);
        const V b = select(a > splat<V>(6.0), splat<V>(6.0), a), t = (b - splat<V>(2)) / (b + splat<V>(2));
        const V tail = horner(t, 3.2328736901420580865e-7, -1.0957935640376185726e-6, -9.0009211066741357015e-7,
                              1.653809246372610748e-6, 5.2462471177095045648e-6, 3.6804602804262613426e-6,
                              -0.000013492837159048668724, -0.000036420901776472274551, -1.5099257804462349533e-6,
                              0.00015103924566420410975, 0.00020636719325974066129, -0.0004543408634938182169,
                              -0.001456813943707651482, 0.0012713389688567372549, 0.0087226538753725255972,
                              -0.0080340150825446727672, -0.054220000992033112615, 0.16405128003344422959,
                              -0.16603039761528940414, -0.092763826585746017712, 1.2769783815525287193);
        const V large = splat<V>(1) - tail * exp((V)(-b * b)) / (splat<V>(1) + b + b);
        return select(a < splat<V>(1), small, copysign(select(a != a, a, large), x));
    }
}
// x times the normal distribution's integral. float32: max(x, 0) - |x| * tail(|x|), where the tail 0.5 * erfc(|x| / sqrt(2)) is exp of a
// polynomial less x*x / 2: small values below zero keep their digits.
template <class V> INLINE V gelu(V x) {
    if constexpr (same<elem<V>, float>) {
        const V a = smaller(splat<V>(14.0f), abs(x)), b = smaller(splat<V>(5.5f), a);
        const V log_tail = horner2(b, 0, -1.159100709e-8, 3.695596287e-7, -5.051530331e-6, 3.725167682e-5, -0.0001359994819,
                                  -0.000129288813, 0.004987793153, -0.0364792401, 0.1817409652, -0.7978915581,
                                  -0.6931470215);
        const V y = relu(x) - a * exp(fma(a * a, splat<V>(-0.5f), log_tail));
        return select(x < splat<V>(-3.4028235e38f), splat<V>(__builtin_nanf("")), y);  // -inf * 0
    } else {
        return splat<V>((elem<V>)0.5) * x * (splat<V>(1) + erf((V)(x * splat<V>((elem<V>)0.70710678118654752))));
    }
}
