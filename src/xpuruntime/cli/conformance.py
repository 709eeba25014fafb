"""``xpu conformance``: run conformance suites on a device, a backend or an engine. Exit 1 if a case is wrong or none is right."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import InputError
from . import options
from .command import CommandResult, command
from .console import print_line, print_table, progress
from .exit_codes import ExitCode

if TYPE_CHECKING:
    from ..testing.conformance import ConformanceReport, SuiteReport

__all__ = ["conformance"]

_MODELS = "Suite models"
_MAX_FAILURES = 50
_MAX_CHARACTERS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSuiteFlags:
    """Options of the suite ``models`` alone."""

    only: Annotated[
        str,
        typer.Option(
            "--only",
            metavar="A,B",
            help="Networks to run. Default: one of every family.",
            rich_help_panel=_MODELS,
        ),
    ] = ""
    precision: Annotated[
        str,
        typer.Option("--precision", metavar="A,B", help="Precisions to run.", rich_help_panel=_MODELS),
    ] = "float32,float16"
    batch: Annotated[
        str,
        typer.Option(
            "--batch",
            metavar="A,B",
            help="Batch sizes to run; open is a symbolic batch.",
            rich_help_panel=_MODELS,
        ),
    ] = "2,1,open"
    also: Annotated[
        str,
        typer.Option(
            "--also",
            metavar="A,B",
            help="Further devices to run in the same processes.",
            rich_help_panel=_MODELS,
        ),
    ] = ""
    seconds: Annotated[
        float,
        typer.Option(
            "--seconds",
            min=0,
            help="Start no network after this time; 0: no limit.",
            rich_help_panel=_MODELS,
        ),
    ] = 0
    each: Annotated[
        float,
        typer.Option("--each", min=1, help="Time limit of one case, in seconds.", rich_help_panel=_MODELS),
    ] = 150
    workers: Annotated[
        int,
        typer.Option(
            "--workers", min=0, help="Number of processes; 0: one per core.", rich_help_panel=_MODELS
        ),
    ] = 0
    results: Annotated[
        str | None,
        typer.Option(
            "--results",
            metavar="FILE",
            help="JSON lines file of finished cases. A later run continues from it.",
            rich_help_panel=_MODELS,
        ),
    ] = None


@command
def conformance(
    networks: ModelSuiteFlags,
    where: Annotated[
        str,
        typer.Argument(
            metavar="[WHERE]",
            help="A device (cpu, cuda:0), a CPU level (cpu:LEVEL), an engine, or package.module:Backend.",
        ),
    ] = "cpu",
    suite: Annotated[
        list[str] | None,
        typer.Option(
            "--suite",
            "-s",
            metavar="A,B",
            help="Suites: nodes, ops, kernels, networks, models. Repeatable. Default: all but models.",
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option("--target", metavar="TARGET", help="Target of your own backend: package.module:Target."),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option("--device", "-d", help="Device of a vendor's engine. Default: cpu."),
    ] = None,
    sample: Annotated[
        int, typer.Option("--sample", min=0, help="Cases of each group; 0: the suite's own number.")
    ] = 0,
    jobs: Annotated[
        int, typer.Option("--jobs", min=0, help="Parallel compilers; 0: a quarter of the cores.")
    ] = 0,
    report: Annotated[
        Path | None,
        typer.Option("--report", metavar="FILE", help="Write an HTML report (extra: report)."),
    ] = None,
    refused: Annotated[int, typer.Option("--refused", min=0, help="Number of refusal reasons to show.")] = 8,
    as_json: options.AsJson = False,
) -> CommandResult:
    """Run conformance suites on a device, a backend or an engine. Each case is right, wrong, or refused with a reason."""
    if (
        folder := str(Path.cwd())
    ) not in sys.path:  # A backend in development is imported from the current folder.
        sys.path.append(folder)
    from ..testing.conformance import conformance as run_suites
    from ..testing.conformance.models import Options

    if report is not None:
        _check_report(report)
    suites = None if suite is None else _named(suite, "--suite")
    if "models" not in (suites or ()):
        for field in dataclasses.fields(networks):
            if getattr(networks, field.name) != field.default:
                hint = f"--{field.name}"
                raise typer.BadParameter("is for the suite models; add --suite models", param_hint=hint)
    model_options = Options(
        devices=_named([networks.also], "--also") if networks.also else (),
        precisions=_named([networks.precision], "--precision"),
        batches=_named([networks.batch], "--batch"),
        only=_named([networks.only], "--only") if networks.only else (),
        seconds=networks.seconds,
        each=networks.each,
        workers=networks.workers,
        results=networks.results,
        seed=where,
    )
    with progress(f"testing {where}") as update:
        result = run_suites(
            where,
            target=target,
            device=device,
            suites=suites or (),
            sample=sample,
            jobs=jobs,
            model_options=model_options,
            progress=update,
        )
    if report is not None:
        from ..testing.conformance.page import write_page

        write_page(report, result)
    code = ExitCode.OK if result.ok else ExitCode.NO
    return CommandResult(result.to_json(), lambda: _show(result, refused), code)


def _check_report(path: Path) -> None:
    """Raise an error if no report can be written there. The suites may run for hours, so this comes first."""
    if path.is_dir() or not os.access(path.absolute().parent, os.W_OK):
        raise InputError(
            "xpu conformance --report",
            "no file can be written there",
            got=str(path),
            do="Name a file in an existing folder that you may write to.",
        )
    from ..profiler.drawing import require_report_extra

    require_report_extra()


def _named(texts: Sequence[str], option: str) -> tuple[str, ...]:
    """Return the distinct words of options such as ``A,B``. Raise typer.BadParameter if there is none."""
    words = tuple(dict.fromkeys(s.strip() for text in texts for s in text.split(",") if s.strip()))
    if not words:
        raise typer.BadParameter(f"names nothing; got {','.join(texts)!r}", param_hint=option)
    return words


def _show(result: ConformanceReport, reasons: int) -> None:
    from ..testing.conformance.finding import FAILURES

    facts = result.facts
    title = f"{facts['engine']} {facts['version']} on {facts['device']}"
    print_line(f"{title}: {facts.get('target', '')} {facts['machine']}".strip())
    print_line()
    right = ("cases", "right", "failed", "refused", "excused", "seconds")
    print_table("", ("suite", *right), [_row(s) for s in result.suites if not s.not_run], right=right)
    for s in result.suites:
        if s.not_run:
            print_line(f"{s.suite} did not run: {s.not_run}")
    for s in result.suites:
        for reason, count in s.reasons[:reasons]:
            print_line(f"{s.suite}: refused {count}: {reason}")
        for f in [f for f in s.findings if f.outcome == "not run"]:
            print_line(f"{s.suite}: {f.case} did not run: {f.why}")
    for s in result.suites:
        for f in [f for f in s.findings if f.outcome in FAILURES][:_MAX_FAILURES]:
            kernels = f" by {', '.join(f.kernels)}" if f.kernels else ""
            print_line(f"{s.suite}: {f.outcome.upper()} {f.case}{kernels}: {f.why[:_MAX_CHARACTERS]}")
    kinds = Counter(f.outcome for f in result.wrong)
    failed = ", ".join(f"{count} {outcome}" for outcome, count in kinds.items())
    print_line("nothing is wrong" if result.ok else failed or "nothing is right")


def _row(s: SuiteReport) -> tuple[str, ...]:
    from ..testing.conformance.finding import FAILURES

    failed = sum(f.outcome in FAILURES for f in s.findings)
    counts = (s.count("right"), failed, s.count("refused"), s.count("excused"))
    cases = len(s.findings) - s.count("not run")
    return s.suite, str(cases), *map(str, counts), f"{s.seconds:.0f}"
