"""Reductions along axes, cumulative ops, distances."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...types import DType
from .numbers import Array, highest, lowest, to, widen
from .rule import InterpRule, plain, real, wide

__all__ = ["RULES"]


def _axes(x: Array, dim: Sequence[int]) -> tuple[int, ...]:
    """Return the axes; a scalar may be addressed as if it had one."""
    return tuple(dim) if x.ndim else ()


def _summands(x: Array, dtype: DType | None) -> Array:
    """Return the values to add or multiply: in dtype if given, bool and small integers in int64."""
    values = widen(x if dtype is None else to(x, dtype))
    return values.astype(np.int64) if values.dtype.kind in "bi" else values


def sum_(x: Array, *, dim: Sequence[int], keepdim: bool, dtype: DType | None) -> Array:
    """Return the sum; integers wrap modulo 2**64. The empty sum is 0."""
    return np.asarray(np.sum(_summands(x, dtype), axis=_axes(x, dim), keepdims=keepdim and x.ndim > 0))


def prod(x: Array, *, dim: Sequence[int], keepdim: bool, dtype: DType | None) -> Array:
    """Return the product. The empty product is 1."""
    return np.asarray(np.prod(_summands(x, dtype), axis=_axes(x, dim), keepdims=keepdim and x.ndim > 0))


def mean(x: Array, *, dim: Sequence[int], keepdim: bool, dtype: DType | None) -> Array:
    """Return the mean; NaN for no elements."""
    values = widen(x if dtype is None else to(x, dtype))
    values = values if values.dtype.kind == "c" else values.astype(np.float64)
    axes = _axes(x, dim)
    return np.asarray(np.sum(values, axis=axes, keepdims=keepdim and x.ndim > 0) / _count(x, axes))


def _count(x: Array, axes: Sequence[int]) -> Any:
    return np.float64(math.prod(x.shape[a] for a in axes))  # NumPy's, so that 0 / 0 is NaN


def amax(x: Array, *, dim: Sequence[int], keepdim: bool) -> Array:
    """Return the maximum; NaN if there is one. For no elements, return the type's lowest value (as in ONNX)."""
    return np.asarray(np.max(x, axis=_axes(x, dim), keepdims=keepdim and x.ndim > 0, initial=lowest(x.dtype)))


def amin(x: Array, *, dim: Sequence[int], keepdim: bool) -> Array:
    """Return the minimum; NaN if there is one. For no elements, return the type's highest value."""
    return np.asarray(
        np.min(x, axis=_axes(x, dim), keepdims=keepdim and x.ndim > 0, initial=highest(x.dtype))
    )


def any_(x: Array, *, dim: Sequence[int], keepdim: bool) -> Array:
    """Return True if any element is nonzero."""
    return np.asarray(np.any(x != 0, axis=_axes(x, dim), keepdims=keepdim and x.ndim > 0))


def all_(x: Array, *, dim: Sequence[int], keepdim: bool) -> Array:
    """Return True if all elements are nonzero."""
    return np.asarray(np.all(x != 0, axis=_axes(x, dim), keepdims=keepdim and x.ndim > 0))


def var(x: Array, *, dim: Sequence[int], keepdim: bool, correction: float) -> Array:
    """Return the sum of squared deviations from the mean, divided by max(count - correction, 0)."""
    axes = _axes(x, dim)
    center = np.sum(x, axis=axes, keepdims=True) / _count(x, axes)
    squares = np.sum(np.abs(x - center) ** 2, axis=axes, keepdims=keepdim and x.ndim > 0)
    return np.asarray(squares / np.maximum(_count(x, axes) - correction, 0.0))


def logsumexp(x: Array, *, dim: Sequence[int], keepdim: bool) -> Array:
    """Compute log(sum(exp(x))), shifted by the largest real part where that is finite."""
    axes = _axes(x, dim)
    top = np.max(x.real, axis=axes, keepdims=True, initial=-np.inf)
    top = np.where(np.isfinite(top), top, 0.0)
    logs = np.log(np.sum(np.exp(x - top), axis=axes, keepdims=True)) + top
    return np.asarray(logs if keepdim and x.ndim else np.squeeze(logs, axis=axes))


