"""``xpu tune``: measure the kernels of a model on this device, and write the file of times that ``compile`` reads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import options
from .command import CommandResult, command
from .console import print_line, print_note, print_table, progress

if TYPE_CHECKING:
    from ..workbench.tune.report import TuneResult

__all__ = ["tune"]


@command
def tune(
    model: options.Model,
    session: options.UntunedSessionFlags,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="TIMES.json", help="File of the measured times.")
    ],
    device: options.Device = None,
    bucket: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=SIZE,...", help="Sizes of all symbolic dimensions of one shape bucket. Repeatable."
        ),
    ] = None,
    budget: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="Stop after this time (60s, 5m, 1h) and write what is measured. The next call continues.",
        ),
    ] = "60s",
    rounds: Annotated[int, typer.Option(min=1, help="Alternating rounds; an interval needs six.")] = 15,
    engine: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ENGINE",
            help="Another engine, whose whole runs are measured in turn with the native engine's. Repeatable.",
        ),
    ] = None,
    regions: Annotated[
        bool,
        typer.Option(
            "--regions",
            help="Also search for placements of the model's nodes on the engines of --engine, for sessions with place: {'*': auto}.",
        ),
    ] = False,
    as_json: options.AsJson = False,
) -> CommandResult:
    """Measure every usable kernel of each call inside the model, in alternating rounds. A tuning that was killed continues."""
    from ..workbench.tune import tune as measure

    seconds = options.parse_seconds(budget, "--budget")
    buckets = [options.parse_sizes(b.split(","), "--bucket") for b in bucket or ()]
    chosen = options.session_options(session, device=device)
    with progress(f"tuning {model}") as show:
        result = measure(
            model, output, chosen, buckets,
            budget_s=seconds, rounds=rounds, engines=engine or (), regions=regions, progress=show,
        )  # fmt: skip
    print_note(f"wrote {output}")
    return CommandResult(result.to_json(), lambda: _show(result))


def _show(result: TuneResult) -> None:
    print_line(result.sentence)
    rows = [
        (
            ", ".join(c.nodes[:3]) or "(no node)",
            c.op,
            ", ".join(f"{k} {us:.1f}" for k, us in sorted(c.times_us.items(), key=lambda item: item[1])),
            f"{c.ratio:.2f} [{c.low:.2f}, {c.high:.2f}]",
        )
        for c in result.contested
    ]
    if rows:
        print_table("Kernels, in us", ("nodes", "op", "median", "default / fastest [95%]"), rows)
    for run in result.times.runs:
        sizes = ", ".join(f"{k}={v}" for k, v in run.shapes.items()) or "fixed shapes"
        print_line(
            f"{sizes}: a run takes {run.tuned_us:.1f} us with the fastest kernels, {run.default_us:.1f} us by default"
        )
    for row in result.times.engines:
        sizes = ", ".join(f"{k}={v}" for k, v in row.shapes.items()) or "fixed shapes"
        times = ", ".join(
            f"{e} {us:.1f} us" for e, us in sorted(row.times_us.items(), key=lambda item: item[1])
        )
        print_line(f"{sizes}: a run takes {times}")
    for place in result.times.placements:
        times = ", ".join(
            f"{n} {us:.1f} us" for n, us in sorted(place.times_us.items(), key=lambda item: item[1])
        )
        print_line(f"placements: a run takes {times}")
    print_line(result.times.calibration)
    print_line(f"use it: policy execution: {{engine_options: {{native: {{kernel_times: {result.path}}}}}}}")
