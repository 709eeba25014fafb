"""Exporters of activations, alone and as the epilogue of a fused op."""

from __future__ import annotations

import math

from ....errors import IrError
from ....types import DType
from .graph_builder import Exporter, NodeExport, done

__all__ = ["EXPORTERS", "activated"]


def activated(e: NodeExport, value: str, act: str, dtype: DType) -> None:
    """Write the node's output as a fused op's activation of a value."""
    plain = {"relu": "Relu", "sigmoid": "Sigmoid", "tanh": "Tanh", "none": "Identity"}
    if act in plain:
        e.add(plain[act], [value], out=True)
    elif act == "relu6":
        e.add("Clip", [value, e.constant(0, dtype), e.constant(6, dtype)], out=True)
    elif act == "leaky_relu":
        e.add("LeakyRelu", [value], out=True, alpha=0.01)
    elif act == "silu":
        e.add("Mul", [value, e.add("Sigmoid", [value])], out=True)
    elif act == "hardswish":
        e.add("Mul", [value, e.add("HardSigmoid", [value], alpha=1 / 6, beta=0.5)], out=True)
    else:
        _gelu_of(e, value, "tanh" if act == "gelu_tanh" else "none", dtype)


def _gelu_of(e: NodeExport, x: str, approximate: str, dtype: DType) -> None:
    """Write gelu(x) = x/2 (1 + erf(x / sqrt 2)), or its tanh approximation (Hendrycks and Gimpel, arXiv 1606.08415)."""
    if e.opset >= 20:
        e.add("Gelu", [x], out=True, approximate=approximate)
        return

    def k(v: float) -> str:
        return e.constant(v, dtype)

    if approximate == "tanh":
        cube = e.add("Mul", [e.add("Mul", [x, x]), x])
        inner = e.add(
            "Mul", [e.add("Add", [x, e.add("Mul", [cube, k(0.044715)])]), k(math.sqrt(2 / math.pi))]
        )
        gate = e.add("Tanh", [inner])
    else:
        gate = e.add("Erf", [e.add("Mul", [x, k(math.sqrt(0.5))])])
    e.add("Mul", [e.add("Mul", [x, k(0.5)]), e.add("Add", [gate, k(1)])], out=True)


def _elu(e: NodeExport) -> None:
    alpha, scale, inner = e["alpha"], e["scale"], e["input_scale"]
    x, dtype = e.operand(0), e.spec().dtype
    if inner == 1.0 and scale == 1.0:
        e.add("Elu", [x], out=True, alpha=alpha)
    elif inner == 1.0:
        e.add("Selu", [x], out=True, alpha=alpha, gamma=scale)
    elif scale == 1.0 and alpha and inner == 1.0 / alpha and e.opset >= 12:
        e.add("Celu", [x], out=True, alpha=alpha)
    else:
        zero = e.constant(0, dtype)
        low = e.add("Elu", [e.add("Mul", [e.add("Min", [x, zero]), e.constant(inner, dtype)])], alpha=alpha)
        elu = e.add("Add", [e.add("Max", [x, zero]), low])
        e.add("Mul", [elu, e.constant(scale, dtype)], out=True)


def _softplus(e: NodeExport) -> None:
    x, beta, dtype = e.operand(0), e["beta"], e.spec().dtype
    if beta == 1.0 and e["threshold"] is None:
        e.add("Softplus", [x], out=True)
        return
    scaled = e.add("Mul", [x, e.constant(beta, dtype)])
    soft = e.add("Div", [e.add("Softplus", [scaled]), e.constant(beta, dtype)])
    if e["threshold"] is not None:
        soft = e.add("Where", [e.add("Greater", [scaled, e.constant(e["threshold"], dtype)]), x, soft])
    e.add("Identity", [soft], out=True)


def _hardswish(e: NodeExport) -> None:
    if e.opset >= 14:
        e.add("HardSwish", [e.operand(0)], out=True)
    else:
        activated(e, e.operand(0), "hardswish", e.spec().dtype)


def _mish(e: NodeExport) -> None:
    x = e.operand(0)
    if e.opset >= 18:
        e.add("Mish", [x], out=True)
    else:
        e.add("Mul", [x, e.add("Tanh", [e.add("Softplus", [x])])], out=True)


def _silu_mul(e: NodeExport) -> None:
    gate = e.operand(0)
    e.add("Mul", [e.add("Mul", [gate, e.add("Sigmoid", [gate])]), e.operand(1)], out=True)


def _softmax(op: str) -> Exporter:
    def export(e: NodeExport) -> None:
        if e.opset < 13 and e["dim"] != e.spec().rank - 1:
            raise IrError(f"{e.node.op} %{e.node.name}", "opsets below 13 support the last dim only")
        dtype = e.node.spec.dtype
        x = e.operand(0, dtype)
        if not e.spec().rank:  # ONNX takes no scalar
            line = e.add(op, [e.add("Reshape", [x, e.ints([1])])], axis=0)
            e.add("Reshape", [line, e.ints([])], out=True)
            return
        e.add(op, [x], out=True, axis=e["dim"])

    return export


def _hardsigmoid(e: NodeExport) -> None:
    e.add("HardSigmoid", [e.operand(0)], out=True, alpha=e["alpha"], beta=e["beta"])


EXPORTERS: dict[str, Exporter] = {
    "elu": _elu,
    "gelu": lambda e: _gelu_of(e, e.operand(0), e["approximate"], e.spec().dtype),
    "hardmax": _softmax("Hardmax"),
    "hardsigmoid": _hardsigmoid,
    "hardswish": _hardswish,
    "leaky_relu": lambda e: done(e.add("LeakyRelu", [e.operand(0)], out=True, alpha=e["negative_slope"])),
    "log_softmax": _softmax("LogSoftmax"),
    "mish": _mish,
    "prelu": lambda e: done(e.add("PRelu", [e.operand(0), e.operand(1)], out=True)),
    "silu": lambda e: activated(e, e.operand(0), "silu", e.spec().dtype),
    "silu_mul": _silu_mul,
    "softmax": _softmax("Softmax"),
    "softplus": _softplus,
}
