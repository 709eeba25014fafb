"""Lowerings of ONNX Runtime's activations (``com.microsoft``), and the activations inside its fused ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ....not_lowered import NotLowered
from ..context import OnnxLoweringContext, OpLowering, Results

__all__ = ["LOWERINGS", "activated"]


def _gelu(approximate: str) -> OpLowering:
    """Return the lowering of Gelu, BiasGelu and FastGelu: the second operand is a bias."""

    def lower(n: OnnxLoweringContext) -> Results:
        x = n.x if n.opt(1) is None else n.b.add(n.x, n.vector(1, (n.spec().shape or (1,))[-1], "bias"))
        return str(n.b.gelu(x, approximate=approximate))

    return lower


def _quick_gelu(n: OnnxLoweringContext) -> Results:
    return str(n.b.mul(n.x, n.b.sigmoid(n.b.mul(n.x, float(n.attr("alpha", 1.702))))))


def _bias_add(n: OnnxLoweringContext) -> Results:
    return str(n.b.add(n.b.add(n.x, n.input(1)), n.input(2)))


def _bias_split_gelu(n: OnnxLoweringContext) -> Results:
    """Lower BiasSplitGelu: the first half of the channels times the GELU of the second half."""
    total = str(n.b.add(n.x, n.input(1)))
    spec = n.spec_of(total)
    half = spec.shape[-1] // 2
    value, gate = n.b.call("split", total, outputs=2, sizes=[half, half], dim=spec.rank - 1)
    return str(n.b.mul(value, n.b.gelu(gate, approximate="none")))


def _bias_softmax(n: OnnxLoweringContext) -> Results:
    """Lower BiasSoftmax over the dims from ``axis`` on, as one softmax if that is the last dim."""
    if n.axis(1) != n.spec().rank - 1:
        raise NotLowered("a softmax over several dims is not supported")
    if n.attr("is_inner_broadcast", 1) == 0 and n.spec(1).rank != n.spec().rank:
        raise NotLowered("a bias that repeats along outer dims needs the rank of its operand")
    return str(n.b.softmax(n.b.add(n.x, n.input(1)), dim=n.spec().rank - 1))


def _bias_dropout(n: OnnxLoweringContext) -> Results:
    """Lower BiasDropout outside training: data + bias + residual."""
    if n.opt(4) is not None and bool(n.number(4, "training mode")):
        raise NotLowered("training mode is not supported")
    if n.has_readers(1):
        raise NotLowered("its mask as an output is not supported")
    total = n.b.add(n.x, n.input(1))
    return [str(total if n.opt(2) is None else n.b.add(total, n.input(2))), None]


class _Activation(NamedTuple):
    """An activation of a fused op: its lowering, and how many numbers it needs."""

    lower: Callable[[OnnxLoweringContext, str, list[float]], Any]
    numbers: int = 0


_ACTIVATIONS: dict[str, _Activation] = {
    "": _Activation(lambda n, x, p: x),
    "Relu": _Activation(lambda n, x, p: n.b.relu(x)),
    "Sigmoid": _Activation(lambda n, x, p: n.b.sigmoid(x)),
    "Tanh": _Activation(lambda n, x, p: n.b.tanh(x)),
    "LeakyRelu": _Activation(lambda n, x, p: n.b.leaky_relu(x, negative_slope=p[0]), 1),
    "HardSigmoid": _Activation(lambda n, x, p: n.b.hardsigmoid(x, alpha=p[0], beta=p[1]), 2),
    "Clip": _Activation(lambda n, x, p: n.b.clamp(x, p[0], p[1]), 2),
}
"""Activation of a fused op -> its lowering."""


def activated(n: OnnxLoweringContext, x: str, parameters: list[float], *, exact: bool) -> str:
    """Return the activation of a fused op, with its parameters (alpha, beta). ``exact``: more than it needs are an error."""
    name = n.attr("activation", "")
    if name not in _ACTIVATIONS:
        raise NotLowered(f"the activation {name!r} is not supported")
    lower, needed = _ACTIVATIONS[name]
    count = len(parameters)
    if count < needed or (exact and needed and count > needed):
        raise NotLowered(f"the activation {name!r} needs {needed} numbers and has {count}")
    return str(lower(n, x, parameters))


LOWERINGS: dict[str, OpLowering] = {
    "BiasAdd": _bias_add,
    "BiasDropout": _bias_dropout,
    "BiasGelu": _gelu("none"),
    "BiasSoftmax": _bias_softmax,
    "BiasSplitGelu": _bias_split_gelu,
    "FastGelu": _gelu("tanh"),
    "Gelu": _gelu("none"),
    "QuickGelu": _quick_gelu,
}
