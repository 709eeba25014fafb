"""Values in another dtype: floats rounded once, integers wrapped. What the interpreter and weight recipes both mean by a cast."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .types import DType

__all__ = ["round_to_odd", "to", "wrap"]

Array: TypeAlias = NDArray[Any]

_NATIVE_FLOATS = (DType.FLOAT16, DType.FLOAT32, DType.FLOAT64)


def to(x: Array, dtype: DType) -> Array:
    """Values in another type: floats rounded half to even, integers wrapped, fractions cut off, complex without its imaginary part.

    A float beyond an integer type's range has no defined value in PyTorch or ONNX; here it wraps from int64, whose own
    overflow gives its minimum (what x86 does). NaN becomes int64's minimum before wrapping.
    """
    source = DType.of(x.dtype)
    if source is dtype:
        return x
    if dtype is DType.STRING or source is DType.STRING:
        raise ValueError(f"text needs a cast: {source.value} to {dtype.value}")
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
    """The integer part of float64 values, in uint64 where only that can hold them, else int64."""
    if dtype is DType.UINT64:
        large = (x >= 2.0**63) & (x < 2.0**64)
        low = np.where(large, x - 2.0**63, x).astype(np.int64).astype(np.uint64)
        return np.where(large, low + np.uint64(2**63), low)
    fits = (x >= -(2.0**63)) & (x < 2.0**63)
    return np.where(fits, np.where(fits, x, 0.0).astype(np.int64), np.iinfo(np.int64).min)


def wrap(x: Array, dtype: DType) -> Array:
    """Integers (or bool) modulo two to the bits of the type."""
    if dtype.bits >= 8:
        return x.astype(dtype.numpy)
    span = 1 << dtype.bits
    offset = span // 2 if dtype.is_signed else 0
    low = (x.astype(np.int64) + offset) % span - offset
    return low.astype(np.int8).astype(dtype.numpy)


def round_to_odd(x: Array) -> Array:
    """float64 to float32 such that rounding on to a narrower type equals rounding once.

    The last bit of an inexact result is set (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008).
    """
    with np.errstate(all="ignore"):
        near = np.asarray(x.astype(np.float32))
    back = near.astype(np.float64)
    bits = near.view(np.uint32)
    towards_zero = np.where(np.abs(back) > np.abs(x), bits - np.uint32(1), bits)
    inexact = (back != x) & ~np.isnan(x)
    return np.where(inexact, towards_zero | np.uint32(1), bits).astype(np.uint32).view(np.float32)
