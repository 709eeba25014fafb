"""``xpu run``: run a model once and show what came out; on request the receipt of what ran, and the outputs as a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import options
from .answer import Answer, verb
from .console import note, page, progress, say, table

if TYPE_CHECKING:
    from ..workbench.outputs import OutputSummary

__all__ = ["run"]


@verb
def run(
    model: options.Model,
    engine: options.Engine = None,
    device: options.Device = None,
    policy: options.Policy = None,
    fp16: options.Fp16 = False,
    precision: options.Precision = None,
    strict: options.Strict = None,
    threads: options.Threads = None,
    cache_dir: options.CacheDir = None,
    compile_timeout: options.CompileTimeout = None,
    run_timeout: options.RunTimeout = None,
    allow_fallback: options.AllowFallback = None,
    input: options.Input = None,  # noqa: A002  (the option's name is the parameter's)
    seed: options.Seed = None,
    shape: options.Shape = None,
    image_size: options.ImageSize = None,
    image_mean: options.ImageMean = "0",
    image_std: options.ImageStd = "1",
    image_layout: options.ImageLayout = None,
    image_range: options.ImageRange = "0,1",
    output: options.Output = None,
    top_k: Annotated[
        int, typer.Option("--top-k", min=0, help="Largest K entries of each output's last axis.")
    ] = 0,
    receipt: Annotated[bool, typer.Option("--receipt", help="Show what ran, with times per step.")] = False,
    trace: Annotated[
        Path | None, typer.Option("--trace", help="Write the run as a Chrome trace: FILE.json.")
    ] = None,
    as_json: options.AsJson = False,
) -> Answer:
    """Run a model once: outputs with small statistics, top-k, receipt, a file of outputs."""
    setup = options.setup(
        engine=engine,
        device=device,
        policy=policy,
        fp16=fp16,
        precision=precision,
        strict=strict,
        threads=threads,
        cache_dir=cache_dir,
        allow_fallback=allow_fallback,
        compile_timeout_s=compile_timeout,
        run_timeout_s=run_timeout,
    )
    recipe = options.image_recipe(image_size, image_mean, image_std, image_layout, image_range)
    given = options.inputs(input, seed, shape, recipe)
    from ..profiler.trace import profile
    from ..workbench.inputs import save_outputs
    from ..workbench.outputs import summarise_output

    with progress(f"opening {model}") as now, setup.open(model) as session:
        feeds = given.samples(session.model.inputs)[0]
        now(f"running {model}")
        with profile() as recorded:
            outputs = session.run(feeds)
        written = session.receipt() if receipt else None
        plan, specs = session.plan, session.model.inputs
    if trace is not None:
        recorded.save(trace)
        note(f"wrote {trace}")
    if output is not None:
        save_outputs(output, outputs)
        note(f"wrote {output}")
    found = [summarise_output(name, value, top_k) for name, value in outputs.items()]
    region = plan.regions[0]
    source = given.describe(specs)
    document: dict[str, Any] = {
        "model": plan.model["name"],
        "engine": region.engine,
        "engine_version": region.engine_version,
        "device": region.device,
        "precision": region.precision,
        "inputs": {"source": source, "specs": {n: f"{a.dtype}{list(a.shape)}" for n, a in feeds.items()}},
        "outputs": [o.to_json() for o in found],
        "output_file": None if output is None else str(output),
        "warnings": list(plan.warnings),
        "receipt": None if written is None else written.to_json(),
    }

    def show() -> None:
        _show(document, found)
        if written is not None:
            page(written.text())

    return Answer(document, show)


def _show(document: Mapping[str, Any], found: list[OutputSummary]) -> None:
    engine = f"{document['engine']} {document['engine_version']}".strip()
    say(f"{document['model']} on {engine}, {document['device']}, {document['precision']}")
    say(f"inputs: {document['inputs']['source']}")
    say()
    numbers = ("min", "max", "mean", "not finite")
    rows = [(o.name, o.spec, _short(o.least), _short(o.largest), _short(o.mean), o.not_finite) for o in found]
    table("Outputs", ("name", "spec", *numbers), rows, right=numbers)
    for o in found:
        for k, row in enumerate(o.top):
            entries = ", ".join(f"{index} ({value:.6g})" for index, value in row)
            say(f"{o.name}[{k}] largest: {entries}")
        if o.texts:
            say(f"{o.name}: {', '.join(map(repr, o.texts))}")


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
