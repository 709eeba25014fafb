"""Pointwise ops: arithmetic, comparison, logic, bits, casts."""

from __future__ import annotations

from ...types import DType, TensorSpec
from ..schema import Infer, Mismatch, OpCall, OpEntry, op
from ._shapes import broadcast, like
from ._types import category, float_of, promote

__all__ = ["ROWS", "unary_float", "unary_same"]


def unary_same(c: OpCall) -> TensorSpec:
    """Return the operand's own spec."""
    return like(c.tensor())


def unary_float(c: OpCall) -> TensorSpec:
    """Return the operand's shape; integers become float32."""
    x = c.tensor()
    return TensorSpec(x.shape, float_of(x.dtype))


def _unary_signed(c: OpCall) -> TensorSpec:
    x = c.tensor()
    return TensorSpec(
        x.shape, {DType.COMPLEX64: DType.FLOAT32, DType.COMPLEX128: DType.FLOAT64}.get(x.dtype, x.dtype)
    )


def _unary_bool(c: OpCall) -> TensorSpec:
    return TensorSpec(c.tensor().shape, DType.BOOL)


def _binary(c: OpCall) -> TensorSpec:
    return TensorSpec(broadcast(*(t.shape for t in c.tensors())), promote(c.operands))


def _binary_no_bool(c: OpCall) -> TensorSpec:
    result = _binary(c)
    if result.dtype is DType.BOOL:
        raise Mismatch("is not defined for bool", do="Use a logical op, or cast.")
    return result


def _div(c: OpCall) -> TensorSpec:
    result = _binary(c)
    return TensorSpec(result.shape, float_of(result.dtype)) if c["rounding_mode"] is None else result


def _binary_float(c: OpCall) -> TensorSpec:
    result = _binary(c)
    return TensorSpec(result.shape, float_of(result.dtype))


def _compare(c: OpCall) -> TensorSpec:
    shape = broadcast(*(t.shape for t in c.tensors()))
    kinds = {t.dtype is DType.STRING for t in c.tensors()}
    if kinds == {True, False}:
        raise Mismatch("cannot compare strings with numbers")
    if kinds == {False}:
        promote(c.operands)
    return TensorSpec(shape, DType.BOOL)


def _logical(c: OpCall) -> TensorSpec:
    return TensorSpec(broadcast(*(t.shape for t in c.tensors())), DType.BOOL)


def _bits(c: OpCall) -> TensorSpec:
    result = _binary(c)
    if category(result.dtype) > 1:
        raise Mismatch("needs integers or bool", result.dtype.value)
    return result


def _where(c: OpCall) -> TensorSpec:
    condition = c.tensor()
    if condition.dtype is not DType.BOOL:
        raise Mismatch("the condition must be bool", condition.dtype.value)
    values = c.operands[1:]
    tensors = [t for t in values if isinstance(t, TensorSpec)]
    texts = [t.dtype is DType.STRING for t in tensors]
    dtype = DType.STRING if texts and all(texts) and len(tensors) == 2 else promote(values)
    return TensorSpec(broadcast(*(t.shape for t in c.tensors())), dtype)


def _cast(c: OpCall) -> TensorSpec:
    return TensorSpec(c.tensor().shape, c["dtype"])


def _bitcast(c: OpCall) -> TensorSpec:
    x, to = c.tensor(), c["dtype"]
    if x.dtype.bits != to.bits:
        raise Mismatch("both types must have the same number of bits", f"{x.dtype.value} and {to.value}")
    return TensorSpec(x.shape, to)


def _unary(
    name: str, aten: str = "", onnx: str = "", meaning: str = "", family: str = "elementwise"
) -> OpEntry:
    """Return the entry of a floating-point function: integers give float32."""
    return op(
        f"{name}(x) -> y", family, unary_float, aten=aten or name, onnx=onnx, pointwise=True, meaning=meaning
    )


def _same(name: str, aten: str = "", onnx: str = "", meaning: str = "", attrs: str = "") -> OpEntry:
    """Return the entry of a function that keeps the operand's type."""
    signature = f"{name}(x{attrs}) -> y"
    return op(
        signature, "elementwise", unary_same, aten=aten or name, onnx=onnx, pointwise=True, meaning=meaning
    )


def _pair(
    name: str, infer: Infer, aten: str = "", onnx: str = "", commutative: bool = False, meaning: str = ""
) -> OpEntry:
    """Return the entry of an op with two operands, each a tensor or an immediate number."""
    return op(
        f"{name}(x#, other#) -> y",
        "elementwise",
        infer,
        aten=aten or f"{name}.Tensor {name}.Scalar",
        onnx=onnx,
        commutative=commutative,
        pointwise=True,
        meaning=meaning,
    )


