"""Comparison of arrays: one table of tolerances and one measure for sessions, tests and the command line.

The measure is ``max|a - b| / max|b|`` per output: it is scale-free, does not explode near zero, and one wrong weight
in a real network moves it by orders of magnitude more than rounding does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .types import DType

__all__ = ["TOLERANCE", "Comparison", "compare", "tolerance_for"]

# Largest max|d|/max|ref| between two correct computations of one model, by precision.
# float32: engines differ by up to 1.5e-5 on trained networks of up to 480 nodes (benchmarks/results/agreement.json).
TOLERANCE: dict[DType, float] = {
    DType.FLOAT64: 1e-10,
    DType.FLOAT32: 5e-5,
    DType.FLOAT16: 2e-2,
    DType.BFLOAT16: 6e-2,
    DType.INT16: 1e-2,
    DType.INT8: 1e-1,
    DType.INT4: 5e-1,
}


def tolerance_for(*precisions: DType) -> float:
    """Return the tolerance of the coarsest precision; integers and strings compare exactly."""
    return max((TOLERANCE.get(p, 0.0) for p in precisions), default=0.0)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The comparison of one output with its reference.

    max_abs:   max|a - b| over elements that are finite in both.
    max_rel:   max_abs / max|b|: the smallest tolerance that would pass. inf if none would (shape, NaN pattern, text, integers).
    cosine:    cosine of the two flattened outputs; None if either is all zero or not numeric.
    argmax_equal: share of rows (last axis) with the same argmax; None for scalars and empty outputs.
    mismatched: elements that differ at all.
    """

    name: str
    ok: bool
    tolerance: float
    max_abs: float
    max_rel: float
    cosine: float | None
    argmax_equal: float | None
    mismatched: int
    elements: int
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return plain data; infinities become the text ``"inf"`` so that the result is valid JSON."""
        data = {k: getattr(self, k) for k in self.__slots__}
        return {k: ("inf" if isinstance(v, float) and math.isinf(v) else v) for k, v in data.items()}


def compare(name: str, actual: NDArray[Any], reference: NDArray[Any], tolerance: float) -> Comparison:
    """Compare one output with its reference in float64 (complex128 for complex outputs).

    NaNs and infinities must be at the same indices, infinities with the same sign; the measure then skips them.
    Integers, booleans and strings are compared exactly, for any tolerance.
    """

    def verdict(
        reason: str, max_abs: float, max_rel: float, wrong: int, **metrics: float | None
    ) -> Comparison:
        return Comparison(
            name,
            not reason,
            tolerance,
            max_abs,
            max_rel,
            metrics.get("cosine"),
            metrics.get("argmax_equal"),
            wrong,
            reference.size,
            reason,
        )

    if actual.shape != reference.shape:
        return verdict(
            f"shape {list(actual.shape)} is not {list(reference.shape)}", math.inf, math.inf, reference.size
        )
    if actual.size == 0:
        return verdict("", 0.0, 0.0, 0)
    if actual.dtype.kind in "OUST" or reference.dtype.kind in "OUST":
        wrong = int(np.count_nonzero(actual != reference))
        return verdict(f"{wrong} strings differ" if wrong else "", 0.0, math.inf if wrong else 0.0, wrong)

    complex_ = "c" in (actual.dtype.kind, reference.dtype.kind)
    wide = np.complex128 if complex_ else np.float64
    a, b = actual.astype(wide), reference.astype(wide)
    exact = not (DType.of(reference.dtype).is_float or complex_)
    if not np.array_equal(np.isnan(a), np.isnan(b)):
        count = int(np.count_nonzero(np.isnan(a) != np.isnan(b)))
        return verdict(f"{count} elements are NaN in only one of the two", math.inf, math.inf, count)
    infinite = (np.isinf(a) | np.isinf(b)) & ~np.isnan(b)  # complex(inf, nan) counts as NaN
    if not np.array_equal(a[infinite], b[infinite]):
        count = int(np.count_nonzero(a[infinite] != b[infinite]))
        return verdict(f"{count} infinities differ", math.inf, math.inf, count)
    live = ~(infinite | np.isnan(b))
    x, y = a[live], b[live]
    with np.errstate(over="ignore"):  # 1e308 - -1e308 may overflow to inf
        difference = np.abs(x - y)
    wrong = (
        int(np.count_nonzero(actual[live] != reference[live])) if exact else int(np.count_nonzero(difference))
    )
    max_abs = float(difference.max(initial=0.0))
    scale = float(np.abs(y).max(initial=0.0))
    max_rel = 0.0 if max_abs == 0 else (max_abs / scale if scale else math.inf)
    if exact and wrong:
        max_rel = math.inf  # no tolerance applies to integers
    reason = ""
    if exact and wrong:
        reason = f"{wrong} of {reference.size} integers differ"
    elif not exact and max_rel > tolerance:
        reason = f"max|d|/max|ref| {max_rel:.3g} is over {tolerance:.3g}"
    return verdict(reason, max_abs, max_rel, wrong, cosine=_cosine(x, y), argmax_equal=_argmax_equal(a, b))


def _cosine(x: NDArray[Any], y: NDArray[Any]) -> float | None:
    scale_x, scale_y = float(np.abs(x).max(initial=0.0)), float(np.abs(y).max(initial=0.0))
    if not (scale_x and scale_y):
        return None
    u, v = x / scale_x, y / scale_y  # scale first, since squares of large values overflow
    share = float(abs(np.vdot(u, v)) / (np.linalg.norm(u) * np.linalg.norm(v)))
    return min(1.0, share) * _sign(u, v)


def _sign(u: NDArray[Any], v: NDArray[Any]) -> float:
    return -1.0 if np.vdot(u, v).real < 0 else 1.0


def _argmax_equal(a: NDArray[Any], b: NDArray[Any]) -> float | None:
    if a.ndim == 0 or a.shape[-1] < 2 or a.dtype.kind == "c":
        return None
    return float(np.mean(a.argmax(-1) == b.argmax(-1)))


def compare_all(
    names: Sequence[str], actual: Sequence[NDArray[Any]], reference: Sequence[NDArray[Any]], tolerance: float
) -> tuple[Comparison, ...]:
    """Compare each output with its reference, in the model's order."""
    return tuple(compare(n, a, r, tolerance) for n, a, r in zip(names, actual, reference, strict=True))
