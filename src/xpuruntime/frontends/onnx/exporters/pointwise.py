"""Exporters of pointwise ops other than activations."""

from __future__ import annotations

import math

from ....types import DType
from .graph_builder import SHORT_INTEGERS, Exporter, NodeExport, done

__all__ = ["EXPORTERS"]

_SAME = {
    "abs": "Abs", "acos": "Acos", "acosh": "Acosh", "asin": "Asin", "asinh": "Asinh", "atan": "Atan", "atanh": "Atanh",
    "ceil": "Ceil", "clone": "Identity", "cos": "Cos", "cosh": "Cosh", "erf": "Erf", "exp": "Exp",
    "floor": "Floor", "log": "Log", "reciprocal": "Reciprocal",
    "sigmoid": "Sigmoid", "sin": "Sin", "sinh": "Sinh", "softsign": "Softsign", "sqrt": "Sqrt",
    "tan": "Tan", "tanh": "Tanh",
}  # fmt: skip
_BINARY = {
    "add": "Add", "bitwise_and": "BitwiseAnd", "bitwise_or": "BitwiseOr", "bitwise_xor": "BitwiseXor", "eq": "Equal",
    "ge": "GreaterOrEqual", "gt": "Greater", "le": "LessOrEqual", "lt": "Less", "maximum": "Max", "minimum": "Min",
    "mul": "Mul", "sub": "Sub",
}  # fmt: skip
_OF_BOOLS = {
    "Add": "Or", "BitwiseAnd": "And", "BitwiseOr": "Or", "BitwiseXor": "Xor", "Max": "Or", "Min": "And", "Mul": "And",
}  # fmt: skip
_ORDER_OF_BOOLS = {
    "Greater": ("And", 1), "GreaterOrEqual": ("Or", 1), "Less": ("And", 0), "LessOrEqual": ("Or", 0),
}  # fmt: skip
"""The ops for booleans of ops that ONNX has for numbers only; for an order also the operand that is negated."""


def _unary(op: str) -> Exporter:
    """Return the exporter of a unary op. Integers are cast to the result's type (``exp`` of an int32 gives float32)."""

    def export(e: NodeExport) -> None:
        keeps_dtype = e.node.spec.dtype is e.spec().dtype or e.spec().dtype.is_complex
        e.add(op, [e.operand(0, None if keeps_dtype else e.node.spec.dtype)], out=True)

    return export


def _binary(op: str) -> Exporter:
    def export(e: NodeExport) -> None:
        dtype = e.common()
        operands = [e.operand(0, dtype), e.operand(1, dtype)]
        name = op
        if dtype is DType.BOOL and op in _ORDER_OF_BOOLS:
            name, negated = _ORDER_OF_BOOLS[op]
            operands[negated] = e.add("Not", [operands[negated]])
        elif dtype is DType.BOOL:
            name = _OF_BOOLS.get(op, op)
        e.add(name, operands, out=True)

    return export


def _bitwise_not(e: NodeExport) -> None:
    e.add("Not" if e.spec().dtype is DType.BOOL else "BitwiseNot", [e.operand(0)], out=True)


def _neg(e: NodeExport) -> None:
    """Write Neg; of unsigned integers, which ONNX does not negate, the difference from 0."""
    dtype = e.spec().dtype
    if dtype.is_integer and not dtype.is_signed:
        e.add("Sub", [e.constant(0, dtype), e.operand(0)], out=True)
    else:
        e.add("Neg", [e.operand(0)], out=True)


def _sign(e: NodeExport) -> None:
    e.add("Identity" if e.spec().dtype is DType.BOOL else "Sign", [e.operand(0)], out=True)


def _logic(op: str) -> Exporter:
    def export(e: NodeExport) -> None:
        e.add(op, [e.operand(i, DType.BOOL) for i in range(len(e.node.inputs))], out=True)

    return export


def _text_equal(e: NodeExport) -> None:
    dtype = None if e.spec().dtype is DType.STRING else e.common()
    e.add("Equal", [e.operand(0, dtype), e.operand(1, dtype)], out=True)


