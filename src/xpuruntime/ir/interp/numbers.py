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

from ...casts import round_to_odd, to, wrap
from ...types import DType

__all__ = ["Array", "dtype_of", "highest", "lowest", "round_to_odd", "to", "widen", "wrap"]

Array: TypeAlias = NDArray[Any]


def dtype_of(x: Array) -> DType:
    """Return the DType of an array. Raises ValueError for a NumPy dtype that no tensor has."""
    return DType.of(x.dtype)


def widen(x: Array) -> Array:
    """Return the same values in the type to compute with: float64, complex128, int64 for sub-byte integers; the rest as they are."""
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
