"""How much a model amplifies rounding, measured: no two right engines can agree better than the model lets them.

Every engine rounds at every layer; that is at least as large a disturbance as moving the inputs by their last bit. So an output that
such a move shifts by ``s`` (max|d|/max|ref|, on one and the same engine) gets a default tolerance of ``MARGIN * s`` where
that is more than its precision's tolerance, and never more than ``WIDEST`` times that: a wrong output stays wrong.
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

    ``outputs`` are what ``run`` gave for ``feeds``, in the order of ``names``. Without float inputs all are 0. ``precision``: what is
    computed in, where it is lower than the inputs' own; a unit is one of its last places then, since smaller moves are rounded away.
    """
    if not any(v.dtype.kind == "f" for v in feeds.values()):
        return dict.fromkeys(names, 0.0)
    random = np.random.default_rng(0)
    found = dict.fromkeys(names, 0.0)
    for sign in (1.0, -1.0, None, None):
        nudged = {n: _nudge(v, sign, random, precision) for n, v in feeds.items()}
        for c in compare_all(names, run(nudged), outputs, math.inf):
            found[c.name] = max(found[c.name], c.max_rel if math.isfinite(c.max_rel) else 0.0)
    return found


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
    )  # a wider direction would widen the value
    return moved


def widened(base: float, shifts: Mapping[str, float]) -> dict[str, float]:
    """Per output the default tolerance: ``base``, or more where the model amplifies rounding."""
    return {name: min(max(base, MARGIN * s), WIDEST * base) for name, s in shifts.items()}
