"""Pointwise ops in ONNX, but for activations."""

from __future__ import annotations

import math

from ....errors import IrError
from ....types import DType
from .graph_builder import Form, Writing, done

__all__ = ["FORMS"]

_SAME = {
    "abs": "Abs", "acos": "Acos", "acosh": "Acosh", "asin": "Asin", "asinh": "Asinh", "atan": "Atan", "atanh": "Atanh",
    "bitwise_not": "BitwiseNot", "ceil": "Ceil", "clone": "Identity", "cos": "Cos", "cosh": "Cosh", "erf": "Erf", "exp": "Exp",
    "floor": "Floor", "log": "Log", "neg": "Neg", "reciprocal": "Reciprocal", "relu": "Relu",
    "sigmoid": "Sigmoid", "sign": "Sign", "sin": "Sin", "sinh": "Sinh", "softsign": "Softsign", "sqrt": "Sqrt",
    "tan": "Tan", "tanh": "Tanh",
}  # fmt: skip
_BINARY = {
    "add": "Add", "bitwise_and": "BitwiseAnd", "bitwise_or": "BitwiseOr", "bitwise_xor": "BitwiseXor", "eq": "Equal",
    "ge": "GreaterOrEqual", "gt": "Greater", "le": "LessOrEqual", "lt": "Less", "maximum": "Max", "minimum": "Min",
    "mul": "Mul", "sub": "Sub",
}  # fmt: skip


def _unary(op: str) -> Form:
    """Integers are computed in the result's type (``exp`` of an int32 gives float32)."""

    def form(w: Writing) -> None:
        same = w.node.spec.dtype is w.spec().dtype or w.spec().dtype.is_complex
        w.add(op, [w.operand(0, None if same else w.node.spec.dtype)], out=True)

    return form


def _binary(op: str) -> Form:
    def form(w: Writing) -> None:
        dtype = w.common()
        if dtype is DType.BOOL and op in ("Add", "Mul"):
            w.add("Or" if op == "Add" else "And", [w.operand(0, dtype), w.operand(1, dtype)], out=True)
            return
        w.add(op, [w.operand(0, dtype), w.operand(1, dtype)], out=True)

    return form


def _logic(op: str) -> Form:
    def form(w: Writing) -> None:
        w.add(op, [w.operand(i, DType.BOOL) for i in range(len(w.node.inputs))], out=True)

    return form


def _text_equal(w: Writing) -> None:
    dtype = None if w.spec().dtype is DType.STRING else w.common()
    w.add("Equal", [w.operand(0, dtype), w.operand(1, dtype)], out=True)


def _ne(w: Writing) -> None:
    dtype = w.common()
    w.add("Not", [w.add("Equal", [w.operand(0, dtype), w.operand(1, dtype)])], out=True)


def _div(w: Writing) -> None:
    """ONNX divides integers towards zero."""
    mode, dtype = w["rounding_mode"], w.common()
    if mode is None:
        result = w.node.spec.dtype
        w.add("Div", [w.operand(0, result), w.operand(1, result)], out=True)
        return
    a, b = w.operand(0, dtype), w.operand(1, dtype)
    if dtype.is_integer and mode == "trunc":
        w.add("Div", [a, b], out=True)
    elif mode == "floor" and dtype.is_float:
        w.add("Floor", [w.add("Div", [a, b])], out=True)
    elif mode == "floor" and not dtype.is_signed:
        w.add("Div", [a, b], out=True)
    elif mode == "floor":
        exact = w.add("Sub", [a, w.add("Mod", [a, b])])  # a - (a mod b) is a multiple of b
        w.add("Div", [exact, b], out=True)
    else:
        _trunc_of(w, w.add("Div", [a, b]))


def _trunc_of(w: Writing, value: str) -> None:
    w.add("Mul", [w.add("Sign", [value]), w.add("Floor", [w.add("Abs", [value])])], out=True)


def _mod(fmod: bool) -> Form:
    def form(w: Writing) -> None:
        dtype = w.common()
        a, b = w.operand(0, dtype), w.operand(1, dtype)
        if fmod or dtype.is_integer:
            w.add("Mod", [a, b], out=True, fmod=1 if fmod else None)
            return
        # ONNX has the floating remainder with the sign of the dividend only.
        rest = w.add("Mod", [a, b], fmod=1)
        shifted = w.add("Mod", [w.add("Add", [rest, b]), b], fmod=1)
        w.add("Identity", [shifted], out=True)

    return form


def _shift(direction: str) -> Form:
    def form(w: Writing) -> None:
        dtype = w.common()
        if dtype.is_signed:
            raise IrError(
                f"{w.node.op} %{w.node.name}", "ONNX shifts unsigned integers only", got=dtype.value
            )
        w.add("BitShift", [w.operand(0, dtype), w.operand(1, dtype)], out=True, direction=direction)

    return form


