"""Casts of values, and bitcasts."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from ...types import DType
from .numbers import Array, dtype_of, round_to_odd, to
from .rule import InterpRule, plain

__all__ = ["RULES", "saturated"]


def cast(x: Array, *, dtype: DType, saturate: bool, round_mode: str | None) -> Array:
    """Cast as ``casts.to``, with the rules of float8, float4 and strings.

    saturate: float8 values out of range, also infinities, become the largest value; otherwise infinity, or NaN in types without it.
    """
    source = dtype_of(x)
    if dtype is DType.STRING:
        return np.array([_text(v) for v in x.ravel().tolist()], dtype=object).reshape(x.shape)
    if source is DType.STRING:
        values = [_number(v, dtype) for v in x.ravel().tolist()]
        return to(
            np.array(values, dtype=np.int64 if dtype.is_integer else np.float64).reshape(x.shape), dtype
        )
    if dtype is DType.FLOAT8_E8M0FNU and source is not dtype:
        return _to_exponent(to(x, DType.FLOAT32), round_mode or "up", saturate)
    if saturate and dtype.is_float and dtype.bits <= 8 and source is not dtype:
        return saturated(to(x, DType.FLOAT64), dtype)
    return to(x, dtype)


def saturated(x: Array, dtype: DType) -> Array:
    """Cast float64 to a narrow float type. Values out of range become its largest value; NaN stays if the type has one."""
    largest = float(ml_dtypes.finfo(dtype.numpy).max)
    return round_to_odd(np.clip(x, -largest, largest)).astype(dtype.numpy)


def _to_exponent(x: Array, mode: str, saturate: bool) -> Array:
    """Convert float32 to the powers of two of float8_e8m0fnu by its exponent bits. The sign is dropped, infinity becomes NaN.

    ``nearest`` rounds halves up (below the smallest normal number: to even), as in the ONNX specification's table.
    """
    bits = x.view(np.uint32)
    exponent = ((bits >> 23) & 0xFF).astype(np.int64)
    fraction = (bits & 0x7FFFFF).astype(np.int64)
    half = 1 << 22
    above = {
        "up": fraction > 0,
        "down": np.zeros(x.shape, bool),
        "nearest": (fraction > half) | ((fraction == half) & (exponent > 0)),
    }[mode]
    raised = exponent + above
    if saturate:
        raised = np.minimum(raised, 0xFE)
    return np.where(exponent == 0xFF, 0xFF, raised).astype(np.uint8).view(DType.FLOAT8_E8M0FNU.numpy)


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode()
    return str(value)


def _number(text: Any, dtype: DType) -> float | int:
    return int(text) if dtype.is_integer else float(text)


def bitcast(x: Array, *, dtype: DType) -> Array:
    """Reinterpret the bits as another type."""
    return np.ascontiguousarray(x).view(dtype.numpy).reshape(x.shape)


RULES: dict[str, InterpRule] = {"cast": plain(cast), "bitcast": plain(bitcast)}
