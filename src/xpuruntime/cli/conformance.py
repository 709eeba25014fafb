"""``xpu conformance``: what works on a device, a backend of one's own, or an engine. Exit 1: something is wrong, or nothing is right."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

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
            "--suite", "-s", metavar="A,B", help="nodes, ops, kernels, networks; repeatable; default: all."
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
    refused: Annotated[int, typer.Option("--refused", min=0, help="Reasons of refusals to show.")] = 8,
    as_json: options.AsJson = False,
) -> Answer:
    """Run foreign and own suites on a device, a backend or an engine: right, wrong, or refused with the reason."""
    if (here := str(Path.cwd())) not in sys.path:  # a backend that is being written lies where one stands
        sys.path.append(here)
    from ..testing.conformance import conformance as judge

    names = tuple(dict.fromkeys(s.strip() for text in suite or () for s in text.split(",") if s.strip()))
    with progress(f"judging {where}") as now:
        found = judge(
            where, target=target, device=device, suites=names, sample=sample, jobs=jobs, progress=now
        )
    return Answer(found.to_json(), lambda: _show(found, refused), ExitCode.OK if found.ok else ExitCode.NO)


def _show(found: ConformanceReport, reasons: int) -> None:
    facts = found.facts
    say(
        f"{facts['engine']} {facts['version']} on {facts['device']}: {facts.get('target', '')} {facts['machine']}".strip()
    )
    say()
    right = ("cases", "right", "wrong", "refused", "excused", "seconds")
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
        for f in [f for f in s.findings if f.outcome == "wrong"][:50]:
            say(
                f"{s.suite}: WRONG {f.case}{' by ' + ', '.join(f.kernels) if f.kernels else ''}: {f.why[:300]}"
            )
    wrong = len(found.wrong)
    say("nothing is wrong" if found.ok else f"{wrong} wrong" if wrong else "nothing is right")


def _row(s: SuiteReport) -> tuple[str, ...]:
    counts = (s.count(o) for o in ("right", "wrong", "refused", "excused"))
    cases = len(s.findings) - s.count("not run")
    return s.suite, str(cases), *map(str, counts), f"{s.seconds:.0f}"
