"""Lowerings of ONNX's optimizer steps (domain ``ai.onnx.preview.training``): of several tensors with one rate and one step count."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ....types import DType
from ...not_lowered import NotLowered
from .context import OnnxLoweringContext, OpLowering, Results

__all__ = ["LOWERINGS"]

_Step = Callable[[OnnxLoweringContext, str, Sequence[str]], Sequence[str]]
"""Lowers the step of one tensor: the rate in its type, then the tensor, its gradient and its states. Returns the new tensor and states."""


def _optimizer(states: int, rate: Callable[[OnnxLoweringContext], str], step: _Step) -> OpLowering:
    """Return the lowering of an op whose operands are the rate, the step count, and all tensors, all gradients, all of each state."""

    def lower(n: OnnxLoweringContext) -> Results:
        groups = 2 + states
        count, rest = divmod(len(n.inputs) - 2, groups)
        if rest or count < 1:
            raise NotLowered(f"it needs {groups} operands for each tensor")
        scalar = rate(n)
        results = []
        for i in range(count):
            operands = [n.input(2 + i + count * group) for group in range(groups)]
            results.append(step(n, n.cast(scalar, n.spec_of(operands[0]).dtype), operands))
        return [values[group] for group in range(1 + states) for values in results]

    return lower


def _scalar(n: OnnxLoweringContext, position: int) -> str:
    """Return the rate or the step count as one float64 without dims."""
    value = n.input(position)
    return n.cast(value if not n.spec(position).rank else str(n.b.view(value, size=[])), DType.FLOAT64)


def _started(n: OnnxLoweringContext) -> str:
    return str(n.b.gt(_scalar(n, 1), 0.0))


def _regularized(n: OnnxLoweringContext, x: str, gradient: str) -> str:
    norm = float(n.attr("norm_coefficient", 0.0))
    return str(n.b.add(n.b.mul(x, norm), gradient))


def _decayed(n: OnnxLoweringContext) -> str:
    decay = n.b.add(n.b.mul(_scalar(n, 1), float(n.attr("decay_factor", 0.0))), 1.0)
    return str(n.b.div(_scalar(n, 0), decay))


def _adagrad(n: OnnxLoweringContext, rate: str, operands: Sequence[str]) -> Sequence[str]:
    x, gradient, squares = operands
    g = _regularized(n, x, gradient)
    new = str(n.b.add(squares, n.b.mul(g, g)))
    scale = n.b.add(n.b.sqrt(new), float(n.attr("epsilon", 1e-6)))
    return str(n.b.sub(x, n.b.div(n.b.mul(rate, g), scale))), new


def _corrected(n: OnnxLoweringContext) -> str:
    """Return Adam's rate with the corrections of both means; the rate itself before the first step."""
    step, rate = _scalar(n, 1), _scalar(n, 0)
    powers = (n.b.pow(float(n.attr(name, usual)), step) for name, usual in _MEANS)
    alpha, beta = (n.b.add(n.b.neg(power), 1.0) for power in powers)
    return str(n.b.where(_started(n), n.b.div(n.b.mul(rate, n.b.sqrt(beta)), alpha), rate))


_MEANS = (("alpha", 0.9), ("beta", 0.999))


def _mean(n: OnnxLoweringContext, old: str, new: str, share: float) -> str:
    return str(n.b.add(n.b.mul(old, share), n.b.mul(new, 1.0 - share)))


def _adam(n: OnnxLoweringContext, rate: str, operands: Sequence[str]) -> Sequence[str]:
    x, gradient, first, second = operands
    alpha, beta = (float(n.attr(name, usual)) for name, usual in _MEANS)
    g = _regularized(n, x, gradient)
    first = _mean(n, first, g, alpha)
    second = _mean(n, second, str(n.b.mul(g, g)), beta)
    scale = n.b.add(n.b.sqrt(second), float(n.attr("epsilon", 1e-6)))
    y = n.b.sub(x, n.b.mul(rate, n.b.div(first, scale)))
    return str(n.b.mul(y, 1.0 - float(n.attr("norm_coefficient_post", 0.0)))), first, second


def _momentum(n: OnnxLoweringContext, rate: str, operands: Sequence[str]) -> Sequence[str]:
    x, gradient, velocity = operands
    g, alpha = _regularized(n, x, gradient), float(n.attrs["alpha"])
    share = n.cast(
        str(
            n.b.where(_started(n), n.b.full(size=[], value=float(n.attrs["beta"]), dtype=DType.FLOAT64), 1.0)
        ),
        n.spec_of(x).dtype,
    )
    velocity = str(n.b.add(n.b.mul(velocity, alpha), n.b.mul(g, share)))
    step = velocity if n.attrs["mode"] == "standard" else n.b.add(g, n.b.mul(velocity, alpha))
    return str(n.b.sub(x, n.b.mul(rate, step))), velocity


LOWERINGS: dict[str, OpLowering] = {
    "Adagrad": _optimizer(1, _decayed, _adagrad),
    "Adam": _optimizer(2, _corrected, _adam),
    "Momentum": _optimizer(1, lambda n: _scalar(n, 0), _momentum),
}
