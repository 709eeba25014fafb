"""What became of one case, and the counts over many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["FAILURES", "CaseFinding", "SuiteReport"]

FAILURES = ("wrong", "raw error", "killed", "slow")
"""Outcomes that count against us."""

_SHOWN = 200
"""Wrong cases that a document lists."""


@dataclass(frozen=True, slots=True)
class CaseFinding:
    """``right``; ``wrong``: another answer, a crash of the compiler, code that does not build; ``refused``: an error that says why; ``excused``: another
    answer for a reason that the list of known cases has, or that a vendor's own API gives as well; ``not run``: the suite's own package has no such case. Of networks in processes of their
    own also ``raw error``: not one of ``errors.py``; ``killed``: the process ended; ``slow``: it took too long.

    why:     what differs, or the error's text. reason: what a table of refusals counts. kernels: those that ran.
    """

    case: str
    outcome: str
    why: str = ""
    reason: str = ""
    kernels: tuple[str, ...] = ()


@dataclass(frozen=True)
class SuiteReport:
    """A suite's findings. ``not_run``: why it did not run, and what to do."""

    suite: str
    findings: Sequence[CaseFinding] = ()
    seconds: float = 0.0
    not_run: str = ""

    def count(self, outcome: str) -> int:
        """How many cases became that."""
        return sum(f.outcome == outcome for f in self.findings)

    @property
    def reasons(self) -> list[tuple[str, int]]:
        """Why cases were refused, the most frequent first."""
        return Counter(f.reason or f.why for f in self.findings if f.outcome == "refused").most_common()

    @property
    def kernels(self) -> list[tuple[str, int]]:
        """Kernels of right cases, and in how many they ran."""
        return Counter(k for f in self.findings if f.outcome == "right" for k in f.kernels).most_common()

    def to_json(self) -> dict[str, Any]:
        """Counts, cases that did not run and why, reasons, kernels, and every wrong case up to 200."""
        wrong = [f for f in self.findings if f.outcome in FAILURES]
        more = {o: self.count(o) for o in FAILURES[1:] if self.suite == "models"}
        return {
            "suite": self.suite,
            "cases": len(self.findings) - self.count("not run"),
            **{o: self.count(o) for o in ("right", "wrong", "refused", "excused")},
            **more,
            "cases_not_run": {f.case: f.why for f in self.findings if f.outcome == "not run"},
            "seconds": round(self.seconds, 1),
            "not_run": self.not_run,
            "reasons": dict(self.reasons),
            "kernels": dict(self.kernels),
            "wrong_cases": [
                {"case": f.case, "outcome": f.outcome, "why": f.why, "kernels": f.kernels}
                for f in wrong[:_SHOWN]
            ],
        }
