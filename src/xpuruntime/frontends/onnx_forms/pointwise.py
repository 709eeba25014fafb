"""Pointwise ops and activations in ONNX."""

from __future__ import annotations

import math

from ...errors import IrError
from ...types import DType
from .pen import Form, Writing

__all__ = ["FORMS", "activated"]

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


# ── activations ──


def activated(w: Writing, value: str, act: str, dtype: DType) -> None:
    """The node's output is a fused op's activation of a value."""
    plain = {"relu": "Relu", "sigmoid": "Sigmoid", "tanh": "Tanh", "none": "Identity"}
    if act in plain:
        w.add(plain[act], [value], out=True)
    elif act == "relu6":
        w.add("Clip", [value, w.constant(0, dtype), w.constant(6, dtype)], out=True)
    elif act == "leaky_relu":
        w.add("LeakyRelu", [value], out=True, alpha=0.01)
    elif act == "silu":
        w.add("Mul", [value, w.add("Sigmoid", [value])], out=True)
    elif act == "hardswish":
        w.add("Mul", [value, w.add("HardSigmoid", [value], alpha=1 / 6, beta=0.5)], out=True)
    else:
        _gelu_of(w, value, "tanh" if act == "gelu_tanh" else "none", dtype)


def _gelu_of(w: Writing, x: str, approximate: str, dtype: DType) -> None:
    """gelu(x) = x/2 (1 + erf(x / sqrt 2)), or its tanh approximation (Hendrycks and Gimpel, arXiv 1606.08415)."""
    if w.opset >= 20:
        w.add("Gelu", [x], out=True, approximate=approximate)
        return

    def k(v: float) -> str:
        return w.constant(v, dtype)

    if approximate == "tanh":
        cube = w.add("Mul", [w.add("Mul", [x, x]), x])
        inner = w.add(
            "Mul", [w.add("Add", [x, w.add("Mul", [cube, k(0.044715)])]), k(math.sqrt(2 / math.pi))]
        )
        gate = w.add("Tanh", [inner])
    else:
        gate = w.add("Erf", [w.add("Mul", [x, k(math.sqrt(0.5))])])
    w.add("Mul", [w.add("Mul", [x, k(0.5)]), w.add("Add", [gate, k(1)])], out=True)


def _elu(w: Writing) -> None:
    alpha, scale, inner = w["alpha"], w["scale"], w["input_scale"]
    x, dtype = w.operand(0), w.spec().dtype
    if inner == 1.0 and scale == 1.0:
        w.add("Elu", [x], out=True, alpha=alpha)
    elif inner == 1.0:
        w.add("Selu", [x], out=True, alpha=alpha, gamma=scale)
    elif scale == 1.0 and alpha and inner == 1.0 / alpha and w.opset >= 12:
        w.add("Celu", [x], out=True, alpha=alpha)
    else:
        zero = w.constant(0, dtype)
        low = w.add("Elu", [w.add("Mul", [w.add("Min", [x, zero]), w.constant(inner, dtype)])], alpha=alpha)
        whole = w.add("Add", [w.add("Max", [x, zero]), low])
        w.add("Mul", [whole, w.constant(scale, dtype)], out=True)


def _softplus(w: Writing) -> None:
    x, beta, dtype = w.operand(0), w["beta"], w.spec().dtype
    if beta == 1.0 and w["threshold"] is None:
        w.add("Softplus", [x], out=True)
        return
    scaled = w.add("Mul", [x, w.constant(beta, dtype)])
    soft = w.add("Div", [w.add("Softplus", [scaled]), w.constant(beta, dtype)])
    if w["threshold"] is not None:
        soft = w.add("Where", [w.add("Greater", [scaled, w.constant(w["threshold"], dtype)]), x, soft])
    w.add("Identity", [soft], out=True)


def _hardswish(w: Writing) -> None:
    if w.opset >= 14:
        w.add("HardSwish", [w.operand(0)], out=True)
    else:
        activated(w, w.operand(0), "hardswish", w.spec().dtype)


def _mish(w: Writing) -> None:
    x = w.operand(0)
    if w.opset >= 18:
        w.add("Mish", [x], out=True)
    else:
        w.add("Mul", [x, w.add("Tanh", [w.add("Softplus", [x])])], out=True)


def _silu_mul(w: Writing) -> None:
    gate = w.operand(0)
    w.add("Mul", [w.add("Mul", [gate, w.add("Sigmoid", [gate])]), w.operand(1)], out=True)


def _softmax(op: str) -> Form:
    def form(w: Writing) -> None:
        if w.opset < 13 and w["dim"] != w.spec().rank - 1:
            raise IrError(f"{w.node.op} %{w.node.name}", "opsets below 13 have it along the last dim only")
        dtype = w.node.spec.dtype
        w.add(op, [w.operand(0, dtype)], out=True, axis=w["dim"])

    return form


def _hardsigmoid(w: Writing) -> None:
    w.add("HardSigmoid", [w.operand(0)], out=True, alpha=w["alpha"], beta=w["beta"])


FORMS: dict[str, Form] = {
    **{name: _unary(op) for name, op in _SAME.items()},
    **{name: _binary(op) for name, op in _BINARY.items()},
    "bitcast": lambda w: _discard(w.add("BitCast", [w.operand(0)], out=True, to=w.pen.numbers[w["dtype"]])),
    "bitwise_left_shift": _shift("LEFT"),
    "bitwise_right_shift": _shift("RIGHT"),
    "cast": _cast,
    "clamp": _clamp,
    "div": _div,
    "elu": _elu,
    "eq": _text_equal,
    "exp2": _through("Exp", math.log(2), "before"),
    "expm1": _shifted("Exp", before=False),
    "fmod": _mod(True),
    "gelu": lambda w: _gelu_of(w, w.operand(0), w["approximate"], w.spec().dtype),
    "hardmax": _softmax("Hardmax"),
    "hardsigmoid": _hardsigmoid,
    "hardswish": _hardswish,
    "isinf": _isinf,
    "isnan": lambda w: _discard(w.add("IsNaN", [w.operand(0)], out=True)),
    "leaky_relu": lambda w: _discard(w.add("LeakyRelu", [w.operand(0)], out=True, alpha=w["negative_slope"])),
    "log10": _through("Log", 1 / math.log(10)),
    "log1p": _shifted("Log", before=True),
    "log2": _through("Log", 1 / math.log(2)),
    "log_softmax": _softmax("LogSoftmax"),
    "logical_and": _logic("And"),
    "logical_not": _logic("Not"),
    "logical_or": _logic("Or"),
    "logical_xor": _logic("Xor"),
    "mish": _mish,
    "ne": _ne,
    "pow": _pow,
    "prelu": lambda w: _discard(w.add("PRelu", [w.operand(0), w.operand(1)], out=True)),
    "remainder": _mod(False),
    "round": _round,
    "rsqrt": _rsqrt,
    "silu": lambda w: activated(w, w.operand(0), "silu", w.spec().dtype),
    "silu_mul": _silu_mul,
    "softmax": _softmax("Softmax"),
    "softplus": _softplus,
    "trunc": _trunc,
    "where": _where,
}


def _discard(_: object) -> None:
    return None
