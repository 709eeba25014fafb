"""over_rows: work on the rows of a weight in parts that fit in a cache, on all cores. NumPy releases the GIL inside its loops."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from ..device import cpu

__all__ = ["over_rows"]

_PART = 1 << 18
"""Elements of a part, so that intermediate arrays fit in a cache."""


def over_rows(rows: int, width: int, work: Callable[[slice], None]) -> None:
    """Call ``work`` for slices of the rows, each of ``width`` elements, until all rows are covered. Raises its errors.

    Weights that are not finite cause no warnings; NumPy's setting for that is one of each thread.
    """

    def silent(part: slice) -> None:
        with np.errstate(all="ignore"):
            work(part)

    step = max(1, _PART // max(width, 1))
    parts = [slice(at, min(at + step, rows)) for at in range(0, rows, step)]
    with ThreadPoolExecutor(min(cpu().usable_cores, max(1, len(parts)))) as pool:
        list(pool.map(silent, parts))
