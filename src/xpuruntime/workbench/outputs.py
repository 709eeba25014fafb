"""A summary of an output: minimum, maximum, mean, count of numbers that are not finite, and the largest entries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..types import DType

__all__ = ["OutputSummary", "summarize_output"]

_MAX_ROWS = 8  # rows of which top-k shows the largest entries
_MAX_VALUES = 32  # elements of an output that JSON contains in full
_MAX_TEXTS = 8  # elements of a string output that are shown


@dataclass(frozen=True, slots=True)
class OutputSummary:
    """One output: dtype, shape, minimum, maximum and mean of its finite numbers, and the count of the others.

    top:    for each of the first rows (last axis), the largest entries as (index, value), largest first.
    values: all elements in C order if there are at most 32; else None.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    minimum: float | None
    maximum: float | None
    mean: float | None
    not_finite: int
    top: tuple[tuple[tuple[int, float], ...], ...] = ()
    values: tuple[Any, ...] | None = None
    texts: tuple[str, ...] = ()

    @property
    def spec(self) -> str:
        """``float32[1, 1000]``."""
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "name": self.name,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "min": self.minimum,
            "max": self.maximum,
            "mean": self.mean,
            "not_finite": self.not_finite,
            "top": [[{"index": i, "value": v} for i, v in row] for row in self.top],
            "values": None if self.values is None else list(self.values),
        }


def summarize_output(name: str, value: Any, top_k: int = 0) -> OutputSummary:
    """Return the summary of one array, with the ``top_k`` largest entries. Complex numbers are summarized by magnitude."""
    array = np.asarray(value)
    dtype = DType.of(array.dtype)
    values = tuple(array.ravel().tolist()) if array.size <= _MAX_VALUES else None
    if dtype is DType.STRING:
        texts = tuple(str(t) for t in array.ravel()[:_MAX_TEXTS])
        return OutputSummary(name, dtype.value, array.shape, None, None, None, 0, values=values, texts=texts)
    numbers = np.abs(array).astype(np.float64) if dtype.is_complex else array.astype(np.float64)
    finite = numbers[np.isfinite(numbers)]
    minimum, maximum, mean = (
        (None, None, None) if not finite.size else (finite.min(), finite.max(), finite.mean())
    )
    top = _top(numbers, top_k) if top_k and array.ndim and array.size else ()
    return OutputSummary(
        name,
        dtype.value,
        array.shape,
        None if minimum is None else float(minimum),
        None if maximum is None else float(maximum),
        None if mean is None else float(mean),
        int(numbers.size - finite.size),
        top,
        tuple(map(str, values)) if values is not None and dtype.is_complex else values,
    )


def _top(numbers: Any, k: int) -> tuple[tuple[tuple[int, float], ...], ...]:
    rows = numbers.reshape(-1, numbers.shape[-1])[:_MAX_ROWS]
    order = np.argsort(-np.where(np.isnan(rows), -np.inf, rows), axis=-1, kind="stable")[:, :k]
    return tuple(tuple((int(i), float(row[i])) for i in best) for row, best in zip(rows, order, strict=True))
