"""Softmax, norms and reductions as formulas: pointwise operations and plain reductions over one set of dims.

    softmax      exp(x - max) / sum(exp(x - max))
    layer_norm   d = x - mean; d * rsqrt(mean(d * d) + eps) * weight + bias
    logsumexp    log(sum(exp(x - max))) + max, where max is finite

Intermediate values are float32 (float64 for float64), regardless of the operand's dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from ...ir.attributes import Attrs
from ...types import DType

if TYPE_CHECKING:
    from .body import LoopBody

__all__ = ["FORMULAS", "PLAIN", "is_row", "moments", "normalized", "row_axes", "widest"]

Names: TypeAlias = "tuple[str, ...]"
Formula: TypeAlias = "Callable[[LoopBody, str, Sequence[str | None], Attrs, DType], Names]"

PLAIN = ("sum", "prod", "amax", "amin", "any", "all", "top")
"""Reductions that loops compute; all others are formulas over them. ``top`` is amax that may ignore NaN."""


def is_row(op: str) -> bool:
    """Return True if an op reduces over dims and has a formula."""
    return op in FORMULAS


def row_axes(op: str, attrs: Attrs, rank: int) -> tuple[int, ...]:
    """Return the dims that an op of this table reduces over."""
    if op in ("layer_norm", "rms_norm"):
        shape = attrs["normalized_shape"]
        assert isinstance(shape, tuple)
        return tuple(range(rank - len(shape), rank))
    dim = attrs["dim"]
    axes = dim if isinstance(dim, tuple) else tuple(range(rank)) if dim is None else (dim,)
    return tuple(a for a in axes if isinstance(a, int) and a < rank)  # a scalar has no dim to reduce


def widest(dtype: DType) -> DType:
    """Return the dtype in which values of a dtype are computed."""
    return DType.FLOAT64 if dtype is DType.FLOAT64 else DType.FLOAT32


def _cast(b: LoopBody, x: str, dtype: DType) -> str:
    return x if b.dtype(x) is dtype else b.emit("cast", x, dtype=dtype)


def _real(b: LoopBody, x: str, dtype: object = None) -> str:
    """Convert to float32 or float64; first to ``dtype``, which may round."""
    if isinstance(dtype, DType):
        x = _cast(b, x, dtype)
    operand_dtype = b.dtype(x)
    return (
        x
        if operand_dtype.is_float and operand_dtype is not DType.FLOAT64
        else _cast(b, x, widest(operand_dtype))
    )


def _two(b: LoopBody, op: str, x: str, y: str | float, dtype: DType) -> str:
    attrs = {"rounding_mode": None} if op == "div" else {}
    return b.emit(op, x, y, dtype=dtype, **attrs)


# ── plain reductions ──


def _total(kind: str) -> Formula:
    """Return the formula of ``sum`` or ``prod``, in ``dtype`` if given, otherwise integers and bool in int64."""

    def formula(b: LoopBody, x: str, rest: Sequence[str | None], attrs: Attrs, dtype: DType) -> Names:
        x = _cast(b, x, dtype)
        wide = widest(dtype) if dtype.is_float else dtype
        return (b.reduce(kind, x, wide),)

    return formula


def _extreme(kind: str) -> Formula:
    def formula(b: LoopBody, x: str, rest: Sequence[str | None], attrs: Attrs, dtype: DType) -> Names:
        if dtype is DType.BOOL:
            return (b.reduce("any" if kind == "amax" else "all", x, dtype),)
        return (b.reduce(kind, x, dtype),)

    return formula


def _truth(kind: str) -> Formula:
    def formula(b: LoopBody, x: str, rest: Sequence[str | None], attrs: Attrs, dtype: DType) -> Names:
        return (b.reduce(kind, _cast(b, x, DType.BOOL), DType.BOOL),)

    return formula


def _mean_of(b: LoopBody, x: str, dtype: DType) -> str:
    return _two(b, "div", b.reduce("sum", x, dtype), float(b.count), dtype)


def _mean(b: LoopBody, x: str, rest: Sequence[str | None], attrs: Attrs, dtype: DType) -> Names:
    if isinstance(attrs["dtype"], DType):
        x = _cast(b, x, attrs["dtype"])
    if not b.dtype(x).is_float:  # integers may exceed float32's exact range
        return (_cast(b, _mean_of(b, _cast(b, x, DType.FLOAT64), DType.FLOAT64), dtype),)
    return (_mean_of(b, _real(b, x), widest(dtype)),)


def _centered(b: LoopBody, x: str, wide: DType) -> tuple[str, str]:
    """Return the mean, and x minus the mean."""
    mean = _mean_of(b, x, wide)
    return mean, _two(b, "sub", x, mean, wide)


def _var(b: LoopBody, x: str, rest: Sequence[str | None], attrs: Attrs, dtype: DType) -> Names:
    wide, correction = widest(dtype), attrs["correction"]
    assert isinstance(correction, int | float)
    _, d = _centered(b, _real(b, x), wide)
    squares = b.reduce("sum", _two(b, "mul", d, d, wide), wide)
    return (_two(b, "div", squares, float(max(b.count - correction, 0.0)), wide),)


def _logsumexp(b: LoopBody, x: str, rest: Sequence[str | None], attrs: Attrs, dtype: DType) -> Names:
    wide = widest(dtype)
    x = _real(b, x)
    row_max = b.reduce("top", x, wide)
    infinite = b.emit("isinf", row_max, dtype=DType.BOOL, positive=True, negative=True)
    finite = b.emit("where", infinite, 0.0, row_max, dtype=wide)
    exponentials = b.emit("exp", _two(b, "sub", x, finite, wide), dtype=wide)
    return (_two(b, "add", b.emit("log", b.reduce("sum", exponentials, wide), dtype=wide), finite, wide),)


def _vector_norm(b: LoopBody, x: str, rest: Sequence[str | None], attrs: Attrs, dtype: DType) -> Names:
    wide, order = widest(dtype), attrs["ord"]
    assert isinstance(order, int | float)
    x = _real(b, x)
    if order == 0:
        nonzero = b.emit("ne", x, 0.0, dtype=DType.BOOL)
        return (b.reduce("sum", b.emit("cast", nonzero, dtype=wide), wide),)
    size = b.emit("abs", x, dtype=wide)
    if math.isinf(order):
        if order < 0:
            return (b.reduce("amin", size, wide),)
        return (_two(b, "maximum", b.reduce("amax", size, wide), 0.0, wide),)
    if order == 1:
        return (b.reduce("sum", size, wide),)
    if order == 2:
        return (b.emit("sqrt", b.reduce("sum", _two(b, "mul", x, x, wide), wide), dtype=wide),)
    powers = b.reduce("sum", _two(b, "pow", size, float(order), wide), wide)
    return (_two(b, "pow", powers, 1.0 / order, wide),)


# ── softmax ──


def _shifted(b: LoopBody, x: str, attrs: Attrs, wide: DType) -> str:
    x = _real(b, x, attrs["dtype"])
    return _two(b, "sub", x, b.reduce("top", x, wide), wide)


def _softmax(b: LoopBody, x: str, rest: Sequence[str | None], attrs: Attrs, dtype: DType) -> Names:
    wide = widest(dtype)
    exponentials = b.emit("exp", _shifted(b, x, attrs, wide), dtype=wide)
    inverse_sum = b.emit("reciprocal", b.reduce("sum", exponentials, wide), dtype=wide)
    return (_two(b, "mul", exponentials, inverse_sum, wide),)


def _log_softmax(b: LoopBody, x: str, rest: Sequence[str | None], attrs: Attrs, dtype: DType) -> Names:
    wide = widest(dtype)
    shifted = _shifted(b, x, attrs, wide)
    row_sum = b.reduce("sum", b.emit("exp", shifted, dtype=wide), wide)
    return (_two(b, "sub", shifted, b.emit("log", row_sum, dtype=wide), wide),)


# ── norms ──


def _affine(b: LoopBody, y: str, weight: str | None, bias: str | None, wide: DType) -> str:
    y = y if weight is None else _two(b, "mul", y, _real(b, weight), wide)
    return y if bias is None else _two(b, "add", y, _real(b, bias), wide)


def moments(b: LoopBody, x: str, wide: DType) -> tuple[str, str, str]:
    """Return the mean over the reduced dims, x minus the mean, and the variance (over the count)."""
    mean, d = _centered(b, _real(b, x), wide)
    return mean, d, _mean_of(b, _two(b, "mul", d, d, wide), wide)


def normalized(
    b: LoopBody, x: str, weight: str | None, bias: str | None, eps: object, wide: DType
) -> tuple[str, str, str]:
    """Return x normalized over the reduced dims, scaled and shifted; the mean; 1 / std."""
    assert isinstance(eps, int | float)
    mean, d, variance = moments(b, x, wide)
    rstd = b.emit("rsqrt", _two(b, "add", variance, float(eps), wide), dtype=wide)
    return _affine(b, _two(b, "mul", d, rstd, wide), weight, bias, wide), mean, rstd


def _layer_norm(b: LoopBody, x: str, rest: Sequence[str | None], attrs: Attrs, dtype: DType) -> Names:
    weight, bias = (*rest, None, None)[:2]
    return normalized(b, x, weight, bias, attrs["eps"], widest(dtype))


def _rms_norm(b: LoopBody, x: str, rest: Sequence[str | None], attrs: Attrs, dtype: DType) -> Names:
    wide, eps = widest(dtype), attrs["eps"]
    assert isinstance(eps, int | float)
    x = _real(b, x)
    square = _mean_of(b, _two(b, "mul", x, x, wide), wide)
    rstd = b.emit("rsqrt", _two(b, "add", square, float(eps), wide), dtype=wide)
    return _affine(b, _two(b, "mul", x, rstd, wide), (*rest, None)[0], None, wide), rstd


# ── positions ──


def _extreme_with_index(b: LoopBody, x: str, kind: str, last: bool) -> tuple[str, str]:
    """Return the extreme value and its first (or last) index; NaN counts as extreme."""
    if b.dtype(x) is DType.BOOL:
        x = _cast(b, x, DType.UINT8)
    extreme = b.reduce(kind, x, b.dtype(x))
    matches = b.emit("eq", x, extreme, dtype=DType.BOOL)
    if b.dtype(x).is_float:
        matches = b.emit("logical_or", matches, b.emit("isnan", x, dtype=DType.BOOL), dtype=DType.BOOL)
    index = b.position()
    index_type = b.dtype(index)
    neutral = -1 if last else 2 ** (index_type.bits - 1) - 1
    return extreme, b.reduce(
        "amax" if last else "amin", b.emit("where", matches, index, neutral, dtype=index_type), index_type
    )


def _index_formula(kind: str) -> Formula:
    def formula(b: LoopBody, x: str, rest: Sequence[str | None], attrs: Attrs, dtype: DType) -> Names:
        return (_extreme_with_index(b, x, kind, attrs["last"] is True)[1],)

    return formula


def _extreme_and_index(kind: str) -> Formula:
    def formula(b: LoopBody, x: str, rest: Sequence[str | None], attrs: Attrs, dtype: DType) -> Names:
        return _extreme_with_index(b, x, kind, False)

    return formula


def _hardmax(b: LoopBody, x: str, rest: Sequence[str | None], attrs: Attrs, dtype: DType) -> Names:
    is_max = b.emit("eq", b.position(), _extreme_with_index(b, x, "amax", False)[1], dtype=DType.BOOL)
    return (b.emit("cast", is_max, dtype=dtype),)


FORMULAS: Mapping[str, Formula] = {
    "sum": _total("sum"),
    "prod": _total("prod"),
    "amax": _extreme("amax"),
    "amin": _extreme("amin"),
    "any": _truth("any"),
    "all": _truth("all"),
    "mean": _mean,
    "var": _var,
    "logsumexp": _logsumexp,
    "vector_norm": _vector_norm,
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "argmax": _index_formula("amax"),
    "argmin": _index_formula("amin"),
    "max": _extreme_and_index("amax"),
    "min": _extreme_and_index("amin"),
    "hardmax": _hardmax,
}
