"""The non-linear functions of neural networks, and softmax."""

from __future__ import annotations

import math

from .context import NotLowered, Results, Row, Site
from .elementwise import same

__all__ = ["ROWS"]


def _elu(n: Site) -> Results:
    return str(n.b.elu(n.x, alpha=n.attr("alpha", 1.0)))


def _selu(n: Site) -> Results:
    alpha, gamma = n.attr("alpha", 1.67326319217681884765625), n.attr("gamma", 1.05070102214813232421875)
    return str(n.b.elu(n.x, alpha=alpha, scale=gamma))


def _celu(n: Site) -> Results:
    alpha = n.attr("alpha", 1.0)
    return str(n.b.elu(n.x, alpha=alpha, input_scale=1.0 / alpha))


def _hardsigmoid(n: Site) -> Results:
    return str(n.b.hardsigmoid(n.x, alpha=n.attr("alpha", 0.2), beta=n.attr("beta", 0.5)))


def _gelu(n: Site) -> Results:
    return str(n.b.gelu(n.x, approximate=n.attr("approximate", "none")))


def _swish(n: Site) -> Results:
    alpha = n.attr("alpha", 1.0)
    if alpha == 1.0:
        return str(n.b.silu(n.x))
    return str(n.b.mul(n.x, n.b.sigmoid(n.b.mul(n.x, alpha))))


def _swiglu(n: Site) -> Results:
    if len(n.inputs) != 2 or n.attr("alpha", 1.0) != 1.0:
        raise NotLowered("a gate with alpha other than 1 has no op of its own")
    return str(n.b.silu_mul(n.x, n.input(1)))


def _thresholded(n: Site) -> Results:
    above = n.b.gt(n.x, n.like(n.attr("alpha", 1.0)))
    return str(n.b.where(above, n.x, n.like(0)))


def _shrink(n: Site) -> Results:
    lambd, bias = n.attr("lambd", 0.5), n.attr("bias", 0.0)
    if n.spec().dtype.is_integer:
        raise NotLowered("a shrink of integers by fractions has no op of its own")
    high = n.b.where(n.b.gt(n.x, n.like(lambd)), n.b.sub(n.x, n.like(bias)), n.like(0))
    return str(n.b.where(n.b.lt(n.x, n.like(-lambd)), n.b.add(n.x, n.like(bias)), high))


def _softmax(op: str) -> Row:
    """Along one axis from opset 13 on; before, over all dims from ``axis`` on, flattened."""

    def row(n: Site) -> Results:
        rank = n.spec().rank
        if n.opset >= 13:
            return str(n.b.call(op, n.x, dim=n.axis(-1)))
        axis = n.axis(1)
        if axis == rank - 1:
            return str(n.b.call(op, n.x, dim=axis))
        shape = n.spec().shape
        flat = n.b.view(n.x, size=[math.prod(shape[:axis], start=1), math.prod(shape[axis:], start=1)])
        return str(n.b.view(n.b.call(op, flat, dim=1), size=shape))

    return row


ROWS: dict[str, Row] = {
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
