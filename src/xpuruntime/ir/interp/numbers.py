"""Widening and rounding: widen before an op, round once after it; integers wrap.

Floats are computed in float64 (complex in complex128), and the result is rounded once, half to even, to the inferred dtype.
This is the meaning of float16, bfloat16 and float8 arithmetic in PyTorch and ONNX (wide accumulation, one rounding), and for
float32 it is the correctly rounded result that kernels approximate. If a rounding *inside* an op affects its result (division
with rounding, quantization), the op's function does it and documents it.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...casts import round_to_odd, to, wrap
from ...types import DType

__all__ = ["Array", "dtype_of", "highest", "lowest", "round_to_odd", "to", "widen", "wrap"]

Array: TypeAlias = NDArray[Any]


def dtype_of(x: Array) -> DType:
    """Return the DType of an array. Raises ValueError for a NumPy dtype that no tensor has."""
    return DType.of(x.dtype)


def widen(x: Array) -> Array:
    """Convert to the type for computing: float64, complex128, or int64 for sub-byte integers; other types stay."""
    dtype = dtype_of(x)
    if dtype.is_float:
        return x.astype(np.float64)
    if dtype.is_complex:
        return x.astype(np.complex128)
    return x.astype(np.int64) if dtype.is_integer and dtype.bits < 8 else x


def lowest(dtype: np.dtype[Any]) -> Any:
    """Return the value below every other: -inf, False, or the smallest integer."""
    if dtype.kind == "b":
        return False
    return -np.inf if dtype.kind == "f" else np.iinfo(dtype).min


def highest(dtype: np.dtype[Any]) -> Any:
    """Return the value above every other: inf, True, or the largest integer."""
    if dtype.kind == "b":
        return True
    return np.inf if dtype.kind == "f" else np.iinfo(dtype).max
