"""Lowerings of activations and softmax."""

from __future__ import annotations

import math

from ...not_lowered import NotLowered
from .context import OnnxLoweringContext, OpLowering, Results
from .elementwise import same

__all__ = ["LOWERINGS"]


def _elu(n: OnnxLoweringContext) -> Results:
    return str(n.b.elu(n.x, alpha=n.attr("alpha", 1.0)))


def _selu(n: OnnxLoweringContext) -> Results:
    alpha, gamma = n.attr("alpha", 1.67326319217681884765625), n.attr("gamma", 1.05070102214813232421875)
    return str(n.b.elu(n.x, alpha=alpha, scale=gamma))


def _celu(n: OnnxLoweringContext) -> Results:
    alpha = n.attr("alpha", 1.0)
    return str(n.b.elu(n.x, alpha=alpha, input_scale=1.0 / alpha))


def _hardsigmoid(n: OnnxLoweringContext) -> Results:
    return str(n.b.hardsigmoid(n.x, alpha=n.attr("alpha", 0.2), beta=n.attr("beta", 0.5)))


def _gelu(n: OnnxLoweringContext) -> Results:
    return str(n.b.gelu(n.x, approximate=n.attr("approximate", "none")))


def _swish(n: OnnxLoweringContext) -> Results:
    alpha = n.attr("alpha", 1.0)
    if alpha == 1.0:
        return str(n.b.silu(n.x))
    return str(n.b.mul(n.x, n.b.sigmoid(n.b.mul(n.x, alpha))))


def _swiglu(n: OnnxLoweringContext) -> Results:
    if len(n.inputs) != 2 or n.attr("alpha", 1.0) != 1.0:
        raise NotLowered("only alpha = 1 is supported")
    return str(n.b.silu_mul(n.x, n.input(1)))


def _thresholded(n: OnnxLoweringContext) -> Results:
    above = n.b.gt(n.x, n.like(n.attr("alpha", 1.0)))
    return str(n.b.where(above, n.x, n.like(0)))


def _shrink(n: OnnxLoweringContext) -> Results:
    lambd, bias = n.attr("lambd", 0.5), n.attr("bias", 0.0)
    if n.spec().dtype.is_integer:
        raise NotLowered("Shrink is supported for floats only")
    high = n.b.where(n.b.gt(n.x, n.like(lambd)), n.b.sub(n.x, n.like(bias)), n.like(0))
    return str(n.b.where(n.b.lt(n.x, n.like(-lambd)), n.b.add(n.x, n.like(bias)), high))


def _softmax(op: str) -> OpLowering:
    """Return the lowering of softmax along one axis; below opset 13, over all dims from ``axis`` on, flattened."""

    def lower(n: OnnxLoweringContext) -> Results:
        rank = n.spec().rank
        if n.opset >= 13:
            return str(n.b.call(op, n.x, dim=n.axis(-1)))
        axis = n.axis(1)
        if axis == rank - 1:
            return str(n.b.call(op, n.x, dim=axis))
        shape = n.spec().shape
        flat = n.b.view(n.x, size=[math.prod(shape[:axis], start=1), math.prod(shape[axis:], start=1)])
        return str(n.b.view(n.b.call(op, flat, dim=1), size=shape))

    return lower


LOWERINGS: dict[str, OpLowering] = {
    "Celu": _celu,
    "Elu": _elu,
    "Gelu": _gelu,
    "HardSigmoid": _hardsigmoid,
    "HardSwish": same("hardswish"),
    "Hardmax": _softmax("hardmax"),
    "LeakyRelu": lambda n: str(n.b.leaky_relu(n.x, negative_slope=n.attr("alpha", 0.01))),
    "LogSoftmax": _softmax("log_softmax"),
    "Mish": same("mish"),
    "PRelu": same("prelu"),
    "Relu": same("relu"),
    "Selu": _selu,
    "Shrink": _shrink,
    "Sigmoid": same("sigmoid"),
    "Softmax": _softmax("softmax"),
    "Softplus": same("softplus"),
    "Softsign": same("softsign"),
    "SwiGLU": _swiglu,
    "Swish": _swish,
    "Tanh": same("tanh"),
    "ThresholdedRelu": _thresholded,
}
