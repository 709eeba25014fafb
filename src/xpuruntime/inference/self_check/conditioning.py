"""Measured amplification of rounding by a model, which limits how closely correct engines can agree.

Every engine rounds at every layer, which disturbs a result at least as much as changing the inputs by their last bit. An output that
such a change shifts by ``s`` (max|d|/max|ref|, on one engine) therefore gets a default tolerance of ``MARGIN * s`` if
that exceeds its precision's tolerance, and never more than ``WIDEST`` times that: a wrong output stays wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import ml_dtypes
import numpy as np

from ...numerics import compare_all
from ...protocols import Array
from ...types import DType

__all__ = ["MARGIN", "WIDEST", "sensitivity", "widened"]

MARGIN = 4.0
WIDEST = 100.0

Run = Callable[[dict[str, Array]], Sequence[Array]]


def sensitivity(
    run: Run,
    names: Sequence[str],
    feeds: Mapping[str, Array],
    outputs: Sequence[Array],
    precision: DType | None = None,
) -> dict[str, float]:
    """Return per output the largest max|d|/max|ref| when every float input moves by one unit in its last place: up, down, twice by random signs.

    ``outputs`` are the results of ``run`` for ``feeds``, in the order of ``names``. Without float inputs all are 0. ``precision``: the
    computing precision if it is lower than the inputs' own. The unit is then one of its last places, since smaller changes are rounded away.
    """
    if not any(v.dtype.kind == "f" for v in feeds.values()):
        return dict.fromkeys(names, 0.0)
    random = np.random.default_rng(0)
    shifts = dict.fromkeys(names, 0.0)
    for sign in (1.0, -1.0, None, None):
        nudged = {n: _nudge(v, sign, random, precision) for n, v in feeds.items()}
        for c in compare_all(names, run(nudged), outputs, math.inf):
            shifts[c.name] = max(shifts[c.name], c.max_rel if math.isfinite(c.max_rel) else 0.0)
    return shifts


def _nudge(value: Array, sign: float | None, random: np.random.Generator, precision: DType | None) -> Array:
    if value.dtype.kind != "f":
        return value
    signs = random.choice((-1.0, 1.0), value.shape) if sign is None else np.full(value.shape, sign)
    if precision is not None and precision.bits < 8 * value.dtype.itemsize:
        unit = float(ml_dtypes.finfo(precision.numpy).eps) * np.exp2(np.frexp(value)[1] - 1.0)
        coarse: Array = np.where(value == 0, value, value + signs * unit).astype(value.dtype)
        return coarse
    moved: Array = np.nextafter(
        value, (np.inf * signs).astype(value.dtype)
    )  # a wider sign array would widen the value
    return moved


def widened(base: float, shifts: Mapping[str, float]) -> dict[str, float]:
    """Return each output's default tolerance: ``base``, or more if the model amplifies rounding."""
    return {name: min(max(base, MARGIN * s), WIDEST * base) for name, s in shifts.items()}
