"""``xpu bench``: measure engines in alternation and print medians with confidence intervals. Exit 1 if an output is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import options
from .command import CommandResult, command
from .console import join_sentences, print_line, print_note, print_table, progress
from .exit_codes import ExitCode

if TYPE_CHECKING:
    from ..workbench.bench.engines import BenchReport, RankedEngine

__all__ = ["bench"]


@command
def bench(
    model: options.Model,
    engines: options.EngineListFlags,
    session: options.SessionFlags,
    inputs: options.InputFlags,
    run_timeout: options.RunTimeout = None,
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.1, max=3600, help="Total time to measure.")
    ] = 10.0,
    control: Annotated[
        bool,
        typer.Option(
            "--control/--no-control",
            help="Measure a second session of each engine, which shows the error of the measurement.",
        ),
    ] = True,
    tolerance: options.Tolerance = None,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE.svg|.png", help="Draw the result (needs matplotlib)."),
    ] = None,
    as_json: options.AsJson = False,
) -> CommandResult:
    """Compare the speed of engines on one model, with equal threads and precision. Engines with wrong outputs are not ranked."""
    session_options = options.session_options(
        session, device=engines.device, run_timeout=run_timeout
    ).with_device()
    source = inputs.to_inputs()
    names, named = options.engine_list(engines.engines)
    from ..workbench.bench.engines import bench as measure

    with progress(f"benchmarking {model}") as update:
        report = measure(
            model,
            names,
            named=named,
            options=session_options,
            inputs=source,
            seconds=seconds,
            control=control,
            tolerance=tolerance,
            progress=update,
        )
    if plot is not None:
        from ..workbench.bench.plot import plot_bench

        plot_bench(report, plot)
        print_note(f"wrote {plot}")
    return CommandResult(report.to_json(), lambda: _show(report), ExitCode.OK if report.ok else ExitCode.NO)


def _show(report: BenchReport) -> None:
    ranked = report.ranked
    precisions = ", ".join(dict.fromkeys(str(e.facts["precision"]) for e in ranked)) or "nothing ranked"
    print_line(
        f"{report.model}: {precisions}, {report.threads} threads, {report.rounds} rounds, {report.machine}"
    )
    print_line(f"inputs: {report.inputs}; outputs checked against: {report.judged_by}")
    print_line()
    unit, scale = ("ms", 1e3) if ranked and ranked[0].summary.median >= 1000 else ("us", 1.0)
    right = (f"median {unit}", "95% interval", f"p95 {unit}", "ratio", "ratio's interval")
    if ranked:
        print_table(
            "", ("engine", "device", *right, "verdict"), [_row(e, scale) for e in ranked], right=right
        )
    for name, text in report.wrong.items():
        print_line(f"not ranked: {name}: {text}")
    for c in report.rejected:
        print_line(f"not {c.name} ({c.code.value}): {join_sentences(c.reason, c.do)}")
    for name, ratio in report.controls.items():
        low, high = ratio.interval.low, ratio.interval.high
        print_line(f"control, two sessions of {name}: {ratio.value:.3f} ({low:.3f} to {high:.3f})")
    print_line(f"differences below {report.floor:.1%} are not reported")
    print_line(report.sentence)


def _row(e: RankedEngine, scale: float) -> tuple[str, ...]:
    s = e.summary
    ratio = "1" if e.ratio is None else f"{e.ratio.value:.3f}"
    span = "" if e.ratio is None else f"{e.ratio.interval.low:.3f} to {e.ratio.interval.high:.3f}"
    interval = f"{s.interval.low / scale:.4g} to {s.interval.high / scale:.4g}"
    engine = f"{e.name} {e.facts['version']}".strip()
    device = str(e.facts["device"])
    return engine, device, f"{s.median / scale:.4g}", interval, f"{s.p95 / scale:.4g}", ratio, span, e.verdict
