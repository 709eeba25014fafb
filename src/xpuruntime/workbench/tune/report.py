"""The result of a tuning as text and as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...compiler.times import KernelTimes

__all__ = ["TuneResult", "TunedCall"]


@dataclass(frozen=True, slots=True)
class TunedCall:
    """One call with more than one usable kernel.

    default: the kernel that is chosen without times. fastest: the kernel with the smallest median. ratio, low, high: time of the default
    over time of the fastest, with its 95% interval over the rounds.
    """

    key: str
    op: str
    nodes: tuple[str, ...]
    default: str
    fastest: str
    times_us: Mapping[str, float]
    ratio: float = 1.0
    low: float = 1.0
    high: float = 1.0

    @property
    def is_faster(self) -> bool:
        """Return True if the interval shows that the fastest kernel is faster than the default."""
        return self.low > 1

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "key": self.key,
            "op": self.op,
            "nodes": list(self.nodes),
            "default": self.default,
            "fastest": self.fastest,
            "times_us": dict(self.times_us),
            "ratio": self.ratio,
            "low": self.low,
            "high": self.high,
        }


@dataclass(frozen=True, slots=True)
class TuneResult:
    """The file of times that was written, and what it shows.

    finished: all rounds were measured. Otherwise the budget was spent, and the journal stays, so that the next tuning continues.
    resumed:  rounds that the journal had. measured: rounds of this process. contested: calls with more than one usable kernel.
    """

    path: Path
    times: KernelTimes
    contested: tuple[TunedCall, ...]
    finished: bool
    resumed: int
    measured: int
    seconds: float

    @property
    def sentence(self) -> str:
        """Answer in words."""
        faster = sum(c.is_faster for c in self.contested)
        text = f"{len(self.times.calls)} calls measured, {len(self.contested)} with more than one kernel; {faster} are faster than by default"
        return text if self.finished else f"{text}; the budget ended before all rounds, and the journal stays"

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "file": str(self.path),
            "answer": self.sentence,
            "finished": self.finished,
            "rounds_resumed": self.resumed,
            "rounds_measured": self.measured,
            "seconds": self.seconds,
            "calls": [c.to_json() for c in self.contested],
            "runs": [r.to_json() | {"error": r.error} for r in self.times.runs],
            "engines": [e.to_json() for e in self.times.engines],
            "placements": [p.to_json() for p in self.times.placements],
            "facts": dict(self.times.facts),
        }
