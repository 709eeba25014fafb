"""Activation functions, and softmax."""

from __future__ import annotations

from ...types import TensorSpec
from ..schema import Mismatch, OpCall, OpEntry, op
from ._shapes import broadcast, like
from .elementwise import unary_float, unary_same

__all__ = ["ROWS"]


def _softmax(c: OpCall) -> TensorSpec:
    x = c.tensor()
    if c["dtype"] is not None:
        return TensorSpec(x.shape, c["dtype"])
    return unary_float(c)


def _prelu(c: OpCall) -> TensorSpec:
    x, slope = c.tensor(0), c.tensor(1)
    if broadcast(x.shape, slope.shape) != x.shape:
        raise Mismatch("the slope must broadcast to x", f"{slope} to {x}")
    return like(x)


def _gated(c: OpCall) -> TensorSpec:
    gate, up = c.tensor(0), c.tensor(1)
    if gate.dtype is not up.dtype:
        raise Mismatch("both must have one dtype", f"{gate.dtype.value} and {up.dtype.value}")
    return like(gate, broadcast(gate.shape, up.shape))


def _act(signature: str, aten: str = "", onnx: str = "", meaning: str = "") -> OpEntry:
    return op(signature, "activation", unary_float, aten=aten, onnx=onnx, pointwise=True, meaning=meaning)


ROWS: tuple[OpEntry, ...] = (
    op("relu(x) -> y", "activation", unary_same, aten="relu", onnx="Relu", pointwise=True),
    _act("sigmoid(x) -> y", "sigmoid", "Sigmoid"),
    _act("tanh(x) -> y", "tanh", "Tanh"),
    _act("gelu(x; approximate: none|tanh = none) -> y", "gelu", "Gelu"),
    _act("silu(x) -> y", "silu", "Swish", "x * sigmoid(x)"),
    _act(
        "elu(x; alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> y",
        "elu",
        "Elu Selu Celu",
        "scale * (x if x > 0 else alpha * expm1(x * input_scale))",
    ),
    _act("leaky_relu(x; negative_slope: float = 0.01) -> y", "leaky_relu", "LeakyRelu"),
    _act(
        "hardsigmoid(x; alpha: float = 0.16666666666666666, beta: float = 0.5) -> y",
        "hardsigmoid",
        "HardSigmoid",
    ),
    _act("hardswish(x) -> y", "hardswish", "HardSwish"),
    _act("mish(x) -> y", "mish", "Mish"),
    _act(
        "softplus(x; beta: float = 1.0, threshold: float? = none) -> y",
        "softplus",
        "Softplus",
        "log(1 + exp(beta * x)) / beta; x where beta * x is above the threshold",
    ),
    _act("softsign(x) -> y", "", "Softsign"),
    op("prelu(x, slope) -> y", "activation", _prelu, aten="_prelu_kernel", onnx="PRelu", pointwise=True),
    op(
        "silu_mul(gate, up) -> y",
        "activation",
        _gated,
        onnx="SwiGLU",
        pointwise=True,
        meaning="silu(gate) * up: the gate of SwiGLU feed-forward layers",
    ),
    op(
        "softmax(x; dim: axis, dtype: dtype? = none) -> y",
        "softmax",
        _softmax,
        aten="_softmax",
        onnx="Softmax",
    ),
    op(
        "log_softmax(x; dim: axis, dtype: dtype? = none) -> y",
        "softmax",
        _softmax,
        aten="_log_softmax",
        onnx="LogSoftmax",
    ),
    op(
        "hardmax(x; dim: axis) -> y",
        "softmax",
        unary_same,
        onnx="Hardmax",
        meaning="one at the first maximum, else zero",
    ),
)
