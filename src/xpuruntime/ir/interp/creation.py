"""Tensors made without reading one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...types import DType
from ..attributes import Const
from .numbers import Array, to
from .rule import Rule, plain

__all__ = ["RULES"]


def constant(*, value: Const) -> Array:
    """Return the tensor that stands in the graph."""
    return value.numpy()


def full(*, size: Sequence[int], value: float, dtype: DType) -> Array:
    """Return one value everywhere."""
    return np.broadcast_to(to(np.asarray(value), dtype), tuple(size))


def arange(*, start: float, end: float, step: float, dtype: DType) -> Array:
    """Start + i * step, as many as lie before end; of integers exact, of fractions in float64."""
    if all(isinstance(v, int) for v in (start, end, step)):
        return np.arange(start, end, step, dtype=np.int64)
    count = max(int(np.ceil((end - start) / step)), 0)
    return start + np.arange(count) * np.float64(step)


def eye(*, rows: int, columns: int, diagonal: int) -> Array:
    """Ones on a diagonal."""
    return np.eye(rows, columns, diagonal, dtype=bool)


def dims(*, values: Sequence[int]) -> Array:
    """Dims as data."""
    return np.array(values, np.int64)


RULES: dict[str, Rule] = {
    "constant": plain(constant),
    "full": plain(full),
    "arange": plain(arange),
    "eye": plain(eye),
    "dims": plain(dims),
}
