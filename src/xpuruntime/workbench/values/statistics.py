"""Statistics of the difference of two arrays, block by block, so that memory does not grow with the arrays."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ...protocols import Array
from ...types import DType

__all__ = ["DifferenceStatistics", "difference"]

_BLOCK = 1 << 16
"""Elements per block: the float64 copies of two blocks stay in a processor's cache."""


@dataclass(frozen=True, slots=True)
class DifferenceStatistics:
    """The difference of a value on two sides.

    max_abs:   max|a - b| over elements that are finite in both. max_rel: max_abs / max|b|; inf if no tolerance admits the difference.
    cosine:    cosine of the flattened values over elements that are finite in both; None if either is all zero or not numeric.
    nans, infs: number of NaN and infinite elements of each side.
    misplaced: elements that are NaN or infinite in one side only, or infinite with another sign.
    argmax:    flat index of the largest element of each side (NaN ignored); None without a comparable element.
    mismatched: elements that differ at all. exact: True for integers, booleans and text, which
               are equal or not under the tolerance 0.
    """

    shape: tuple[int, ...]
    other_shape: tuple[int, ...]
    max_abs: float
    max_rel: float
    cosine: float | None
    nans: tuple[int, int]
    infs: tuple[int, int]
    misplaced: int
    argmax: tuple[int | None, int | None]
    mismatched: int
    elements: int
    exact: bool = False

    def reason(self, tolerance: float) -> str:
        """Return why the two values differ by more than the tolerance; empty if they agree."""
        if self.shape != self.other_shape:
            return f"shape {list(self.shape)} is not {list(self.other_shape)}"
        if self.exact and (not tolerance or math.isinf(self.max_rel)):
            return f"{self.mismatched} of {self.elements} elements differ" if self.mismatched else ""
        if self.misplaced:
            return f"{self.misplaced} elements are NaN or infinite on one side only"
        if self.max_rel > tolerance:
            return f"max|d|/max|ref| {self.max_rel:.3g} is over {tolerance:.3g}"
        return ""

    def to_json(self) -> dict[str, Any]:
        """Return plain data; infinities become text."""
        data = asdict(self)
        plain = {k: list(v) if isinstance(v, tuple) else v for k, v in data.items()}
        return {k: "inf" if isinstance(v, float) and math.isinf(v) else v for k, v in plain.items()}


def difference(actual: Array, reference: Array) -> DifferenceStatistics:
    """Return the statistics of ``actual`` against ``reference``. At most a few blocks are copied at a time."""
    if actual.shape != reference.shape:
        return DifferenceStatistics(
            actual.shape, reference.shape, math.inf, math.inf, None, (0, 0), (0, 0), 0, (None, None), actual.size, actual.size
        )  # fmt: skip
    if actual.dtype.kind in "OUST" or reference.dtype.kind in "OUST":
        wrong = int(np.count_nonzero(actual != reference))
        rel = math.inf if wrong else 0.0
        return DifferenceStatistics(
            actual.shape, actual.shape, 0.0, rel, None, (0, 0), (0, 0), 0, (None, None), wrong, actual.size, True
        )  # fmt: skip
    complex_ = "c" in (actual.dtype.kind, reference.dtype.kind)
    exact = not (complex_ or DType.of(reference.dtype).is_float or DType.of(actual.dtype).is_float)
    total = _Totals(complex_)
    at = 0
    for a, b in _blocks(actual, reference):
        total.add(at, a, b)
        at += a.size
    scale, max_abs = total.scale, total.max_abs
    max_rel = 0.0 if max_abs == 0 else (max_abs / scale if scale else math.inf)
    if total.misplaced:
        max_rel = math.inf
    return DifferenceStatistics(
        actual.shape, reference.shape, max_abs, max_rel, total.cosine, (total.nans[0], total.nans[1]), (total.infs[0], total.infs[1]),
        total.misplaced, (total.argmax[0], total.argmax[1]), total.mismatched, actual.size, exact,
    )  # fmt: skip


def _blocks(actual: Array, reference: Array) -> Iterator[tuple[Array, Array]]:
    """Yield both arrays in row-major order, block by block. Arrays in other layouts are not copied as a whole."""
    if actual.flags.c_contiguous and reference.flags.c_contiguous:
        a, b = actual.reshape(-1), reference.reshape(-1)
        for at in range(0, a.size, _BLOCK):
            yield a[at : at + _BLOCK], b[at : at + _BLOCK]
    elif actual.size:
        pairs: Any  # NumPy's stubs type the blocks of an iterator as single values
        with np.nditer(
            (actual, reference), flags=("external_loop", "buffered"), order="C", buffersize=_BLOCK
        ) as pairs:
            for a, b in pairs:
                yield a, b


class _Totals:
    """Running totals over blocks. Sums of squares are kept relative to the largest element so far, so that they do not overflow."""

    def __init__(self, complex_: bool) -> None:
        self._wide = np.complex128 if complex_ else np.float64
        self._complex = complex_
        self.max_abs = self.scale = 0.0
        self.nans, self.infs, self.misplaced, self.mismatched = [0, 0], [0, 0], 0, 0
        self.argmax: list[int | None] = [None, None]
        self._largest = [-math.inf, -math.inf]
        self._unit = 0.0
        self._dot, self._squares = 0.0, [0.0, 0.0]

    def add(self, at: int, actual: Array, reference: Array) -> None:
        x, y = actual.astype(self._wide), reference.astype(self._wide)
        for side, values in enumerate((x, y)):
            nan = np.isnan(values)
            self.nans[side] += int(nan.sum())
            self.infs[side] += int((np.isinf(values) & ~nan).sum())
            if not self._complex and not nan.all():
                index = int(np.nanargmax(values))
                if values[index] > self._largest[side] or self.argmax[side] is None:
                    self._largest[side], self.argmax[side] = float(values[index]), at + index
        both_nan = np.isnan(x) & np.isnan(y)
        finite = np.isfinite(x) & np.isfinite(y)
        self.misplaced += int((~finite & ~both_nan & (x != y)).sum())
        u, v = x[finite], y[finite]
        with np.errstate(over="ignore"):
            distance = np.abs(u - v)
        self.mismatched += int(np.count_nonzero(distance)) + int((~finite & ~both_nan & (x != y)).sum())
        self.max_abs = max(self.max_abs, float(distance.max(initial=0.0)))
        self.scale = max(self.scale, float(np.abs(v).max(initial=0.0)))
        self._accumulate(u, v)

    def _accumulate(self, u: Array, v: Array) -> None:
        unit = max(float(np.abs(u).max(initial=0.0)), float(np.abs(v).max(initial=0.0)))
        if unit == 0.0:
            return
        if unit > self._unit:
            ratio = (self._unit / unit) ** 2
            self._dot, self._squares = self._dot * ratio, [s * ratio for s in self._squares]
            self._unit = unit
        u, v = u / self._unit, v / self._unit
        self._dot += float(np.vdot(v, u).real)
        self._squares[0] += float(np.vdot(u, u).real)
        self._squares[1] += float(np.vdot(v, v).real)

    @property
    def cosine(self) -> float | None:
        if not all(self._squares):
            return None
        return max(-1.0, min(1.0, self._dot / math.sqrt(self._squares[0] * self._squares[1])))