def _ne(e: NodeExport) -> None:
    dtype = e.common()
    e.add("Not", [e.add("Equal", [e.operand(0, dtype), e.operand(1, dtype)])], out=True)


def _div(e: NodeExport) -> None:
    """Write div in each rounding mode. ONNX divides integers toward zero."""
    mode, dtype = e["rounding_mode"], e.common()
    if mode is None:
        result = e.node.spec.dtype
        e.add("Div", [e.operand(0, result), e.operand(1, result)], out=True)
        return
    a, b = e.operand(0, dtype), e.operand(1, dtype)
    if dtype.is_integer and mode == "trunc":
        e.add("Div", [a, b], out=True)
    elif mode == "floor" and dtype.is_float:
        e.add("Floor", [e.add("Div", [a, b])], out=True)
    elif mode == "floor" and not dtype.is_signed:
        e.add("Div", [a, b], out=True)
    elif mode == "floor":
        exact = e.add("Sub", [a, e.add("Mod", [a, b])])  # a - (a mod b) is a multiple of b
        e.add("Div", [exact, b], out=True)
    else:
        _trunc_of(e, e.add("Div", [a, b]))


def _trunc_of(e: NodeExport, value: str) -> None:
    e.add("Mul", [e.add("Sign", [value]), e.add("Floor", [e.add("Abs", [value])])], out=True)


def _mod(fmod: bool) -> Exporter:
    def export(e: NodeExport) -> None:
        dtype = e.common()
        a, b = e.operand(0, dtype), e.operand(1, dtype)
        if fmod and dtype.is_integer:  # ONNX Runtime computes it in float64, which rounds large integers
            toward_zero = e.add("Mul", [e.add("Div", [a, b]), b])
            e.add("Sub", [a, toward_zero], out=True)
            return
        if fmod or dtype.is_integer:
            e.add("Mod", [a, b], out=True, fmod=1 if fmod else None)
            return
        # ONNX's float remainder has the sign of the dividend, so it is shifted to that of the divisor.
        remainder = e.add("Mod", [a, b], fmod=1)
        shifted = e.add("Mod", [e.add("Add", [remainder, b]), b], fmod=1)
        e.add("Identity", [shifted], out=True)

    return export


def _shift(direction: str) -> Exporter:
    def export(e: NodeExport) -> None:
        dtype = e.common()
        if dtype.is_signed:
            _signed_shift(e, direction, dtype)
            return
        e.add("BitShift", [e.operand(0, dtype), e.operand(1, dtype)], out=True, direction=direction)

    return export


def _signed_shift(e: NodeExport, direction: str, dtype: DType) -> None:
    """Write a shift of signed integers in uint64, since ONNX shifts unsigned ones only. To the right the sign is kept."""
    if e.opset < 12:
        raise e.no("opsets below 12 have no Min of integers")
    wide = DType.INT64
    x, count = e.operand(0, wide), e.add("Min", [e.operand(1, wide), e.constant(63, wide)])
    negative, ones = e.add("Less", [x, e.constant(0, wide)]), e.constant(-1, wide)
    right = direction == "RIGHT"
    if right:  # of a negative number its complement is shifted
        x = e.add("Where", [negative, e.add("Sub", [ones, x]), x])
    operands = [e.cast(x, DType.UINT64), e.cast(count, DType.UINT64)]
    shifted = e.cast(e.add("BitShift", operands, direction=direction), wide)
    if right:
        shifted = e.add("Where", [negative, e.add("Sub", [ones, shifted]), shifted])
    e.to(shifted, dtype, wide)


def _atan2(e: NodeExport) -> None:
    """Write atan2 as the angle in the first quadrant, moved by the signs of both operands. Zeros have signs, too."""
    dtype = e.node.spec.dtype
    y, x = e.operand(0, dtype), e.operand(1, dtype)
    height, width, zero = e.add("Abs", [y]), e.add("Abs", [x]), e.constant(0, dtype)
    ratio = e.add("Div", [height, width])
    ratio = e.add("Where", [e.add("Equal", [height, width]), e.constant(1, dtype), ratio])  # inf / inf
    ratio = e.add("Where", [e.add("Equal", [y, zero]), zero, ratio])
    angle = e.add("Atan", [ratio])
    mirrored = e.add("Sub", [e.constant(math.pi, dtype), angle])
    angle = e.add("Where", [_has_sign(e, x, dtype), mirrored, angle])
    # A factor: ONNX Runtime's Where writes -0 as 0. It is NaN where x is, which y = 0 would hide.
    sign = e.add("Where", [_has_sign(e, y, dtype), e.constant(-1, dtype), e.constant(1, dtype)])
    sign = e.add("Where", [e.add("Equal", [x, x]), sign, x])
    e.add("Mul", [angle, sign], out=True)


