"""Position biases of attention scores: ALiBi (Press et al. 2021), as data of a family's row."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Alibi"]


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
