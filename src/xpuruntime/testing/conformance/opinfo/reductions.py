"""Reductions, running forms, softmax, distances."""

from __future__ import annotations

from typing import Any

from .bridge import Adapt, Adapted, Bridge, Unfit, named, only
from .pointwise import with_attrs

__all__ = ["BRIDGES"]

_F = "nn.functional."


def reduction(*names: str) -> Adapt:
    def adapt(s: Any) -> Adapted:
        given = only(named(s, "dim", "keepdim"), "dim", "keepdim", *names)
        dim = given.get("dim")
        if dim is not None and not isinstance(dim, int):
            given["dim"] = list(dim) or None  # PyTorch reduces over everything
        return [s.input], given

    return adapt


def truth(s: Any) -> Adapted:
    if "uint8" in str(s.input.dtype):
        raise Unfit("uint8, which PyTorch answers in uint8")
    return reduction()(s)


def variance(s: Any) -> Adapted:
    given = named(s, *(("dim",) if len(s.args) < 2 else ("dim", "unbiased", "keepdim")))
    if isinstance(given.get("dim"), bool):
        given["unbiased"] = given.pop("dim")
    unbiased = given.pop("unbiased", None)
    if unbiased is not None:
        given["correction"] = int(unbiased)
    elif given.get("correction") is None:
        given["correction"] = 1
    dim = given.get("dim")
    given["dim"] = dim if isinstance(dim, int) or dim is None else list(dim) or None
    return [s.input], only(given, "dim", "keepdim", "correction")


def along(s: Any) -> Adapted:
    given = named(s, "dim", "keepdim")
    if not isinstance(given.get("dim"), int):
        raise Unfit("no dim, or another operand: another op")
    return [s.input], given


def running(s: Any) -> Adapted:
    return [s.input], only(named(s, "dim"), "dim", "dtype")


def vector_norm(s: Any) -> Adapted:
    given = named(s, "ord", "dim", "keepdim")
    if given.get("dtype") is not None:
        raise Unfit("dtype")
    dim = given.get("dim")
    given["dim"] = dim if isinstance(dim, int) or dim is None else list(dim) or None
    given["ord"] = given.get("ord", 2)
    return [s.input], only(given, "ord", "dim", "keepdim")


def softmax(s: Any) -> Adapted:
    return [s.input], only(named(s, "dim"), "dim", "dtype")


def cdist(s: Any) -> Adapted:
    given = named(s, "x2", "p")
    return [s.input, given["x2"]], {"p": given.get("p", 2.0)}


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
