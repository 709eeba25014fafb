"""The result of one case, and counts over many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["FAILURES", "CaseFinding", "SuiteReport"]

FAILURES = ("wrong", "raw error", "killed", "slow")
"""Outcomes that count as failures."""

_MAX_LISTED = 200
"""Maximum number of wrong cases in a JSON document."""


@dataclass(frozen=True, slots=True)
class CaseFinding:
    """The result of one case. ``outcome`` is one of:

    right:     the outputs agree.
    wrong:     the outputs differ, the compiler crashed, or its code does not build.
    refused:   an XpuError with a reason.
    excused:   the outputs differ for a reason in the list of known cases, or the vendor's own API returns the same outputs.
    not run:   the suite's package cannot provide the case.
    raw error, killed, slow: only in the suite ``models``: an exception that is not an XpuError, a process that ended, or a case that
               exceeded its time limit.

    why: the difference, or the error's text. reason: key in the table of refusals. kernels: the kernels that ran.
    """

    case: str
    outcome: str
    why: str = ""
    reason: str = ""
    kernels: tuple[str, ...] = ()


@dataclass(frozen=True)
class SuiteReport:
    """A suite's findings. ``not_run``: the reason if it did not run, and what to do."""

    suite: str
    findings: Sequence[CaseFinding] = ()
    seconds: float = 0.0
    not_run: str = ""

    def count(self, outcome: str) -> int:
        """Return the number of cases with this outcome."""
        return sum(f.outcome == outcome for f in self.findings)

    @property
    def reasons(self) -> list[tuple[str, int]]:
        """Return the reasons of refusals, the most frequent first."""
        return Counter(f.reason or f.why for f in self.findings if f.outcome == "refused").most_common()

    @property
    def kernels(self) -> list[tuple[str, int]]:
        """Return the kernels of right cases, and the number of cases in which each ran."""
        return Counter(k for f in self.findings if f.outcome == "right" for k in f.kernels).most_common()

    def to_json(self) -> dict[str, Any]:
        """Return counts, cases that did not run and why, reasons, kernels, and every wrong case up to 200."""
        wrong = [f for f in self.findings if f.outcome in FAILURES]
        failures = {o: self.count(o) for o in FAILURES[1:] if self.suite == "models"}
        return {
            "suite": self.suite,
            "cases": len(self.findings) - self.count("not run"),
            **{o: self.count(o) for o in ("right", "wrong", "refused", "excused")},
            **failures,
            "cases_not_run": {f.case: f.why for f in self.findings if f.outcome == "not run"},
            "seconds": round(self.seconds, 1),
            "not_run": self.not_run,
            "reasons": dict(self.reasons),
            "kernels": dict(self.kernels),
            "wrong_cases": [
                {"case": f.case, "outcome": f.outcome, "why": f.why, "kernels": f.kernels}
                for f in wrong[:_MAX_LISTED]
            ],
        }
