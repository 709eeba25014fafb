"""Bridges of elementwise ops, activations and casts: how PyTorch's samples of an operator become calls of an op of ours."""

from __future__ import annotations

from typing import Any

from .bridge import Adapt, Adapted, Bridge, NotComparable, named, only

__all__ = ["BRIDGES"]

_F = "nn.functional."
_UNARY = [
    "abs",
    "neg",
    "sign",
    "ceil",
    "floor",
    "trunc",
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "cos",
    "cosh",
    "erf",
    "exp",
    "exp2",
    "expm1",
    "log",
    "log10",
    "log1p",
    "log2",
    "reciprocal",
    "rsqrt",
    "sin",
    "sinh",
    "sqrt",
    "tan",
    "isnan",
    "isinf",
    "logical_not",
    "bitwise_not",
    "sigmoid",
    "tanh",
    "clone",
]
_BINARY = [
    "mul",
    "pow",
    "maximum",
    "minimum",
    "fmod",
    "remainder",
    "atan2",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "logical_and",
    "logical_or",
    "logical_xor",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "bitwise_left_shift",
    "bitwise_right_shift",
    "add",
    "sub",
    "mm",
    "bmm",
    "matmul",
]
_CASTS = {
    "bfloat16": "bfloat16", "bool": "bool", "byte": "uint8", "char": "int8", "double": "float64", "float": "float32",
    "half": "float16", "int": "int32", "long": "int64", "short": "int16", "cfloat": "complex64",
}  # fmt: skip


def unary(s: Any) -> Adapted:
    only(named(s))
    if s.args:
        raise NotComparable("another argument")
    return [s.input], {}


def binary(s: Any) -> Adapted:
    if len(s.args) != 1:
        raise NotComparable("another number of operands")
    if s.kwargs.get("alpha", 1) != 1:
        raise NotComparable("alpha")
    return [s.input, s.args[0]], {}


def swapped(s: Any) -> Adapted:
    operands, attrs = binary(s)
    return operands[::-1], attrs


def with_attrs(*names: str) -> Adapt:
    """Return a bridge of the input alone; the other arguments are attributes of the same names."""

    def adapt(s: Any) -> Adapted:
        kwargs = named(s, *names)
        return [s.input], {k: v for k, v in only(kwargs, *names).items() if v is not None}

    return adapt


def with_tensors(*names: str, **defaults: Any) -> Adapt:
    """Return a bridge in which every named argument is an operand."""

    def adapt(s: Any) -> Adapted:
        kwargs = named(s, *names)
        return [s.input, *(kwargs.get(n) for n in names)], dict(defaults)

    return adapt


def div(s: Any) -> Adapted:
    return [s.input, *s.args], only(dict(s.kwargs), "rounding_mode")


def where(s: Any) -> Adapted:
    if len(s.args) != 2 or "bool" not in str(s.args[0].dtype):
        raise NotComparable("a condition that is not bool")
    return [s.args[0], s.input, s.args[1]], {}


def masked_fill(s: Any) -> Adapted:
    mask, value = s.args
    kind = value.dtype if hasattr(value, "dtype") else type(value)
    if kind not in (s.input.dtype, float if s.input.is_floating_point() else int) or "bool" in str(
        s.input.dtype
    ):
        raise NotComparable("a value of another type")
    return [mask, value, s.input], {}


def rounding(s: Any) -> Adapted:
    return [s.input], only(dict(s.kwargs), "decimals")


def to_dtype(name: str) -> Adapt:
    def adapt(s: Any) -> Adapted:
        return [s.input], {"dtype": name}

    return adapt


def threshold_zero(s: Any) -> Adapted:
    kwargs = named(s, "negative_slope", "inplace")
    return [s.input], {k: v for k, v in kwargs.items() if k == "negative_slope"}


def inplace(*names: str) -> Adapt:
    """Return a bridge with attributes by name that ignores ``inplace``."""

    def adapt(s: Any) -> Adapted:
        kwargs = named(s, *names)
        kwargs.pop("inplace", None)
        return [s.input], only(kwargs, *names)

    return adapt


def celu(s: Any) -> Adapted:
    alpha = named(s, "alpha").get("alpha", 1.0)
    return [s.input], {"alpha": alpha, "input_scale": 1 / alpha}


def selu(s: Any) -> Adapted:
    return [s.input], {"alpha": 1.6732632423543772848170429916717, "scale": 1.0507009873554804934193349852946}


def relu6(s: Any) -> Adapted:
    return [s.input, 0, 6], {}


def hardtanh(s: Any) -> Adapted:
    if not s.input.is_floating_point():
        raise NotComparable("integers between fractions, which PyTorch cuts off first")
    kwargs = named(s, "min_val", "max_val")
    return [s.input, kwargs.get("min_val", -1.0), kwargs.get("max_val", 1.0)], {}


def softplus(s: Any) -> Adapted:
    kwargs = named(s, "beta", "threshold")
    return [s.input], {"beta": kwargs.get("beta", 1), "threshold": kwargs.get("threshold", 20)}


def prelu(s: Any) -> Adapted:
    weight = s.kwargs["weight"] if "weight" in s.kwargs else s.args[0]
    if weight.dim() == 1 and s.input.dim() > 1:
        weight = weight.reshape(-1, *[1] * (s.input.dim() - 2))
    if weight.dim() > s.input.dim():
        weight = weight.reshape(())
    return [s.input, weight], {}


BRIDGES: dict[str, Bridge] = (
    {name: Bridge(name, unary) for name in _UNARY}
    | {name: Bridge(name, binary) for name in _BINARY}
    | {f"{_F}{name}": Bridge(name, inplace()) for name in ("relu", "silu", "mish", "softsign", "hardswish")}
    | {name: Bridge("cast", to_dtype(dtype)) for name, dtype in _CASTS.items()}
    | {
        "rsub": Bridge("sub", swapped),
        "__rpow__": Bridge("pow", swapped),
        "true_divide": Bridge("div", binary),
        "floor_divide": Bridge("div", lambda s: (binary(s)[0], {"rounding_mode": "floor"})),
        "div": Bridge("div", div, variants=("no_rounding_mode", "trunc_rounding", "floor_rounding")),
        "round": Bridge("round", rounding, variants=("", "decimals_0", "decimals_3", "decimals_neg_3")),
        "where": Bridge("where", where),
        "masked_fill": Bridge("where", masked_fill),
        "clamp": Bridge("clamp", with_tensors("min", "max")),
        f"{_F}gelu": Bridge("gelu", with_attrs("approximate")),
        f"{_F}elu": Bridge("elu", inplace("alpha")),
        f"{_F}celu": Bridge("elu", celu),
        f"{_F}selu": Bridge("elu", selu),
        f"{_F}relu6": Bridge("clamp", relu6),
        f"{_F}hardtanh": Bridge("clamp", hardtanh),
        f"{_F}hardsigmoid": Bridge("hardsigmoid", inplace()),
        f"{_F}leaky_relu": Bridge("leaky_relu", inplace("negative_slope")),
        f"{_F}softplus": Bridge("softplus", softplus),
        f"{_F}prelu": Bridge("prelu", prelu),
    }
)