def _has_sign(e: NodeExport, value: str, dtype: DType) -> str:
    """Add the test of a sign bit. The reciprocal of -0 is -inf."""
    zero = e.constant(0, dtype)
    of_zero = e.add("Less", [e.add("Div", [e.constant(1, dtype), value]), zero])
    return e.add("Or", [e.add("Less", [value, zero]), of_zero])


def _relu(e: NodeExport) -> None:
    """Write Relu; of unsigned integers, which ONNX's does not take, the operand."""
    dtype = e.spec().dtype
    e.add("Identity" if dtype.is_integer and not dtype.is_signed else "Relu", [e.operand(0)], out=True)


def _pow(e: NodeExport) -> None:
    if e.common() in SHORT_INTEGERS:
        e.through("Pow", DType.INT64, (0, 1))
        return
    e.add("Pow", [e.operand(0, e.common()), e.operand(1, e.common())], out=True)


def _where(e: NodeExport) -> None:
    dtype = e.node.spec.dtype
    condition, yes, no = e.operand(0), e.operand(1, dtype), e.operand(2, dtype)
    if dtype is DType.BOOL:  # ONNX Runtime has no kernel for it
        other = e.add("And", [e.add("Not", [condition]), no])
        e.add("Or", [e.add("And", [condition, yes]), other], out=True)
        return
    e.add("Where", [condition, yes, no], out=True)


def _clamp(e: NodeExport) -> None:
    """Write Clip for scalar bounds, Max and Min for bounds with dims."""
    dtype = e.common()
    x = e.operand(0, dtype)
    dims = [i for i in (1, 2) if e.has(i) and isinstance(e.node.inputs[i], str) and e.spec(i).rank]
    if not dims and (e.opset >= 12 or dtype.is_float):
        e.add("Clip", [x, e.opt(1, dtype), e.opt(2, dtype)], out=True)
        return
    if e.has(1):
        x = e.add("Max", [x, e.operand(1, dtype)])
    if e.has(2):
        x = e.add("Min", [x, e.operand(2, dtype)])
    e.add("Identity", [x], out=True)


def _cast(e: NodeExport) -> None:
    dtype = e["dtype"]
    eight = dtype.value.startswith("float8") and dtype is not DType.FLOAT8_E8M0FNU
    e.add(
        "Cast",
        [e.operand(0)],
        out=True,
        to=e.builder.numbers[dtype],
        saturate=0 if eight and not e["saturate"] else None,
        round_mode=e["round_mode"] if dtype is DType.FLOAT8_E8M0FNU else None,
    )


def _round(e: NodeExport) -> None:
    if not e["decimals"]:
        e.add("Round", [e.operand(0)], out=True)
        return
    dtype = e.spec().dtype
    wide = DType.FLOAT32 if dtype.is_float and dtype.bits <= 16 else dtype  # as PyTorch does
    scale = e.constant(10.0 ** e["decimals"], wide)
    rounded = e.add("Round", [e.add("Mul", [e.operand(0, wide), scale])])
    e.to(e.add("Div", [rounded, scale]), dtype, wide)


def _isinf(e: NodeExport) -> None:
    flags = {"detect_positive": e["positive"], "detect_negative": e["negative"]}
    e.add("IsInf", [e.operand(0)], out=True, **{k: 0 for k, v in flags.items() if not v})


