"""Statistics of repeated timings: medians with exact confidence intervals, and paired ratios.

Timings are skewed and their tails come from the machine, so all statistics use medians and ranks:

* the interval of a median is the order-statistic interval (exact for any continuous distribution of independent values;
  W. J. Conover, Practical Nonparametric Statistics, section 3.2); no normality, no resampling, no seed;
* two engines are compared by the ratio within each round of an alternation, so that a slowdown of the whole machine cancels;
* neighboring rounds are correlated, so they are first grouped into at most ``BLOCKS`` blocks, each of which counts once.
  Otherwise thousands of rounds would make a spurious 0.1% significant.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["BLOCKS", "Interval", "Ratio", "Summary", "median_interval", "paired_ratio", "summarize"]

BLOCKS = 60
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval of a median: ``low <= median <= high``. It is (0, inf) for too few values."""

    low: float
    high: float
    confidence: float

    def holds(self, value: float) -> bool:
        """Return True if the value is inside, ends included."""
        return self.low <= value <= self.high

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {"low": self.low, "high": self.high, "confidence": self.confidence}


@dataclass(frozen=True, slots=True)
class Summary:
    """Count, minimum, median with its interval, and 95th percentile (nearest rank) of timings, in the unit of the values."""

    count: int
    minimum: float
    median: float
    interval: Interval
    p95: float

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "count": self.count,
            "min": self.minimum,
            "median": self.median,
            "median_interval": self.interval.to_json(),
            "p95": self.p95,
        }


@dataclass(frozen=True, slots=True)
class Ratio:
    """The median of ``a / b`` over paired blocks, with its interval. ``blocks`` is the number of blocks."""

    value: float
    interval: Interval
    blocks: int

    def differs(self, floor: float = 0.0) -> bool:
        """Return True if the whole interval differs from 1 by more than ``floor``, a relative bias of the measurement."""
        return self.interval.low > 1 + floor or self.interval.high < 1 / (1 + floor)

    @property
    def bias(self) -> float:
        """Largest deviation from 1 in the interval; 0 if the interval contains 1."""
        if self.interval.holds(1.0):
            return 0.0
        return max(self.interval.high, 1 / self.interval.low) - 1

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {"value": self.value, "interval": self.interval.to_json(), "blocks": self.blocks}


def _lower_rank(n: int, tail: float) -> int:
    """Return the largest j with P(Binomial(n, 1/2) < j) <= tail: the rank (from 1) of the interval's lower end; 0 if there is none."""
    start = max(0, int(n / 2 - 12 * math.sqrt(n)))  # The probability below this is less than 1e-60.
    logs = (math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) for k in range(start, n + 1))
    sums = itertools.accumulate(math.exp(log - n * math.log(2.0)) for log in logs)
    return start + sum(1 for _ in itertools.takewhile(lambda below: below <= tail, sums))


def median_interval(values: Sequence[float] | NDArray[Any], confidence: float = CONFIDENCE) -> Interval:
    """Return the order-statistic interval of the median, of at least ``confidence``. 95% needs six values; fewer give (0, inf).

    Raise ValueError for no values or a confidence outside (0, 1).
    """
    ordered = np.sort(np.asarray(values, float))
    if ordered.size == 0 or not 0 < confidence < 1:
        raise ValueError("needs values and a confidence between 0 and 1")
    rank = _lower_rank(ordered.size, (1 - confidence) / 2)
    if rank < 1:
        return Interval(0.0, math.inf, confidence)
    return Interval(float(ordered[rank - 1]), float(ordered[ordered.size - rank]), confidence)


def summarize(values: Sequence[float], confidence: float = CONFIDENCE) -> Summary:
    """Return the summary of positive values. Raise ValueError for none."""
    interval = median_interval(values, confidence)
    ordered = np.sort(np.asarray(values, float))
    p95 = float(ordered[math.ceil(0.95 * ordered.size) - 1])
    return Summary(ordered.size, float(ordered[0]), float(np.median(ordered)), interval, p95)


def paired_ratio(a: Sequence[float], b: Sequence[float], confidence: float = CONFIDENCE) -> Ratio:
    """Return the ratio ``a / b`` of paired values: the median over blocks of each block's median ratio.

    Raise ValueError if the lengths differ or are zero, or if a value is not positive.
    """
    x, y = np.asarray(a, float), np.asarray(b, float)
    if x.shape != y.shape or not x.size or not (x > 0).all() or not (y > 0).all():
        raise ValueError("needs two sequences of positive values, of the same length")
    logs = np.log(x) - np.log(y)
    blocks = np.exp([float(np.median(part)) for part in np.array_split(logs, min(BLOCKS, logs.size))])
    return Ratio(float(np.median(blocks)), median_interval(blocks, confidence), len(blocks))
