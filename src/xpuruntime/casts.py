"""Numeric casts, shared by the interpreter and the weight recipes: floats are rounded once, integers wrap."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .types import DType

__all__ = ["round_to_odd", "to", "wrap"]

Array: TypeAlias = NDArray[Any]

_NATIVE_FLOATS = (DType.FLOAT16, DType.FLOAT32, DType.FLOAT64)


def to(x: Array, dtype: DType) -> Array:
    """Cast an array: floats round half to even, integers wrap, fractions are truncated, the imaginary part of a complex number is dropped.

    A float beyond an integer type's range has no defined value in PyTorch or ONNX; here it is converted
    through int64, which overflows to its minimum as on x86, and then wraps. NaN becomes int64's minimum before it wraps.
    """
    source = DType.of(x.dtype)
    if source is dtype:
        return x
    if dtype is DType.STRING or source is DType.STRING:
        raise ValueError(f"strings need the op cast: {source.value} to {dtype.value}")
    if source.is_complex and not dtype.is_complex:
        x, source = x.real, DType.of(x.real.dtype)
    if dtype is DType.BOOL:
        return np.asarray(x != 0)
    with np.errstate(all="ignore"):
        if dtype.is_complex or dtype in _NATIVE_FLOATS:
            return x.astype(dtype.numpy)
        if dtype.is_float:
            return round_to_odd(x.astype(np.float64)).astype(dtype.numpy)
        if source.is_float:
            x = _whole(x.astype(np.float64), dtype)
    return wrap(x, dtype)


def _whole(x: Array, dtype: DType) -> Array:
    """Return the integer part of float64 values, as int64, or as uint64 for a cast to uint64."""
    if dtype is DType.UINT64:
        large = (x >= 2.0**63) & (x < 2.0**64)
        low = np.where(large, x - 2.0**63, x).astype(np.int64).astype(np.uint64)
        return np.where(large, low + np.uint64(2**63), low)
    fits = (x >= -(2.0**63)) & (x < 2.0**63)
    return np.where(fits, np.where(fits, x, 0.0).astype(np.int64), np.iinfo(np.int64).min)


def wrap(x: Array, dtype: DType) -> Array:
    """Wrap integers (or bool) modulo 2**bits of the type."""
    if dtype.bits >= 8:
        return x.astype(dtype.numpy)
    span = 1 << dtype.bits
    offset = span // 2 if dtype.is_signed else 0
    low = (x.astype(np.int64) + offset) % span - offset
    return low.astype(np.int8).astype(dtype.numpy)


def round_to_odd(x: Array) -> Array:
    """Round float64 to float32 so that a second rounding to a narrower type gives the same value as one direct rounding.

    The last bit of an inexact result is set (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008).
    """
    with np.errstate(all="ignore"):
        near = np.asarray(x.astype(np.float32))
    widened = near.astype(np.float64)
    bits = near.view(np.uint32)
    towards_zero = np.where(np.abs(widened) > np.abs(x), bits - np.uint32(1), bits)
    inexact = (widened != x) & ~np.isnan(x)
    return np.where(inexact, towards_zero | np.uint32(1), bits).astype(np.uint32).view(np.float32)
