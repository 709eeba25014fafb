"""Bridges of reductions, cumulative ops, softmax and distances."""

from __future__ import annotations

from typing import Any

from .bridge import Adapt, Adapted, Bridge, NotComparable, named, only
from .pointwise import with_attrs

__all__ = ["BRIDGES"]

_F = "nn.functional."


def reduction(*names: str) -> Adapt:
    def adapt(s: Any) -> Adapted:
        kwargs = only(named(s, "dim", "keepdim"), "dim", "keepdim", *names)
        dim = kwargs.get("dim")
        if dim is not None and not isinstance(dim, int):
            kwargs["dim"] = list(dim) or None  # PyTorch reduces over everything
        return [s.input], kwargs

    return adapt


def truth(s: Any) -> Adapted:
    if "uint8" in str(s.input.dtype):
        raise NotComparable("uint8, which PyTorch answers in uint8")
    return reduction()(s)


def variance(s: Any) -> Adapted:
    kwargs = named(s, *(("dim",) if len(s.args) < 2 else ("dim", "unbiased", "keepdim")))
    if isinstance(kwargs.get("dim"), bool):
        kwargs["unbiased"] = kwargs.pop("dim")
    unbiased = kwargs.pop("unbiased", None)
    if unbiased is not None:
        kwargs["correction"] = int(unbiased)
    elif kwargs.get("correction") is None:
        kwargs["correction"] = 1
    dim = kwargs.get("dim")
    kwargs["dim"] = dim if isinstance(dim, int) or dim is None else list(dim) or None
    return [s.input], only(kwargs, "dim", "keepdim", "correction")


def along(s: Any) -> Adapted:
    kwargs = named(s, "dim", "keepdim")
    if not isinstance(kwargs.get("dim"), int):
        raise NotComparable("no dim, or another operand: another op")
    return [s.input], kwargs


def running(s: Any) -> Adapted:
    return [s.input], only(named(s, "dim"), "dim", "dtype")


def vector_norm(s: Any) -> Adapted:
    kwargs = named(s, "ord", "dim", "keepdim")
    if kwargs.get("dtype") is not None:
        raise NotComparable("dtype")
    dim = kwargs.get("dim")
    kwargs["dim"] = dim if isinstance(dim, int) or dim is None else list(dim) or None
    kwargs["ord"] = kwargs.get("ord", 2)
    return [s.input], only(kwargs, "ord", "dim", "keepdim")


def softmax(s: Any) -> Adapted:
    return [s.input], only(named(s, "dim"), "dim", "dtype")


def cdist(s: Any) -> Adapted:
    kwargs = named(s, "x2", "p")
    return [s.input, kwargs["x2"]], {"p": kwargs.get("p", 2.0)}


BRIDGES: dict[str, Bridge] = {
    "softmax": Bridge("softmax", softmax, variants=("", "with_dtype")),
    "log_softmax": Bridge("log_softmax", softmax, variants=("", "with_dtype")),
    "sum": Bridge("sum", reduction("dtype")),
    "prod": Bridge("prod", reduction("dtype")),
    "mean": Bridge("mean", reduction("dtype")),
    "amax": Bridge("amax", reduction()),
    "amin": Bridge("amin", reduction()),
    "any": Bridge("any", truth),
    "all": Bridge("all", truth),
    "logsumexp": Bridge("logsumexp", reduction()),
    "var": Bridge("var", variance, variants=("", "unbiased")),
    "linalg.vector_norm": Bridge("vector_norm", vector_norm),
    "argmax": Bridge("argmax", with_attrs("dim", "keepdim")),
    "argmin": Bridge("argmin", with_attrs("dim", "keepdim")),
    "max": Bridge("max", along, variants=("reduction_with_dim",)),
    "min": Bridge("min", along, variants=("reduction_with_dim",)),
    "cumsum": Bridge("cumsum", running),
    "cumprod": Bridge("cumprod", running),
    "cdist": Bridge("cdist", cdist),
    f"{_F}pdist": Bridge("pdist", with_attrs("p")),
}