def vector_norm(x: Array, *, ord: float, dim: Sequence[int], keepdim: bool) -> Array:  # noqa: A002  the attribute's name
    """Compute sum(|x|**ord)**(1/ord); the maximum for inf, the minimum for -inf, the count of nonzero elements for 0."""
    options: dict[str, Any] = {"axis": _axes(x, dim), "keepdims": keepdim and x.ndim > 0}
    size = np.abs(x)
    if ord == 0:
        return np.asarray(np.sum(size != 0, dtype=np.float64, **options))
    if math.isinf(ord):
        return np.asarray(
            np.max(size, initial=0.0, **options) if ord > 0 else np.min(size, initial=np.inf, **options)
        )
    if ord == 1:
        return np.asarray(np.sum(size, **options))
    return np.asarray(
        np.sqrt(np.sum(size**2, **options)) if ord == 2 else np.sum(size**ord, **options) ** (1 / ord)
    )


# ── places ──


def _arg(find: Callable[..., Any]) -> Callable[..., Array]:
    def arg(x: Array, *, dim: int | None, keepdim: bool, last: bool) -> Array:
        """Return the index of the first (or last) extreme value; NaN counts as extreme."""
        rows = x.reshape(-1) if dim is None or not x.ndim else x
        axis = 0 if dim is None or not x.ndim else dim
        if last:
            indices = rows.shape[axis] - 1 - find(np.flip(rows, axis), axis=axis)
        else:
            indices = find(rows, axis=axis)
        if not keepdim:
            return np.asarray(indices)
        return (
            np.reshape(indices, [1] * x.ndim) if dim is None or not x.ndim else np.expand_dims(indices, axis)
        )

    return arg


def _extreme(find: Callable[..., Any]) -> Callable[..., tuple[Array, Array]]:
    def extreme(x: Array, *, dim: int, keepdim: bool) -> tuple[Array, Array]:
        """Return the extreme values along dim and their first indices."""
        rows = np.atleast_1d(x)
        indices = np.expand_dims(find(rows, axis=dim), dim)
        values = np.take_along_axis(rows, indices, dim)
        if keepdim and x.ndim:
            return values, indices
        return np.squeeze(values, dim), np.squeeze(indices, dim)

    return extreme


# ── cumulative ops ──


def _running(accumulate: np.ufunc, start: int) -> Callable[..., Array]:
    def running(x: Array, *, dim: int, dtype: DType | None, exclusive: bool, reverse: bool) -> Array:
        """Reduce all elements up to each one (exclusive: before it), from the end if reverse."""
        values = np.atleast_1d(_summands(x, dtype))
        values = np.flip(values, dim) if reverse else values
        if exclusive:
            first = np.full([1 if i == dim else d for i, d in enumerate(values.shape)], start, values.dtype)
            shifted = np.take(values, range(max(values.shape[dim] - 1, 0)), axis=dim)
            values = np.concatenate([first, shifted], axis=dim) if values.shape[dim] else values
        result = accumulate.accumulate(values, axis=dim)
        return np.asarray(np.flip(result, dim) if reverse else result).reshape(x.shape)

    return running


# ── distances ──


def cdist(x: Array, other: Array, *, p: float) -> Array:
    """Return the p-norm of the difference of every pair of rows; for p = 0, too, NaN where a difference is NaN."""
    return _distance(x[..., :, None, :] - other[..., None, :, :], p)


def pdist(x: Array, *, p: float) -> Array:
    """Return the p-norm of the difference of every pair of rows i < j, in row order."""
    first, second = np.triu_indices(x.shape[0], 1)
    return _distance(x[first] - x[second], p)


def _distance(difference: Array, p: float) -> Array:
    if p == 0:
        return np.asarray(np.where(np.isnan(difference), np.nan, difference != 0).sum(-1))
    return vector_norm(difference, ord=p, dim=(difference.ndim - 1,), keepdim=False)


RULES: dict[str, InterpRule] = {
    "sum": plain(sum_),
    "prod": plain(prod),
    "mean": plain(mean),
    "amax": wide(amax),
    "amin": wide(amin),
    "any": wide(any_),
    "all": wide(all_),
    "var": real(var),
    "logsumexp": real(logsumexp),
    "vector_norm": real(vector_norm),
    "argmax": wide(_arg(np.argmax)),
    "argmin": wide(_arg(np.argmin)),
    "max": wide(_extreme(np.argmax)),
    "min": wide(_extreme(np.argmin)),
    "cumsum": plain(_running(np.add, 0)),
    "cumprod": plain(_running(np.multiply, 1)),
    "cdist": wide(cdist),
    "pdist": wide(pdist),
}
