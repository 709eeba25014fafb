// needs: erf
// conv_act: activations of a fused epilogue, as types with one function for scalars and vectors.

namespace act {

#define ACT(name, y) struct name { template <class V> static INLINE_MEMBER V of(V x) { return y; } };
ACT(none, x)
ACT(relu, ::relu(x))
ACT(relu6, (::clip(x, splat<V>(0), splat<V>(6))))
ACT(leaky_relu, (select(x > splat<V>(0), x, (V)(x * splat<V>((elem<V>)0.01)))))
ACT(hardswish, (x * (::clip((V)(x + splat<V>(3)), splat<V>(0), splat<V>(6)) / splat<V>(6))))
ACT(sigmoid, ::sigmoid(x))
ACT(silu, ::silu(x))
ACT(tanh, ::tanh(x))
ACT(gelu, ::gelu(x))
ACT(gelu_tanh, ::gelu_tanh(x))
#undef ACT

}  // namespace act
