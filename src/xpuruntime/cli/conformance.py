"""``xpu conformance``: what works on a device, a backend of one's own, or an engine. Exit 1: something is wrong, or nothing is right."""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import InputError
from . import options
from .answer import Answer, verb
from .console import progress, say, table
from .exit_codes import ExitCode

if TYPE_CHECKING:
    from ..testing.conformance import ConformanceReport, SuiteReport

__all__ = ["conformance"]


@verb
def conformance(
    where: Annotated[
        str,
        typer.Argument(
            metavar="[WHERE]", help="cpu, cuda:0, cpu:LEVEL, an engine, or package.module:Backend."
        ),
    ] = "cpu",
    suite: Annotated[
        list[str] | None,
        typer.Option(
            "--suite",
            "-s",
            metavar="A,B",
            help="nodes, ops, kernels, networks, models; repeatable; default: all but models.",
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option("--target", metavar="TARGET", help="Of a backend of one's own: package.module:Target."),
    ] = None,
    device: Annotated[
        str | None, typer.Option("--device", "-d", help="Of a vendor's engine; default: cpu.")
    ] = None,
    sample: Annotated[int, typer.Option("--sample", min=0, help="Cases of each group; 0: the usual.")] = 0,
    jobs: Annotated[
        int, typer.Option("--jobs", min=0, help="Compilers at once; 0: a quarter of the cores.")
    ] = 0,
    only: Annotated[
        str,
        typer.Option("--only", metavar="A,B", help="Networks of the suite models; default: every family."),
    ] = "",
    precision: Annotated[
        str, typer.Option("--precision", metavar="A,B", help="Of the suite models.")
    ] = "float32,float16",
    batch: Annotated[str, typer.Option("--batch", metavar="A,B", help="Of the suite models.")] = "2,1,open",
    also: Annotated[
        str,
        typer.Option(
            "--also", metavar="A,B", help="Further devices of the suite models, in the same processes."
        ),
    ] = "",
    seconds: Annotated[
        float, typer.Option("--seconds", min=0, help="Begin no network after that; 0: no limit.")
    ] = 0,
    each: Annotated[
        float, typer.Option("--each", min=1, help="Seconds that one case of models may take.")
    ] = 150,
    workers: Annotated[
        int, typer.Option("--workers", min=0, help="Processes of the suite models; 0: one for each core.")
    ] = 0,
    results: Annotated[
        str | None,
        typer.Option("--results", metavar="FILE", help="JSON lines that the suite models goes on from."),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option("--report", metavar="FILE", help="Write an HTML page of it (extra: report)."),
    ] = None,
    refused: Annotated[int, typer.Option("--refused", min=0, help="Reasons of refusals to show.")] = 8,
    as_json: options.AsJson = False,
) -> Answer:
    """Run foreign and own suites on a device, a backend or an engine: right, wrong, or refused with the reason."""
    if (here := str(Path.cwd())) not in sys.path:  # a backend that is being written lies where one stands
        sys.path.append(here)
    from ..testing.conformance import conformance as judge
    from ..testing.conformance.models import Options

    if report is not None:
        if report.is_dir() or not os.access(report.absolute().parent, os.W_OK):  # told now, not after hours
            raise InputError(
                "xpu conformance --report",
                "no file can be written there",
                got=str(report),
                do="Name a file in a folder that exists and that you may write.",
            )
        from ..profiler.drawing import require_report_extra

        require_report_extra()
    names = _words(*(suite or ()))
    networks = Options(
        devices=_words(also), precisions=_words(precision), batches=_words(batch), only=_words(only), seconds=seconds, each=each, workers=workers,
        results=results, seed=where,
    )  # fmt: skip
    with progress(f"judging {where}") as now:
        found = judge(
            where,
            target=target,
            device=device,
            suites=names,
            sample=sample,
            jobs=jobs,
            networks_of=networks,
            progress=now,
        )
    if report is not None:
        from ..testing.conformance.page import write_page

        write_page(report, found)
    return Answer(found.to_json(), lambda: _show(found, refused), ExitCode.OK if found.ok else ExitCode.NO)


def _words(*texts: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(s.strip() for text in texts for s in text.split(",") if s.strip()))


def _show(found: ConformanceReport, reasons: int) -> None:
    from ..testing.conformance.finding import FAILURES

    facts = found.facts
    say(
        f"{facts['engine']} {facts['version']} on {facts['device']}: {facts.get('target', '')} {facts['machine']}".strip()
    )
    say()
    right = ("cases", "right", "failed", "refused", "excused", "seconds")
    table("", ("suite", *right), [_row(s) for s in found.suites if not s.not_run], right=right)
    for s in found.suites:
        if s.not_run:
            say(f"{s.suite} did not run: {s.not_run}")
    for s in found.suites:
        for reason, count in s.reasons[:reasons]:
            say(f"{s.suite}: refused {count}: {reason}")
        for f in [f for f in s.findings if f.outcome == "not run"]:
            say(f"{s.suite}: {f.case} did not run: {f.why}")
    for s in found.suites:
        for f in [f for f in s.findings if f.outcome in FAILURES][:50]:
            say(
                f"{s.suite}: {f.outcome.upper()} {f.case}{' by ' + ', '.join(f.kernels) if f.kernels else ''}: {f.why[:300]}"
            )
    kinds = Counter(f.outcome for f in found.wrong)
    failed = ", ".join(f"{count} {outcome}" for outcome, count in kinds.items())
    say("nothing is wrong" if found.ok else failed or "nothing is right")


def _row(s: SuiteReport) -> tuple[str, ...]:
    from ..testing.conformance.finding import FAILURES

    failed = sum(f.outcome in FAILURES for f in s.findings)
    counts = (s.count("right"), failed, s.count("refused"), s.count("excused"))
    cases = len(s.findings) - s.count("not run")
    return s.suite, str(cases), *map(str, counts), f"{s.seconds:.0f}"
