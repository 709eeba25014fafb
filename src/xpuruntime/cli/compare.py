"""``xpu compare``: do engines agree on a model, or a model with another one on the same engines? Exit 1: no."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from . import options
from .answer import Answer, verb
from .console import progress, say, sentences, table, warn
from .exit_codes import ExitCode

if TYPE_CHECKING:
    from ..numerics import Comparison
    from ..workbench.agreement import CompareReport

__all__ = ["compare"]


@verb
def compare(
    model: options.Model,
    engines: options.Engines = "all",
    reference: Annotated[
        str | None, typer.Option("--reference", metavar="OTHER", help="Another model, on the same engines.")
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            "--against", metavar="ENGINE|reference", help="Who is right; default: the first engine."
        ),
    ] = None,
    samples: Annotated[int, typer.Option("--samples", min=1, help="Seeded inputs to try.")] = 3,
    tolerance: Annotated[
        float | None,
        typer.Option("--tolerance", min=0, help="Largest max|d|/max|ref|; default: by precision."),
    ] = None,
    reference_seconds: Annotated[
        float,
        typer.Option("--reference-seconds", min=1, help="Time bound of --against reference, per sample."),
    ] = 60.0,
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
    as_json: options.AsJson = False,
) -> Answer:
    """Run engines on the same inputs and compare their outputs; exit 1 names the first output that differs."""
    if reference is not None and against is not None:
        raise typer.BadParameter(
            "--reference compares engine by engine, so --against has no meaning beside it"
        )
    if tolerance is not None and not tolerance < float("inf"):
        raise typer.BadParameter(f"must be a finite number; got {tolerance}", param_hint="--tolerance")
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
    from ..workbench.compare import REFERENCE, compare_engines
    from ..workbench.compare_models import compare_models

    with progress(f"comparing {model}") as now:
        if reference is not None:
            found = compare_models(
                model,
                reference,
                names,
                named=named,
                setup=setup,
                inputs=given,
                samples=samples,
                tolerance=tolerance,
                progress=now,
            )
        else:
            found = compare_engines(
                model,
                names,
                named=named,
                setup=setup,
                inputs=given,
                samples=samples,
                tolerance=tolerance,
                against=REFERENCE if against in ("reference", REFERENCE) else against,
                reference_seconds=reference_seconds,
                progress=now,
            )
    return Answer(found.to_json(), lambda: _show(found), ExitCode.OK if found.ok else ExitCode.NO)


def _show(found: CompareReport) -> None:
    for e in found.engines:
        threads = f", {e['threads']} threads" if e["threads"] else ""
        say(f"{e['engine']} {e['version']} on {e['device']}, {e['precision']}{threads}")
    for c in found.rejected:
        say(f"not {c.name} ({c.code.value}): {sentences(c.reason, c.do)}")
    say(f"inputs: {found.inputs}; samples: {found.samples}")
    say()
    right = ("max|d|", "max|d|/max|ref|", "cosine", "argmax equal", "tolerance")
    for pair in found.pairs:
        rows = [_row(c) for c in pair.outputs]
        table(f"{pair.actual} against {pair.reference}", ("output", *right, "verdict"), rows, right=right)
    for text in found.notes:
        warn(text)
    say(found.sentence)


def _row(c: Comparison) -> tuple[str, ...]:
    cosine = "" if c.cosine is None else f"{c.cosine:.9f}"
    argmax = "" if c.argmax_equal is None else f"{c.argmax_equal:.2%}"
    verdict = "agrees" if c.ok else f"DIFFERS: {c.reason}"
    return c.name, f"{c.max_abs:.3g}", f"{c.max_rel:.3g}", cosine, argmax, f"{c.tolerance:.3g}", verdict
