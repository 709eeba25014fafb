"""Position biases of attention scores, as data: ALiBi (Press et al. 2021), and T5's learned biases by buckets of distances."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Alibi", "DistanceBuckets"]


@dataclass(frozen=True, slots=True)
class Alibi:
    """Scores that fall linearly with the distance of a key, with a slope per head.

    scaled:  the biases are scaled, as scores are.
    rounded: the biases are products of a slope and a key's position that are rounded to bfloat16.
    """

    scaled: bool = False
    rounded: bool = False

    def slopes(self, heads: int) -> NDArray[np.float32]:
        """Return the slope of each head: those of the next smaller power of two, then every second one of twice as many."""
        count = 2 ** math.floor(math.log2(heads))
        return np.concatenate([_powers(count), _powers(2 * count)[::2]])[:heads]


_LARGEST = 8
"""The largest exponent of slopes."""


def _powers(count: int) -> NDArray[np.float32]:
    return np.asarray(np.exp2(-np.arange(1, count + 1) * (_LARGEST / count)), np.float32)


@dataclass(frozen=True, slots=True)
class DistanceBuckets:
    """DistanceBuckets of distances, each of which has a learned bias per head. Half of them have one distance each; the others grow with its logarithm.

    longest: distance from which on all are in the last bucket. both: half of the buckets are for keys after the query.
    """

    count: int
    longest: int
    both: bool = False

    def of_distances(self) -> NDArray[np.int64]:
        """Return the bucket of each key position minus query position, from -longest to longest; without ``both``, from -longest to 0."""
        distance = np.arange(self.longest + 1)
        count = self.count // 2 if self.both else self.count
        exact = count // 2
        ratio = np.log(np.maximum(distance, 1).astype(np.float32) / np.float32(exact)) / np.float32(
            math.log(self.longest / exact)
        )
        large = np.minimum(exact + (ratio * np.float32(count - exact)).astype(np.int64), count - 1)
        before = np.where(distance < exact, distance, large)[::-1]
        return np.concatenate([before, before[::-1][1:] + count]) if self.both else before