ROWS: tuple[OpEntry, ...] = (
    # functions of one operand
    op("abs(x) -> y", "elementwise", _unary_signed, aten="abs", onnx="Abs", pointwise=True),
    _same("neg", onnx="Neg"),
    _same("sign", onnx="Sign"),
    _same("ceil", onnx="Ceil"),
    _same("floor", onnx="Floor"),
    _same("trunc"),
    _same(
        "round",
        onnx="Round",
        meaning="rounds half to even; decimals as in PyTorch",
        attrs="; decimals: int = 0",
    ),
    _unary("acos", onnx="Acos"),
    _unary("acosh", onnx="Acosh"),
    _unary("asin", onnx="Asin"),
    _unary("asinh", onnx="Asinh"),
    _unary("atan", onnx="Atan"),
    _unary("atanh", onnx="Atanh"),
    _unary("cos", onnx="Cos"),
    _unary("cosh", onnx="Cosh"),
    _unary("erf", onnx="Erf"),
    _unary("exp", onnx="Exp"),
    _unary("exp2"),
    _unary("expm1"),
    _unary("log", onnx="Log"),
    _unary("log10"),
    _unary("log1p"),
    _unary("log2"),
    _unary("reciprocal", onnx="Reciprocal"),
    _unary("rsqrt"),
    _unary("sin", onnx="Sin"),
    _unary("sinh", onnx="Sinh"),
    _unary("sqrt", onnx="Sqrt"),
    _unary("tan", onnx="Tan"),
    op("isnan(x) -> y", "elementwise", _unary_bool, aten="isnan", onnx="IsNaN", pointwise=True),
    op(
        "isinf(x; positive: bool = true, negative: bool = true) -> y",
        "elementwise",
        _unary_bool,
        aten="isinf",
        onnx="IsInf",
        pointwise=True,
    ),
    op("logical_not(x) -> y", "elementwise", _unary_bool, aten="logical_not", onnx="Not", pointwise=True),
    op("bitwise_not(x) -> y", "elementwise", _bits, aten="bitwise_not", onnx="BitwiseNot", pointwise=True),
    # of two
    _pair("add", _binary, onnx="Add Sum", commutative=True, meaning="logical or for bool"),
    _pair("sub", _binary_no_bool, aten="sub.Tensor sub.Scalar rsub.Scalar", onnx="Sub"),
    _pair("mul", _binary, onnx="Mul", commutative=True, meaning="logical and for bool"),
    op(
        "div(x#, other#; rounding_mode: trunc|floor? = none) -> y",
        "elementwise",
        _div,
        aten="div.Tensor div.Scalar div.Tensor_mode div.Scalar_mode",
        onnx="Div",
        pointwise=True,
        meaning="without rounding_mode integers give float32; ONNX's integer division is trunc",
    ),
    _pair("pow", _binary, aten="pow.Tensor_Tensor pow.Tensor_Scalar pow.Scalar", onnx="Pow"),
    _pair(
        "maximum", _binary, aten="maximum", onnx="Max", commutative=True, meaning="NaN if either operand is"
    ),
    _pair(
        "minimum", _binary, aten="minimum", onnx="Min", commutative=True, meaning="NaN if either operand is"
    ),
    _pair("fmod", _binary, onnx="Mod", meaning="the remainder has the sign of x"),
    _pair("remainder", _binary, onnx="Mod", meaning="the remainder has the sign of other"),
    _pair("atan2", _binary_float, aten="atan2"),
    _pair("eq", _compare, onnx="Equal", commutative=True),
    _pair("ne", _compare, commutative=True),
    _pair("lt", _compare, onnx="Less"),
    _pair("le", _compare, onnx="LessOrEqual"),
    _pair("gt", _compare, onnx="Greater"),
    _pair("ge", _compare, onnx="GreaterOrEqual"),
    _pair("logical_and", _logical, aten="logical_and", onnx="And", commutative=True),
    _pair("logical_or", _logical, aten="logical_or", onnx="Or", commutative=True),
    _pair("logical_xor", _logical, aten="logical_xor", onnx="Xor", commutative=True),
    _pair("bitwise_and", _bits, onnx="BitwiseAnd", commutative=True),
    _pair("bitwise_or", _bits, onnx="BitwiseOr", commutative=True),
    _pair("bitwise_xor", _bits, onnx="BitwiseXor", commutative=True),
    _pair("bitwise_left_shift", _bits, aten="bitwise_left_shift.Tensor", onnx="BitShift"),
    _pair("bitwise_right_shift", _bits, aten="bitwise_right_shift.Tensor", onnx="BitShift"),
    # of three
    op(
        "where(condition, x#, other#) -> y",
        "elementwise",
        _where,
        aten="where.self",
        onnx="Where",
        pointwise=True,
    ),
    op(
        "clamp(x, min#?, max#?) -> y",
        "elementwise",
        _binary,
        aten="clamp clamp.Tensor hardtanh",
        onnx="Clip",
        pointwise=True,
        meaning="min(max(x, min), max): max wins if min > max; NaN propagates",
    ),
    # between types
    op(
        "cast(x; dtype: dtype, saturate: bool = true, round_mode: up|down|nearest? = none) -> y",
        "elementwise",
        _cast,
        aten="_to_copy",
        onnx="Cast CastLike",
        pointwise=True,
        meaning="saturate applies to float8; round_mode applies to float8_e8m0fnu",
    ),
    op(
        "bitcast(x; dtype: dtype) -> y",
        "elementwise",
        _bitcast,
        onnx="BitCast",
        pointwise=True,
        meaning="the same bits reinterpreted as another type",
    ),
)
