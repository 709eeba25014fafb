// needs: math
// conv_act: what a fused operation applies to its result where that has no name of its own, as types with one function of a scalar.

namespace act {

#define ACT(name, y) struct name { template <class V> static INLINE_MEMBER V of(V x) { return y; } };
ACT(relu6, (minimum(relu(x), (V)6)))
ACT(leaky_relu, (x > (V)0 ? x : (V)(x * (V)0.01)))
ACT(hardswish, (x * minimum(relu((V)(x + (V)3)), (V)6) / (V)6))
#undef ACT

}  // namespace act