def _pow(w: Writing) -> None:
    w.add("Pow", [w.operand(0, w.common()), w.operand(1, w.common())], out=True)


def _where(w: Writing) -> None:
    dtype = w.node.spec.dtype
    w.add("Where", [w.operand(0), w.operand(1, dtype), w.operand(2, dtype)], out=True)


def _clamp(w: Writing) -> None:
    """Clip takes scalar bounds; bounds with dims are a maximum and a minimum."""
    dtype = w.common()
    x = w.operand(0, dtype)
    dims = [i for i in (1, 2) if w.has(i) and isinstance(w.node.inputs[i], str) and w.spec(i).rank]
    if not dims and (w.opset >= 12 or dtype.is_float):
        w.add("Clip", [x, w.opt(1, dtype), w.opt(2, dtype)], out=True)
        return
    if w.has(1):
        x = w.add("Max", [x, w.operand(1, dtype)])
    if w.has(2):
        x = w.add("Min", [x, w.operand(2, dtype)])
    w.add("Identity", [x], out=True)


def _cast(w: Writing) -> None:
    dtype = w["dtype"]
    eight = dtype.value.startswith("float8") and dtype is not DType.FLOAT8_E8M0FNU
    w.add(
        "Cast",
        [w.operand(0)],
        out=True,
        to=w.pen.numbers[dtype],
        saturate=0 if eight and not w["saturate"] else None,
        round_mode=w["round_mode"] if dtype is DType.FLOAT8_E8M0FNU else None,
    )


def _round(w: Writing) -> None:
    if not w["decimals"]:
        w.add("Round", [w.operand(0)], out=True)
        return
    scale = w.constant(10.0 ** w["decimals"], w.spec().dtype)
    w.add("Div", [w.add("Round", [w.add("Mul", [w.operand(0), scale])]), scale], out=True)


def _isinf(w: Writing) -> None:
    flags = {"detect_positive": w["positive"], "detect_negative": w["negative"]}
    w.add("IsInf", [w.operand(0)], out=True, **{k: 0 for k, v in flags.items() if not v})


def _through(inner: str, by: float, outer: str = "") -> Form:
    """exp2, log2 and their like from ONNX's natural ones."""

    def form(w: Writing) -> None:
        dtype = w.node.spec.dtype
        x, factor = w.operand(0, dtype), w.constant(by, dtype)
        if outer == "before":
            w.add(inner, [w.add("Mul", [x, factor])], out=True)
        else:
            w.add("Mul", [w.add(inner, [x]), factor], out=True)

    return form


def _shifted(inner: str, before: bool) -> Form:
    """log1p and expm1, at the accuracy of their plain forms."""

    def form(w: Writing) -> None:
        dtype = w.node.spec.dtype
        x, one = w.operand(0, dtype), w.constant(1, dtype)
        if before:
            w.add(inner, [w.add("Add", [x, one])], out=True)
        else:
            w.add("Sub", [w.add(inner, [x]), one], out=True)

    return form


def _rsqrt(w: Writing) -> None:
    w.add("Reciprocal", [w.add("Sqrt", [w.operand(0, w.node.spec.dtype)])], out=True)


def _trunc(w: Writing) -> None:
    if w.spec().dtype.is_float:
        _trunc_of(w, w.operand(0))
    else:
        w.add("Identity", [w.operand(0)], out=True)


FORMS: dict[str, Form] = {
    **{name: _unary(op) for name, op in _SAME.items()},
    **{name: _binary(op) for name, op in _BINARY.items()},
    "bitcast": lambda w: done(w.add("BitCast", [w.operand(0)], out=True, to=w.pen.numbers[w["dtype"]])),
    "bitwise_left_shift": _shift("LEFT"),
    "bitwise_right_shift": _shift("RIGHT"),
    "cast": _cast,
    "clamp": _clamp,
    "div": _div,
    "eq": _text_equal,
    "exp2": _through("Exp", math.log(2), "before"),
    "expm1": _shifted("Exp", before=False),
    "fmod": _mod(True),
    "isinf": _isinf,
    "isnan": lambda w: done(w.add("IsNaN", [w.operand(0)], out=True)),
    "log10": _through("Log", 1 / math.log(10)),
    "log1p": _shifted("Log", before=True),
    "log2": _through("Log", 1 / math.log(2)),
    "logical_and": _logic("And"),
    "logical_not": _logic("Not"),
    "logical_or": _logic("Or"),
    "logical_xor": _logic("Xor"),
    "ne": _ne,
    "pow": _pow,
    "remainder": _mod(False),
    "round": _round,
    "rsqrt": _rsqrt,
    "trunc": _trunc,
    "where": _where,
}
