"""``xpu bench``: engines in alternation, medians with intervals, and no win where none can be shown. Exit 1: a wrong output."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import options
from .answer import Answer, verb
from .console import note, progress, say, sentences, table
from .exit_codes import ExitCode

if TYPE_CHECKING:
    from ..workbench.bench import BenchReport, Standing

__all__ = ["bench"]


@verb
def bench(
    model: options.Model,
    engines: options.Engines = "all",
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.1, max=3600, help="Time to measure, in all.")
    ] = 10.0,
    control: Annotated[
        bool,
        typer.Option("--control/--no-control", help="Measure the harness's own bias with twin sessions."),
    ] = True,
    tolerance: Annotated[
        float | None,
        typer.Option("--tolerance", min=0, help="Of the outputs' judgement; default: by precision."),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option("--device", "-d", help="Device of every engine; default: the policy's, else cpu."),
    ] = None,
    policy: options.Policy = None,
    precision: options.Precision = None,
    threads: options.Threads = None,
    cache_dir: options.CacheDir = None,
    compile_timeout: options.CompileTimeout = None,
    run_timeout: options.RunTimeout = None,
    input: options.Input = None,  # noqa: A002
    seed: options.Seed = None,
    shape: options.Shape = None,
    image_size: options.ImageSize = None,
    image_mean: options.ImageMean = "0",
    image_std: options.ImageStd = "1",
    image_layout: options.ImageLayout = None,
    image_range: options.ImageRange = "0,1",
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE.svg|.png", help="Draw it (matplotlib).")
    ] = None,
    as_json: options.AsJson = False,
) -> Answer:
    """Measure engines on one model with equal threads and precision, after their outputs were found right."""
    setup = options.setup(
        device=device,
        policy=policy,
        precision=precision,
        threads=threads,
        cache_dir=cache_dir,
        compile_timeout_s=compile_timeout,
        run_timeout_s=run_timeout,
    ).with_device()
    recipe = options.image_recipe(image_size, image_mean, image_std, image_layout, image_range)
    given = options.inputs(input, seed, shape, recipe)
    names, named = options.engine_list(engines)
    from ..workbench.bench import bench as measure

    with progress(f"benchmarking {model}") as now:
        found = measure(
            model,
            names,
            named=named,
            setup=setup,
            inputs=given,
            seconds=seconds,
            control=control,
            tolerance=tolerance,
            progress=now,
        )
    if plot is not None:
        from ..workbench.plot import plot_bench

        plot_bench(found, plot)
        note(f"wrote {plot}")
    return Answer(found.to_json(), lambda: _show(found), ExitCode.OK if found.ok else ExitCode.NO)


def _show(found: BenchReport) -> None:
    precisions = ", ".join(dict.fromkeys(str(s.facts["precision"]) for s in found.ranked)) or "nothing ranked"
    say(f"{found.model}: {precisions}, {found.threads} threads, {found.rounds} rounds, {found.machine}")
    say(f"inputs: {found.inputs}; outputs judged by: {found.judged_by}")
    say()
    unit, scale = ("ms", 1e3) if found.ranked and found.ranked[0].summary.median >= 1000 else ("us", 1.0)
    right = (f"median {unit}", "95% interval", f"p95 {unit}", "ratio", "its interval")
    rows = [_row(s, scale) for s in found.ranked]
    if rows:
        table("", ("engine", "device", *right, "verdict"), rows, right=right)
    for name, text in found.wrong.items():
        say(f"not ranked: {name}: {text}")
    for c in found.rejected:
        say(f"not {c.name} ({c.code.value}): {sentences(c.reason, c.do)}")
    for name, ratio in found.controls.items():
        low, high = ratio.interval.low, ratio.interval.high
        say(f"control, two sessions of {name}: {ratio.value:.3f} ({low:.3f} to {high:.3f})")
    say(f"differences below {found.floor:.1%} are not told")
    say(found.sentence)


def _row(s: Standing, scale: float) -> tuple[str, ...]:
    m = s.summary
    ratio = "1" if s.ratio is None else f"{s.ratio.value:.3f}"
    span = "" if s.ratio is None else f"{s.ratio.interval.low:.3f} to {s.ratio.interval.high:.3f}"
    interval = f"{m.interval.low / scale:.4g} to {m.interval.high / scale:.4g}"
    engine = f"{s.name} {s.facts['version']}".strip()
    device = str(s.facts["device"])
    return engine, device, f"{m.median / scale:.4g}", interval, f"{m.p95 / scale:.4g}", ratio, span, s.verdict
