"""Numbers: widen before an op, round once after it; integers wrap.

Every float is computed with in float64 (complex in complex128) and the result is rounded once, half to even, to the dtype
that inference gives. That is what PyTorch and ONNX mean by float16, bfloat16 and float8 arithmetic (wide accumulation, one
rounding), and for float32 it is the correctly rounded answer that kernels approximate. Where a rounding *inside* an op can be
seen in the result (division with rounding, quantization), the function of that op rounds there and says so.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...types import DType

__all__ = ["Array", "dtype_of", "highest", "lowest", "round_to_odd", "to", "widen", "wrap"]

Array: TypeAlias = NDArray[Any]

_NATIVE_FLOATS = (DType.FLOAT16, DType.FLOAT32, DType.FLOAT64)


def dtype_of(x: Array) -> DType:
    """The DType of an array. Raises ValueError for a NumPy dtype that no tensor has."""
    return DType.of(x.dtype)


def widen(x: Array) -> Array:
    """The same values in the type to compute with: float64, complex128, int64 for sub-byte integers; the rest as they are."""
    dtype = dtype_of(x)
    if dtype.is_float:
        return x.astype(np.float64)
    if dtype.is_complex:
        return x.astype(np.complex128)
    return x.astype(np.int64) if dtype.is_integer and dtype.bits < 8 else x


def to(x: Array, dtype: DType) -> Array:
    """Values in another type: floats rounded half to even, integers wrapped, fractions cut off, complex without its imaginary part.

    A float beyond an integer type's range has no defined value in PyTorch or ONNX; here it wraps from int64, whose own
    overflow gives its minimum (what x86 does). NaN becomes int64's minimum before wrapping.
    """
    source = dtype_of(x)
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


def lowest(dtype: np.dtype[Any]) -> Any:
    """The value below every other: -inf, False, or the smallest integer."""
    if dtype.kind == "b":
        return False
    return -np.inf if dtype.kind == "f" else np.iinfo(dtype).min


def highest(dtype: np.dtype[Any]) -> Any:
    """The value above every other: inf, True, or the largest integer."""
    if dtype.kind == "b":
        return True
    return np.inf if dtype.kind == "f" else np.iinfo(dtype).max