def _through(inner: str, by: float, outer: str = "") -> Exporter:
    """Return the exporter of exp2, log2 and log10 by ONNX's natural functions."""

    def export(e: NodeExport) -> None:
        dtype = e.node.spec.dtype
        x, factor = e.operand(0, dtype), e.constant(by, dtype)
        if outer == "before":
            e.add(inner, [e.add("Mul", [x, factor])], out=True)
        else:
            e.add("Mul", [e.add(inner, [x]), factor], out=True)

    return export


def _shifted(inner: str, add_first: bool) -> Exporter:
    """Return the exporter of log1p or expm1, at the accuracy of the plain forms."""

    def export(e: NodeExport) -> None:
        dtype = e.node.spec.dtype
        x, one = e.operand(0, dtype), e.constant(1, dtype)
        if add_first:
            e.add(inner, [e.add("Add", [x, one])], out=True)
        else:
            e.add("Sub", [e.add(inner, [x]), one], out=True)

    return export


def _rsqrt(e: NodeExport) -> None:
    e.add("Reciprocal", [e.add("Sqrt", [e.operand(0, e.node.spec.dtype)])], out=True)


def _trunc(e: NodeExport) -> None:
    if e.spec().dtype.is_float:
        _trunc_of(e, e.operand(0))
    else:
        e.add("Identity", [e.operand(0)], out=True)


def _fake_quantize(e: NodeExport) -> None:
    """Write fake_quantize as arithmetic in float32. NaN has the code ``quant_min``."""
    dtype, rank, whole = e.spec().dtype, e.spec().rank, e.spec(2).dtype.is_integer
    compute = DType.FLOAT64 if dtype is DType.FLOAT64 else DType.FLOAT32
    shape = e.ints([-1 if i == (e["axis"] or 0) else 1 for i in range(rank)])
    scale, zero = e.operand(1, DType.FLOAT32), e.operand(2, DType.FLOAT32)
    inverse = e.add("Reciprocal", [scale])
    values = [scale, zero, inverse]
    if any(e.spec(i).rank for i in (1, 2)):
        values = [e.add("Reshape", [v, shape]) for v in values]
    scale, zero, inverse = (v if compute is DType.FLOAT32 else e.cast(v, compute) for v in values)
    moved = e.add("Mul", [e.operand(0, compute), inverse])
    if whole:
        code = e.add("Add", [e.add("Round", [moved]), zero])
    else:
        code = e.add("Round", [e.add("Add", [moved, zero])])
    low, high = (e.constant(e[k], compute) for k in ("quant_min", "quant_max"))
    code = e.add("Where", [e.add("Equal", [code, code]), code, low])
    code = e.add("Min", [e.add("Max", [code, low]), high])
    e.to(e.add("Mul", [e.add("Sub", [code, zero]), scale]), dtype, compute)


EXPORTERS: dict[str, Exporter] = {
    **{name: _unary(op) for name, op in _SAME.items()},
    **{name: _binary(op) for name, op in _BINARY.items()},
    "atan2": _atan2,
    "bitcast": lambda e: done(e.add("BitCast", [e.operand(0)], out=True, to=e.builder.numbers[e["dtype"]])),
    "bitwise_left_shift": _shift("LEFT"),
    "bitwise_not": _bitwise_not,
    "bitwise_right_shift": _shift("RIGHT"),
    "cast": _cast,
    "clamp": _clamp,
    "div": _div,
    "eq": _text_equal,
    "exp2": _through("Exp", math.log(2), "before"),
    "expm1": _shifted("Exp", add_first=False),
    "fake_quantize": _fake_quantize,
    "fmod": _mod(True),
    "isinf": _isinf,
    "isnan": lambda e: done(e.add("IsNaN", [e.operand(0)], out=True)),
    "log10": _through("Log", 1 / math.log(10)),
    "log1p": _shifted("Log", add_first=True),
    "log2": _through("Log", 1 / math.log(2)),
    "logical_and": _logic("And"),
    "logical_not": _logic("Not"),
    "logical_or": _logic("Or"),
    "logical_xor": _logic("Xor"),
    "ne": _ne,
    "neg": _neg,
    "pow": _pow,
    "relu": _relu,
    "remainder": _mod(False),
    "round": _round,
    "rsqrt": _rsqrt,
    "sign": _sign,
    "trunc": _trunc,
    "where": _where,
}
