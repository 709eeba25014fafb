"""Conformance suites for a device, a backend or an engine, checked case by case. ``xpu conformance`` prints the report.

    from xpuruntime.testing.conformance import conformance
    report = conformance("cuda:0", suites=("nodes",))
    report = conformance(ToyBackend(), target=ToyTarget())
    assert report.ok, report.wrong

A report fails if no case is right or any case is wrong. A case that is refused with a reason is not a failure.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Protocol

from ...arguments import check_count, check_several
from ...errors import InputError
from . import kernels, models, networks, nodes, ops
from .finding import FAILURES, CaseFinding, SuiteReport
from .subject import DeviceUnderTest, subject

__all__ = [
    "SUITES",
    "CaseFinding",
    "ConformanceReport",
    "DeviceUnderTest",
    "SuiteReport",
    "conformance",
    "subject",
]


class Suite(Protocol):
    """A module of this package: the packages that it needs, and its findings."""

    NEEDS: tuple[str, ...]

    def findings(self, subject: DeviceUnderTest, sample: int, jobs: int) -> Iterator[CaseFinding]:
        """Yield a finding per case. sample: cases of each group, 0 for the default; jobs: parallel compilers."""
        ...


SUITES: Mapping[str, Suite] = {"nodes": nodes, "ops": ops, "kernels": kernels, "networks": networks, "models": models}  # type: ignore[dict-item]  # fmt: skip
"""Suites by name: the onnx package's node cases, PyTorch's samples of ops, the catalogue's kernels by name, small networks and decoders, and
every architecture family of the installed model libraries."""
USUAL = tuple(n for n in SUITES if n != "models")
"""The default suites: ``models`` is left out because it takes hours on few cores."""


@dataclass(frozen=True)
class ConformanceReport:
    """The subject's facts, and a report per suite."""

    facts: Mapping[str, Any]
    suites: Sequence[SuiteReport]

    @property
    def wrong(self) -> list[CaseFinding]:
        """Return every failed case: wrong, a raw error, a killed process, or too slow."""
        return [f for s in self.suites for f in s.findings if f.outcome in FAILURES]

    @property
    def ok(self) -> bool:
        """Return True if no case is wrong and at least one is right."""
        return not self.wrong and any(s.count("right") for s in self.suites)

    def to_json(self) -> dict[str, Any]:
        """Return subject, suites and the result as plain data."""
        return {"subject": dict(self.facts), "suites": [s.to_json() for s in self.suites], "ok": self.ok}


def conformance(
    where: Any = "cpu",
    *,
    target: Any = None,
    device: str | None = None,
    suites: Sequence[str] = (),
    sample: int = 0,
    jobs: int = 0,
    model_options: models.Options | None = None,
    networks_of: models.Options | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> ConformanceReport:
    """Run suites on a device, backend or engine.

    where, target, device: as for ``subject``.
    suites:   names of ``SUITES``. Default: ``USUAL``. The packages of a named suite must be installed.
    sample:   cases per group: of an op's node cases, of a variant and dtype of PyTorch's samples, of a kernel's calls, of a network's
              inputs. 0 means all node cases and calls, two samples, twenty inputs.
    jobs:     number of parallel compilers. Default: a quarter of the cores available to this process.
    model_options: networks for the suite ``models``, and its time limits.
    networks_of: deprecated name of ``model_options``.
    progress: called with a line of text about twice per second.
    Raises InputError for an unknown suite or one whose packages are missing, DeviceUnavailable, EngineUnavailable.
    """
    if networks_of is not None:
        warnings.warn("conformance(networks_of=) is now model_options=", DeprecationWarning, stacklevel=2)
        model_options = model_options or networks_of
    sample = check_count("conformance", "sample", sample, 0)
    jobs = check_count("conformance", "jobs", jobs, 0, models.MAX_PROCESSES)
    listed = f"Give a list of {', '.join(SUITES)}."
    suites = check_several("conformance", "suites", suites, "a list of suites", listed)
    device_under_test = subject(where, target=target, device=device)
    unknown = [s for s in suites if s not in SUITES]
    if unknown:
        raise InputError(
            "conformance", "no suite of that name", got=", ".join(map(str, unknown))[:80], do=f"Suites are {', '.join(SUITES)}."
        )  # fmt: skip
    at_once = jobs or max(1, len(os.sched_getaffinity(0)) // 4)
    reports = []
    for name in dict.fromkeys(suites or USUAL):
        missing = [p for p in SUITES[name].NEEDS if find_spec(p) is None]
        if missing:
            why = f"needs the Python package{'s' if len(missing) > 1 else ''} {', '.join(missing)}"
            if suites:
                raise InputError(f"suite {name}", why, do=f"Run: pip install {' '.join(missing)}")
            reports.append(SuiteReport(name, not_run=why))
            continue
        if name == "models":
            cases = models.findings(device_under_test, sample, jobs, model_options)
        else:
            cases = SUITES[name].findings(device_under_test, sample, at_once)
        reports.append(_run(name, cases, progress))
    return ConformanceReport(device_under_test.facts(), reports)


def _run(name: str, cases: Iterator[CaseFinding], progress: Callable[[str], None]) -> SuiteReport:
    start, case_findings, last_report = time.perf_counter(), list[CaseFinding](), 0.0
    progress(f"{name}: compiling")
    for finding in cases:
        case_findings.append(finding)
        if time.perf_counter() - last_report > 0.5:
            last_report = time.perf_counter()
            failed = sum(f.outcome in FAILURES for f in case_findings)
            progress(f"{name}: {len(case_findings)} cases, {failed} failed; {finding.case}")
    return SuiteReport(name, case_findings, time.perf_counter() - start)
