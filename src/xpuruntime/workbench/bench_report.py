"""What a benchmark found: contenders in their order, which differences are real, who was wrong or could not be had."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..decisions import Candidate
from .statistics import Ratio, Summary

__all__ = ["NO_DIFFERENCE", "BenchReport", "RankedEngine"]

NO_DIFFERENCE = "no difference can be shown"


@dataclass(frozen=True, slots=True)
class RankedEngine:
    """One ranked contender. ``times_us``: every timed run, in microseconds, in the order of the rounds.

    ratio:   its time over the best one's, paired by round; None for the best itself.
    verdict: ``fastest``, ``slower``, ``no difference can be shown`` or, alone in the field, ``only one``.
    """

    facts: Mapping[str, Any]
    summary: Summary
    ratio: Ratio | None
    verdict: str
    times_us: tuple[float, ...] = field(repr=False)

    @property
    def name(self) -> str:
        """The engine."""
        return str(self.facts["engine"])

    def to_json(self) -> dict[str, Any]:
        """Plain data; times in microseconds."""
        return {
            **self.facts,
            "unit": "us",
            **self.summary.to_json(),
            "ratio_to_best": None if self.ratio is None else self.ratio.to_json(),
            "verdict": self.verdict,
        }


@dataclass(frozen=True, slots=True)
class BenchReport:
    """Who is how fast. ``ranked`` is ordered by median; ``ok`` is False when an output was wrong.

    confidence: of each ratio's interval, so that all pairs together reach 95% (Bonferroni).
    controls:   by engine, the ratio of two sessions of it; ``floor`` is the relative bias taken from them.
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
        """True when no contender gave a wrong output."""
        return not self.wrong

    @property
    def sentence(self) -> str:
        """The answer in words."""
        off = "; ".join(f"{name}: {text}" for name, text in self.wrong.items())
        if self.judged_by == "nobody":
            return f"not ranked, since no reference could judge who is right. {off}"
        if not self.ranked:
            return f"not ranked, since no engine gave right outputs{f'. {off}' if off else ''}"
        best, *others = self.ranked
        if not others:
            return f"{best.name}: median {best.summary.median:.1f} us; nothing to compare with"
        told = [s for s in others if s.verdict == "slower"]
        parts = [_slower(best, s) for s in told]
        parts += [
            f"{NO_DIFFERENCE} between {best.name} and {s.name}{_few(self.rounds)}"
            for s in others
            if s not in told
        ]
        return "; ".join(parts)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
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
