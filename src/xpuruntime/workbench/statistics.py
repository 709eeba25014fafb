"""What repeated timings allow one to say: medians with exact intervals, paired ratios, and when a difference is none.

Timings are skewed and their tails belong to the machine, so everything rests on medians and ranks:

* the interval of a median is the order-statistic interval (exact for any continuous distribution of independent values;
  W. J. Conover, Practical Nonparametric Statistics, section 3.2); no normality, no resampling, no seed;
* two engines are compared by the ratio within each round of an alternation, so what slows the whole machine down cancels;
* rounds next to each other resemble each other, so they are first gathered into at most ``BLOCKS`` blocks, each of which
  counts once; otherwise thousands of rounds would make a spurious 0.1% look certain.
"""

from __future__ import annotations

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
    """``low <= true median <= high`` at the stated confidence; (0, inf) where the values are too few to say anything."""

    low: float
    high: float
    confidence: float

    def holds(self, value: float) -> bool:
        """Whether the value lies inside, ends included."""
        return self.low <= value <= self.high

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"low": self.low, "high": self.high, "confidence": self.confidence}


@dataclass(frozen=True, slots=True)
class Summary:
    """Timings of one contender, in the unit of the values: count, least, median with its interval, 95th percentile (nearest rank)."""

    count: int
    least: float
    median: float
    interval: Interval
    p95: float

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "count": self.count,
            "min": self.least,
            "median": self.median,
            "median_interval": self.interval.to_json(),
            "p95": self.p95,
        }


@dataclass(frozen=True, slots=True)
class Ratio:
    """Median of ``a / b`` over paired blocks, with its interval. ``blocks`` is the number of values that it rests on."""

    value: float
    interval: Interval
    blocks: int

    def differs(self, floor: float = 0.0) -> bool:
        """Whether the whole interval lies beyond 1 by more than ``floor`` (a relative bias that the harness itself shows)."""
        return self.interval.low > 1 + floor or self.interval.high < 1 / (1 + floor)

    @property
    def bias(self) -> float:
        """How far from 1 a ratio that should be 1 may lie: 0 when the interval holds 1, else its farther end."""
        if self.interval.holds(1.0):
            return 0.0
        return max(self.interval.high, 1 / self.interval.low) - 1

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"value": self.value, "interval": self.interval.to_json(), "blocks": self.blocks}


def _lower_rank(n: int, tail: float) -> int:
    """Largest j with P(Binomial(n, 1/2) < j) <= tail: the rank (from 1) of the interval's lower end; 0 when there is none."""
    start = max(0, int(n / 2 - 12 * math.sqrt(n)))  # what lies lower weighs less than 1e-60
    below, log_half = 0.0, math.log(2.0)
    for k in range(start, n // 2 + 1):
        below += math.exp(math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) - n * log_half)
        if below > tail:
            return k
    return n // 2


def median_interval(values: Sequence[float] | NDArray[Any], confidence: float = CONFIDENCE) -> Interval:
    """The order-statistic interval of the median: at least ``confidence``. 95% needs six values, fewer give (0, inf).

    Raises ValueError for no values or a confidence outside (0, 1).
    """
    ordered = np.sort(np.asarray(values, float))
    if ordered.size == 0 or not 0 < confidence < 1:
        raise ValueError("needs values and a confidence between 0 and 1")
    rank = _lower_rank(ordered.size, (1 - confidence) / 2)
    if rank < 1:
        return Interval(0.0, math.inf, confidence)
    return Interval(float(ordered[rank - 1]), float(ordered[ordered.size - rank]), confidence)


def summarize(values: Sequence[float], confidence: float = CONFIDENCE) -> Summary:
    """Count, least, median, its interval and p95 of positive values. Raises ValueError for none."""
    interval = median_interval(values, confidence)
    ordered = np.sort(np.asarray(values, float))
    p95 = float(ordered[math.ceil(0.95 * ordered.size) - 1])
    return Summary(ordered.size, float(ordered[0]), float(np.median(ordered)), interval, p95)


def paired_ratio(a: Sequence[float], b: Sequence[float], confidence: float = CONFIDENCE) -> Ratio:
    """How many times ``b`` is ``a``, from values taken in pairs: the median over blocks of the blocks' median ratios.

    Raises ValueError when the two have not the same length, or none, or hold values that are not positive.
    """
    x, y = np.asarray(a, float), np.asarray(b, float)
    if x.shape != y.shape or not x.size or not (x > 0).all() or not (y > 0).all():
        raise ValueError("needs two equally long rows of positive values")
    logs = np.log(x) - np.log(y)
    blocks = np.exp([float(np.median(part)) for part in np.array_split(logs, min(BLOCKS, logs.size))])
    return Ratio(float(np.median(blocks)), median_interval(blocks, confidence), len(blocks))
