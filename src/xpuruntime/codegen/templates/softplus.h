// needs: exp log
// softplus: log(1 + exp(x)) without overflow, and mish.

template <class V> INLINE V log1p_exp(V x) { return relu(x) + log1p(exp((V)-abs(x))); }
template <class V> INLINE V softplus(V x, elem<V> beta, elem<V> threshold) {
    const V scaled = x * splat<V>(beta);
    return select(scaled > splat<V>(threshold), x, log1p_exp(scaled) / splat<V>(beta));
}
template <class V> INLINE V mish(V x) { return x * tanh(log1p_exp(x)); }
