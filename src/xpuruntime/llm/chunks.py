"""Chunks: the prefill lengths in which a prompt is read."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

__all__ = ["chunk_length"]


def chunk_length(remaining: int, lengths: Sequence[int], fixed: int = 0) -> int:
    """Return the length of the next chunk for so many tokens; 1 for a single one.

    lengths: prefill lengths, ascending.
    fixed:   the time of a chunk apart from its tokens, in tokens: a GPU reads the weights in it. Up to twice the longest length is read in the chunks with
             the least time in all, and more begins with the longest. 0: the smallest length that fits, unless more than half of it would be padding.
    """
    if remaining == 1:
        return 1
    if fixed:
        unit = math.gcd(*lengths)
        return (
            lengths[-1]
            if remaining > 2 * lengths[-1]
            else _fastest(tuple(lengths), fixed)[-(-remaining // unit)]
        )
    smallest = next((n for n in lengths if n >= remaining), lengths[-1])
    fitting = [n for n in lengths if n <= remaining]
    return fitting[-1] if fitting and smallest > 2 * remaining else smallest


@functools.lru_cache(maxsize=64)
def _fastest(lengths: tuple[int, ...], fixed: int) -> tuple[int, ...]:
    """Return the longest chunk of those that read 0, 1, 2 ... units of tokens in the least time, up to twice the longest length.

    A unit is the greatest common divisor of the lengths.
    """
    unit = math.gcd(*lengths)
    times, longest = [0], [0]
    for tokens in range(unit, 2 * lengths[-1] + unit, unit):
        time, negative = min((fixed + n + times[max(0, tokens - n) // unit], -n) for n in lengths)
        times.append(time)
        longest.append(max(-negative, longest[max(0, tokens + negative) // unit]))
    return tuple(longest)
