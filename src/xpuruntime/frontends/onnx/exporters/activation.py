"""Activations in ONNX, alone and at the end of a fused op."""

from __future__ import annotations

import math

from ....errors import IrError
from ....types import DType
from .graph_builder import Form, Writing, done

__all__ = ["FORMS", "activated"]


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
    "elu": _elu,
    "gelu": lambda w: _gelu_of(w, w.operand(0), w["approximate"], w.spec().dtype),
    "hardmax": _softmax("Hardmax"),
    "hardsigmoid": _hardsigmoid,
    "hardswish": _hardswish,
    "leaky_relu": lambda w: done(w.add("LeakyRelu", [w.operand(0)], out=True, alpha=w["negative_slope"])),
    "log_softmax": _softmax("LogSoftmax"),
    "mish": _mish,
    "prelu": lambda w: done(w.add("PRelu", [w.operand(0), w.operand(1)], out=True)),
    "silu": lambda w: activated(w, w.operand(0), "silu", w.spec().dtype),
    "silu_mul": _silu_mul,
    "softmax": _softmax("Softmax"),
    "softplus": _softplus,
}
