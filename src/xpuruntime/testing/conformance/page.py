"""A conformance report as one HTML page. Needs the extra ``report``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...profiler.blocks import Cell, Fold, Prose, Table
from ...profiler.html import Badge, Section, html_report
from .finding import FAILURES, CaseFinding, SuiteReport

if TYPE_CHECKING:
    from . import ConformanceReport

__all__ = ["write_page"]

_TONES = {"right": "good", "refused": "dim", "excused": "warn", "not run": "dim"} | dict.fromkeys(
    FAILURES, "bad"
)
_SIGNS = {"right": "✓", "refused": "·", "excused": "!", "not run": "·"} | dict.fromkeys(FAILURES, "✗")
_COUNTS = ("right", *FAILURES, "refused", "excused", "not run")


def write_page(path: Path, report: ConformanceReport) -> Path:
    """Write the page, whole or not at all. Raises ReportExtraMissing, StoreError."""
    facts = report.facts
    return html_report(
        path,
        f"Conformance of {facts['engine']} on {facts['device']}",
        Section("Counts", [_counts(report.suites)]),
        *(_section(suite) for suite in report.suites),
        lead=f"{facts['engine']} {facts['version']}, {facts.get('target', '')} {facts['machine']}".strip(),
        badge=Badge("nothing is wrong", True) if report.ok else Badge(f"{len(report.wrong)} failed", False),
    )


def _counts(suites: Sequence[SuiteReport]) -> Table:
    rows = tuple(
        (s.suite, *(str(s.count(o)) for o in _COUNTS), f"{s.seconds:.0f}") for s in suites if not s.not_run
    )
    columns = ("suite", *_COUNTS, "seconds")
    return Table(columns, rows, frozenset(columns[1:]))


def _section(suite: SuiteReport) -> Section:
    if suite.not_run:
        return Section(suite.suite, [f"Did not run: {suite.not_run}"])
    failed = [f for f in suite.findings if f.outcome in FAILURES]
    badge = Badge(f"{len(failed)} failed", False) if failed else Badge("nothing is wrong", True)
    return Section(suite.suite, list(_parts(suite, failed)), badge=badge)


def _parts(suite: SuiteReport, failed: Sequence[CaseFinding]) -> Iterator[Any]:
    if failed:
        yield _cases("Failed", failed)
    if suite.reasons:
        rows = tuple((reason, str(count)) for reason, count in suite.reasons)
        yield Table(("reason of a refusal", "cases"), rows, frozenset({"cases"}))
    if suite.suite == "models":
        yield _networks(suite.findings)
    missing = [f for f in suite.findings if f.outcome == "not run"]
    if missing:
        yield Fold(f"{len(missing)} did not run", (_cases("", missing),))
    if not suite.findings:
        yield Prose("No case.")


def _cases(caption: str, findings: Sequence[CaseFinding]) -> Table:
    rows = tuple((f.case, _outcome(f), f.why) for f in findings)
    return Table(("case", "outcome", "why"), rows, caption=caption)


def _outcome(finding: CaseFinding) -> Cell:
    return Cell(f"{_SIGNS[finding.outcome]} {finding.outcome}", tone=_TONES[finding.outcome], keep=True)


def _networks(findings: Sequence[CaseFinding]) -> Fold:
    """Return a table with a row per network and a column per device, precision and batch."""
    table: dict[str, dict[str, CaseFinding]] = {}
    for f in findings:
        if f.outcome != "not run":
            network, _, case = f.case.partition(" ")
            table.setdefault(network, {})[case] = f
    columns = tuple(dict.fromkeys(case for cases in table.values() for case in cases))
    rows = tuple(
        (network, *(_noted(cases[c]) if c in cases else "" for c in columns))
        for network, cases in sorted(table.items())
    )
    return Fold(f"{len(table)} networks", (Table(("network", *columns), rows),), open=True)


def _noted(finding: CaseFinding) -> Cell:
    cell = _outcome(finding)
    return Cell(cell.text, finding.reason or finding.why, tone=cell.tone, keep=True)
