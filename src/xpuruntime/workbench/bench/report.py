"""The report of a benchmark: engines ranked by median, significant differences, engines with wrong outputs, and rejected engines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...decisions import Candidate
from ...profiler.statistics import Ratio, Summary

__all__ = ["NO_DIFFERENCE", "BenchReport", "RankedEngine"]

NO_DIFFERENCE = "no difference can be shown"


@dataclass(frozen=True, slots=True)
class RankedEngine:
    """A ranked engine. ``times_us`` holds every timed run in microseconds, in the order of the rounds.

    ratio:   its time over that of the fastest engine, paired by round; None for the fastest itself.
    verdict: ``fastest``, ``slower``, ``no difference can be shown``, or ``only one`` if no other engine is ranked.
    """

    facts: Mapping[str, Any]
    summary: Summary
    ratio: Ratio | None
    verdict: str
    times_us: tuple[float, ...] = field(repr=False)

    @property
    def name(self) -> str:
        """Name of the engine."""
        return str(self.facts["engine"])

    def to_json(self) -> dict[str, Any]:
        """Return plain data, with times in microseconds."""
        return {
            **self.facts,
            "unit": "us",
            **self.summary.to_json(),
            "ratio_to_best": None if self.ratio is None else self.ratio.to_json(),
            "verdict": self.verdict,
        }


@dataclass(frozen=True, slots=True)
class BenchReport:
    """The result of a benchmark. ``ranked`` is ordered by median; ``ok`` is False if an output is wrong.

    confidence: confidence of each ratio's interval, such that all pairs together reach 95% (Bonferroni).
    controls:   for each engine, the ratio of two sessions of it; ``floor`` is the relative bias derived from them.
    """

    model: str
    machine: str
    inputs: str
    threads: int
    rounds: int
    seconds: float
    judged_by: str
    ranked: tuple[RankedEngine, ...]
    wrong: Mapping[str, str]
    rejected: tuple[Candidate, ...]
    confidence: float
    controls: Mapping[str, Ratio]
    floor: float

    @property
    def ok(self) -> bool:
        """True if no engine has a wrong output."""
        return not self.wrong

    @property
    def sentence(self) -> str:
        """Answer in words."""
        differences = "; ".join(f"{name}: {text}" for name, text in self.wrong.items())
        if self.judged_by == "nobody":
            return f"not ranked: no reference shows which outputs are right. {differences}"
        if not self.ranked:
            return f"not ranked: no engine has right outputs{f'. {differences}' if differences else ''}"
        best, *others = self.ranked
        if not others:
            return f"{best.name}: median {best.summary.median:.1f} us; nothing to compare with"
        slower = [e for e in others if e.verdict == "slower"]
        parts = [_slower(best, e) for e in slower]
        parts += [
            f"{NO_DIFFERENCE} between {best.name} and {e.name}{_few(self.rounds)}"
            for e in others
            if e not in slower
        ]
        return "; ".join(parts)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "ok": self.ok,
            "answer": self.sentence,
            "model": self.model,
            "machine": self.machine,
            "inputs": self.inputs,
            "threads": self.threads,
            "rounds": self.rounds,
            "seconds": self.seconds,
            "judged_by": self.judged_by,
            "ranked": [s.to_json() for s in self.ranked],
            "wrong": dict(self.wrong),
            "rejected": [c.to_json() for c in self.rejected],
            "ratio_confidence": self.confidence,
            "controls": {name: ratio.to_json() for name, ratio in self.controls.items()},
            "floor": self.floor,
        }


def _slower(best: RankedEngine, other: RankedEngine) -> str:
    assert other.ratio is not None
    low, high = other.ratio.interval.low, other.ratio.interval.high
    return f"{best.name} is {other.ratio.value:.2f} times as fast as {other.name} ({low:.2f} to {high:.2f})"


def _few(rounds: int) -> str:
    return f" in {rounds} rounds (give more --seconds)" if rounds < 10 else ""
