"""The clock of whole runs in a tuning."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

__all__ = ["WHOLE", "Sample", "repeats", "whole_runs"]

WHOLE = "whole run"
_REPEATS, _MOST_REPEATS = 3, 30  # timed runs of a side in one round, after one that warms up
_LEAST_S = 0.002  # short runs are repeated for this long
Sample: TypeAlias = tuple[str, str, float]
"""A call's key or ``WHOLE``, its kernel or its side, and microseconds."""


def repeats() -> Iterator[int]:
    """Yield once for each timed run of a round."""
    began = time.monotonic()
    for i in range(_MOST_REPEATS):
        if i >= _REPEATS and time.monotonic() - began > _LEAST_S:
            return
        yield i


def whole_runs(side: str, run: Callable[[], Any]) -> Iterator[Sample]:
    """Warm up, then yield the time of each run of a side."""
    run()
    for _ in repeats():
        began = time.perf_counter_ns()
        run()
        yield WHOLE, side, max(time.perf_counter_ns() - began, 1) / 1e3
