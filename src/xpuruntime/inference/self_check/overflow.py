"""Overflow in the type of a model, which a reference in float64 does not have."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from ...protocols import Array
from ...types import DType

__all__ = ["as_in_type"]

_EDGE = 0.1
"""The share of a type's largest number, at most, within which rounding may decide whether a result is infinite."""


def as_in_type(ours: Array, own: Array, exact: Array, limit: float) -> Array:
    """Return the values in float64, but ours where the reference in the model's type has the same infinity or NaN, and where ours is infinite and
    the exact value is within the limit of the type's largest number.
    """
    if not ours.shape == own.shape == exact.shape or not _is_inexact(ours) or not _is_inexact(own):
        return exact
    wide = ours.astype(exact.dtype)
    taken = ~np.isfinite(own) & ((ours == own) | (np.isnan(ours) & np.isnan(own)))
    if "c" not in (ours.dtype.kind, exact.dtype.kind):
        largest = float(ml_dtypes.finfo(ours.dtype).max)
        with np.errstate(invalid="ignore"):  # 0 * inf
            beyond = exact * np.sign(wide) >= largest * (1.0 - min(limit, _EDGE))
        taken |= np.isinf(ours) & beyond
    chosen: Array = np.where(taken, wide, exact)
    return chosen


def _is_inexact(array: Array) -> bool:
    return array.dtype.kind == "c" or DType.of(array.dtype).is_float
