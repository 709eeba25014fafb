"""Times in the text of speech, as Whisper writes them: tokens between which the text of a segment is (Radford et al. 2022)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..answers import SpokenSegment
from ..audio import HOP, RATE

__all__ = ["Timestamps", "segments_of"]

_SECONDS = 2 * HOP / RATE
"""Seconds of a step: those of a row of the encoder's output."""


@dataclass(frozen=True, slots=True)
class Timestamps:
    """The rules of times.

    first:  token of the time 0. Tokens after it are later times.
    text:   tokens below it are text, or end the answer.
    stops:  tokens that end the answer. They may follow the end of a segment.
    latest: most steps of the first time of an answer; None: any.
    """

    first: int
    text: int
    stops: frozenset[int] = frozenset()
    latest: int | None = None

    def constrain(self, x: NDArray[np.float32], answer: Sequence[int]) -> None:
        """Remove the tokens that may not follow an answer. An answer begins with a time; times are in pairs, the end of a segment and the
        start of the next one, and do not decrease; a time is next if all times together are more likely than any other token.
        """
        first = self.first
        x[first - 1] = -np.inf  # says that there are no times
        times = [t for t in answer if t >= first]
        after_time = bool(answer) and answer[-1] >= first
        paired = len(answer) < 2 or answer[-2] >= first
        if not answer:
            x[:first] = -np.inf
            if self.latest is not None:
                x[first + self.latest + 1 :] = -np.inf
        elif after_time:
            if paired:
                x[first:] = -np.inf
            else:
                stops = [t for t in self.stops if 0 <= t < first]
                kept = x[stops]
                x[: self.text] = -np.inf
                x[stops] = kept
        if times:
            x[first : times[-1] + (not after_time or paired)] = -np.inf
        with np.errstate(divide="ignore", invalid="ignore"):
            shift = x.max()
            likely = np.log(np.exp(x[first:] - shift).sum()) > x[:first].max(initial=-np.inf) - shift
        if likely:
            x[:first] = -np.inf


def segments_of(
    tokens: Sequence[int], times: Timestamps, decode: Callable[[Sequence[int]], str]
) -> tuple[SpokenSegment, ...]:
    """Return the segments of an answer. One without a start begins at the end of the one before. The last one has no end if the answer ends before it."""
    segments: list[SpokenSegment] = []
    start = 0.0
    text: list[int] = []

    def close(end: float | None) -> None:
        segments.append(SpokenSegment(start, end, decode(text), tuple(text)))
        text.clear()

    for token in tokens:
        if token < times.first:
            text.append(token)
            continue
        time = (token - times.first) * _SECONDS
        if text:
            close(time)
        start = time
    if text:
        close(None)
    return tuple(segments)
