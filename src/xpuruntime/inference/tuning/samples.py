"""The figures of a measurement: one number for each kernel of a call and each round, and what follows from several rounds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias, TypeVar

import numpy as np

from ...compiler.times import CallDetail
from ...profiler.statistics import median_interval
from .timing import Sample

__all__ = ["RoundTimes", "Samples", "collected", "details_of", "measured_round", "medians"]

RoundTimes: TypeAlias = Mapping[str, Mapping[str, float]]
"""Microseconds of one round by call and kernel."""
Samples: TypeAlias = Mapping[str, Mapping[str, Sequence[float]]]
"""Microseconds by call and kernel, one for each round."""
_S = TypeVar("_S")
_INTERVAL_ROUNDS = 6  # fewer have no 95% interval


def measured_round(
    sides: Sequence[_S], index: int, measure: Callable[[_S], Iterator[Sample]]
) -> dict[str, dict[str, float]]:
    """Measure all sides in turn, every second round backwards. Return the median time of each call by kernel."""
    samples: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for side in sides if index % 2 == 0 else reversed(sides):
        for key, kernel, us in measure(side):
            samples[key][kernel].append(us)
    return {k: {n: float(np.median(us)) for n, us in v.items()} for k, v in samples.items()}


def collected(rounds: Iterable[RoundTimes]) -> dict[str, dict[str, list[float]]]:
    """Return the times of each call by kernel, one for each round."""
    samples: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for times in rounds:
        for key, row in times.items():
            for kernel, us in row.items():
                samples[key][kernel].append(us)
    return samples


def medians(samples: Samples) -> dict[str, dict[str, float]]:
    """Return the median over the rounds of each call by kernel."""
    return {
        key: {kernel: float(np.median(us)) for kernel, us in times.items()} for key, times in samples.items()
    }


def details_of(samples: Samples, nodes: Mapping[str, tuple[str, tuple[str, ...]]]) -> dict[str, CallDetail]:
    """Return op, nodes, intervals and rounds of each measured call."""
    details = {}
    for key, times in samples.items():
        intervals = {k: median_interval(us) for k, us in times.items() if len(us) >= _INTERVAL_ROUNDS}
        spans = {kernel: (i.low, i.high) for kernel, i in intervals.items()}
        details[key] = CallDetail(*nodes[key], spans, min(map(len, times.values())))
    return details
