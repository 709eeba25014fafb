// needs: pool pow
// pool_power: the p-norm of windows, for any p.

namespace pool {

struct NormP : FloatMean {
    template <class V> static INLINE_MEMBER V add(V a, V x, const Windows &w) { return a + ::pow(abs(x), splat<V>((elem<V>)w.power)); }
    template <class V> static INLINE_MEMBER V end(V a, double, const Windows &w) { return ::pow(a, splat<V>((elem<V>)(1 / w.power))); }
};

}  // namespace pool
