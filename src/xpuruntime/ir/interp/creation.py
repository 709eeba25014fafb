"""Ops that create tensors without operands."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...types import DType
from ..attributes import Const
from .numbers import Array, to
from .rule import InterpRule, plain

__all__ = ["RULES"]


def constant(*, value: Const) -> Array:
    """Return the tensor of a constant node."""
    return value.numpy()


def full(*, size: Sequence[int], value: float, dtype: DType) -> Array:
    """Fill a tensor with one value."""
    return np.broadcast_to(to(np.asarray(value), dtype), tuple(size))


def arange(*, start: float, end: float, step: float, dtype: DType) -> Array:
    """Return start + i * step up to end (exclusive): exact for integers, in float64 for fractions."""
    if all(isinstance(v, int) for v in (start, end, step)):
        return np.arange(start, end, step, dtype=np.int64)
    count = max(int(np.ceil((end - start) / step)), 0)
    return start + np.arange(count) * np.float64(step)


def eye(*, rows: int, columns: int, diagonal: int) -> Array:
    """Return ones on a diagonal, zeros elsewhere."""
    return np.eye(rows, columns, diagonal, dtype=bool)


def dims(*, values: Sequence[int]) -> Array:
    """Return the values of dims as a tensor."""
    return np.array(values, np.int64)


RULES: dict[str, InterpRule] = {
    "constant": plain(constant),
    "full": plain(full),
    "arange": plain(arange),
    "eye": plain(eye),
    "dims": plain(dims),
}
