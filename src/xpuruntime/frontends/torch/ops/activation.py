"""Lowerings of activations and softmax."""

from __future__ import annotations

from ...not_lowered import NotLowered
from .context import AtenLoweringContext, OpLowering, Results
from .elementwise import call, unary

__all__ = ["LOWERINGS"]


def _between(low: str | float, high: str | float) -> OpLowering:
    """Return the lowering of Hardtanh or ReLU6; the bounds take the operand's type."""

    def lower(n: AtenLoweringContext) -> Results:
        bounds = [n[b] if isinstance(b, str) else b for b in (low, high)]
        if not n.spec().dtype.is_float:
            if any(b != int(b) for b in bounds):
                raise NotLowered("fractional bounds for integers are not supported")
            bounds = [int(b) for b in bounds]
        return str(n.b.clamp(n.x, *bounds))

    return lower


def _elu(n: AtenLoweringContext) -> Results:
    return str(n.b.elu(n.x, **{k: float(n[k]) for k in ("alpha", "scale", "input_scale")}))


def _celu(n: AtenLoweringContext) -> Results:
    alpha = float(n["alpha"])
    return str(n.b.elu(n.x, alpha=alpha, input_scale=1.0 / alpha))


def _selu(n: AtenLoweringContext) -> Results:
    return str(n.b.elu(n.x, alpha=1.6732632423543772, scale=1.0507009873554805))


def _softplus(n: AtenLoweringContext) -> Results:
    return str(n.b.softplus(n.x, beta=float(n["beta"]), threshold=float(n["threshold"])))


def _prelu(n: AtenLoweringContext) -> Results:
    """Lower prelu; aten's slope is one number, or one per channel (dim 1)."""
    slope, x = n.t("weight"), n.spec()
    if n.spec(slope).rank == 1 and x.rank > 1:
        slope = str(n.b.view(slope, size=[-1, *(1,) * (x.rank - 2)]))
    elif n.spec(slope).rank > x.rank:
        slope = str(n.b.view(slope, size=[]))
    return str(n.b.prelu(n.x, slope))


def _softmax(op: str) -> OpLowering:
    """Return the lowering of softmax in the result's dtype: softmax.int may have one, _softmax of a half type may ask for float32."""

    def lower(n: AtenLoweringContext) -> Results:
        n.ignore("half_to_float")
        result_dtype = n.dtype()
        dtype = None if result_dtype is n.spec().dtype else result_dtype
        return str(n.b.call(op, n.x, dim=n["dim"], dtype=dtype))

    return lower


def _rrelu(n: AtenLoweringContext) -> Results:
    """Lower RReLU in eval mode: its slope is the mean of the bounds."""
    if n["training"]:
        raise NotLowered("its slopes are random in training mode")
    n.ignore("generator")
    return [str(n.b.leaky_relu(n.x, negative_slope=(n["lower"] + n["upper"]) / 2)), n.t("noise")]


LOWERINGS: dict[str, OpLowering] = {
    "_log_softmax": _softmax("log_softmax"),
    "_prelu_kernel": call("prelu", "self", "weight"),
    "_softmax": _softmax("softmax"),
    "celu": _celu,
    "elu": _elu,
    "gelu": call("gelu", "self", approximate="approximate"),
    "hardsigmoid": unary("hardsigmoid"),
    "hardswish": unary("hardswish"),
    "hardtanh": _between("min_val", "max_val"),
    "leaky_relu": call("leaky_relu", "self", negative_slope="negative_slope"),
    "log_softmax.int": _softmax("log_softmax"),
    "mish": unary("mish"),
    "prelu": _prelu,
    "relu": unary("relu"),
    "rrelu_with_noise_functional": _rrelu,
    "relu6": _between(0.0, 6.0),
    "selu": _selu,
    "sigmoid": unary("sigmoid"),
    "silu": unary("silu"),
    "softmax.int": _softmax("softmax"),
    "softplus": _softplus,
    "tanh": unary("tanh"),
}
