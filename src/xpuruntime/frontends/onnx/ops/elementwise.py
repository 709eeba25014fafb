"""Lowerings of pointwise ops and casts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from typing import Any

from ....types import DType
from ...not_lowered import NotLowered
from .context import OnnxLoweringContext, OpLowering, Results

__all__ = ["LOWERINGS"]

# ONNX op -> IR op with the same operands and no attributes.
_SAME = {
    "Abs": "abs", "Acos": "acos", "Acosh": "acosh", "Add": "add", "And": "logical_and", "Asin": "asin",
    "Asinh": "asinh", "Atan": "atan", "Atanh": "atanh", "BitwiseAnd": "bitwise_and", "BitwiseNot": "bitwise_not",
    "BitwiseOr": "bitwise_or", "BitwiseXor": "bitwise_xor", "Ceil": "ceil", "Cos": "cos", "Cosh": "cosh",
    "Equal": "eq", "Erf": "erf", "Exp": "exp", "Floor": "floor", "Greater": "gt", "GreaterOrEqual": "ge",
    "Identity": "clone", "IsNaN": "isnan", "Less": "lt", "LessOrEqual": "le", "Log": "log", "Mul": "mul",
    "Neg": "neg", "Not": "logical_not", "Or": "logical_or", "Reciprocal": "reciprocal", "Round": "round",
    "Sin": "sin", "Sinh": "sinh", "Sqrt": "sqrt", "Sub": "sub", "Tan": "tan", "Where": "where",
    "Xor": "logical_xor",
}  # fmt: skip


def same(op: str) -> OpLowering:
    """Return the lowering that only changes the op's name."""
    return lambda n: str(n.b.call(op, *n.inputs))


def _broadcast(op: str) -> OpLowering:
    """Return the lowering of an op whose operands broadcast."""
    return lambda n: str(n.b.call(op, *n.broadcast_operands(*range(len(n.inputs)))))


def _div(n: OnnxLoweringContext) -> Results:
    integer = n.spec().dtype.is_integer  # ONNX divides integers toward zero
    return str(n.b.div(*n.broadcast_operands(0, 1), rounding_mode="trunc" if integer else None))


def _pow(n: OnnxLoweringContext) -> Results:
    """Lower Pow; the result has the base's type, regardless of the exponent's."""
    base, exponent = n.spec(0).dtype, n.spec(1).dtype
    if base is exponent or base.is_float:
        return str(n.b.pow(n.x, n.cast(n.input(1), base)))
    if exponent.is_float:
        wide = DType.FLOAT64
        return n.cast(n.b.pow(n.cast(n.x, wide), n.cast(n.input(1), wide)), base)
    return n.cast(n.b.pow(n.x, n.cast(n.input(1), base)), base)


def _mod(n: OnnxLoweringContext) -> Results:
    if n.attr("fmod", 0):
        return str(n.b.fmod(n.x, n.input(1)))
    return str(n.b.remainder(n.x, n.input(1)))


def _shift(n: OnnxLoweringContext) -> Results:
    ir_op = {"LEFT": "bitwise_left_shift", "RIGHT": "bitwise_right_shift"}[n.attr("direction")]
    return str(n.b.call(ir_op, n.x, n.input(1)))


def _sign(n: OnnxLoweringContext) -> Results:
    """Lower Sign; the sign of NaN is NaN in ONNX, and 0 in PyTorch and the IR."""
    sign = n.b.sign(n.x)
    return str(n.b.where(n.b.isnan(n.x), n.x, sign) if n.spec().dtype.is_float else sign)


def _isinf(n: OnnxLoweringContext) -> Results:
    return str(
        n.b.isinf(
            n.x, positive=bool(n.attr("detect_positive", 1)), negative=bool(n.attr("detect_negative", 1))
        )
    )


def _chain(op: str, n: OnnxLoweringContext) -> Results:
    values = [n.input(i) for i in range(len(n.inputs))]
    return (
        str(reduce(lambda a, b: n.b.call(op, a, b), values)) if len(values) > 1 else str(n.b.clone(values[0]))
    )


def _mean(n: OnnxLoweringContext) -> Results:
    total = str(_chain("add", n))
    return str(n.b.div(total, float(len(n.inputs)))) if len(n.inputs) > 1 else total


def _clip(n: OnnxLoweringContext) -> Results:
    """Lower Clip; bounds are attributes below opset 11, operands from then on."""
    low: Any = n.scalar_or_value(1) if n.opt(1) else n.attr("min")
    high: Any = n.scalar_or_value(2) if n.opt(2) else n.attr("max")
    return str(n.b.clone(n.x) if low is None and high is None else n.b.clamp(n.x, low, high))


def _plain(dtype: DType) -> DType:
    if dtype is DType.STRING:
        raise NotLowered("casts between text and numbers are not supported")
    return dtype


def _cast_to(n: OnnxLoweringContext, dtype: DType) -> Results:
    _plain(n.spec().dtype)
    mode = n.attr("round_mode") if dtype is DType.FLOAT8_E8M0FNU else None
    return str(
        n.b.cast(n.x, dtype=_plain(dtype), saturate=bool(n.attr("saturate", 1)), round_mode=mode or None)
    )


def _bitcast(n: OnnxLoweringContext) -> Results:
    return str(n.b.bitcast(n.x, dtype=_plain(n.dtype(n.attr("to")))))


def _chained(op: str) -> Callable[[OnnxLoweringContext], Results]:
    return partial(_chain, op)


LOWERINGS: dict[str, OpLowering] = {
    **{name: _broadcast(op) for name, op in _SAME.items()},
    "BitCast": _bitcast,
    "BitShift": _shift,
    "Cast": lambda n: _cast_to(n, n.dtype(n.attr("to"))),
    "CastLike": lambda n: _cast_to(n, n.spec(1).dtype),
    "Clip": _clip,
    "Div": _div,
    "IsInf": _isinf,
    "Max": _chained("maximum"),
    "Mean": _mean,
    "Min": _chained("minimum"),
    "Mod": _mod,
    "Pow": _pow,
    "Sign": _sign,
    "Sum": _chained("add"),
}
