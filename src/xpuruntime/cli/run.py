"""``xpu run``: run a model once. Print its outputs and, if requested, a receipt; write outputs and a trace to files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import options
from .command import CommandResult, command
from .console import print_line, print_note, print_table, print_text, progress

if TYPE_CHECKING:
    from ..workbench.outputs import OutputSummary

__all__ = ["run"]


@command
def run(
    model: options.Model,
    engine: options.EngineFlags,
    session: options.SessionFlags,
    inputs: options.InputFlags,
    run_timeout: options.RunTimeout = None,
    lock: Annotated[
        Path | None,
        typer.Option(
            "--lock",
            metavar="FILE",
            help="Run under a lock (xpu lock): nothing is measured and nothing is chosen.",
            rich_help_panel="Engine and session",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE.npz", help="Write the outputs to a file.")
    ] = None,
    top_k: Annotated[
        int,
        typer.Option("--top-k", min=0, help="Show the K largest entries along the last axis of each output."),
    ] = 0,
    receipt: Annotated[
        bool, typer.Option("--receipt", help="Show what ran, with the time of each step.")
    ] = False,
    receipt_file: Annotated[
        Path | None,
        typer.Option(
            "--save-receipt",
            metavar="FILE.json",
            help="Write the receipt, with digests of inputs and outputs, for xpu diff and xpu check.",
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            metavar="FILE.pftrace|FILE.json",
            help="Write the run as a trace for ui.perfetto.dev: Perfetto's format (.pftrace) or Chrome's.",
        ),
    ] = None,
    html: options.Html = None,
    as_json: options.AsJson = False,
) -> CommandResult:
    """Run a model once and show statistics of its outputs."""
    session_options = replace(
        options.session_options(session, engine=engine, run_timeout=run_timeout), lock=lock
    )
    source = inputs.to_inputs()
    from ..profiler.trace import profile
    from ..workbench.inputs import save_outputs
    from ..workbench.outputs import summarize_output

    with progress(f"opening {model}") as update, session_options.open(model) as opened:
        arrays = source.samples(opened.model.inputs)[0]
        update(f"running {model}")
        with profile() as recorded:
            outputs = opened.run(arrays)
        run_receipt = opened.receipt() if receipt or receipt_file is not None or html is not None else None
        plan, specs = opened.plan, opened.model.inputs
    if trace is not None:
        recorded.save(trace)
        print_note(f"wrote {trace}")
    if receipt_file is not None and run_receipt is not None:
        from ..workbench.review.receipt_file import save_receipt

        save_receipt(receipt_file, run_receipt, arrays, outputs)
        print_note(f"wrote {receipt_file}")
    if html is not None and run_receipt is not None:
        from ..workbench.pages.page import write_page
        from ..workbench.pages.receipt_page import receipt_page

        write_page(html, receipt_page(run_receipt, recorded))
        print_note(f"wrote {html}")
    if output is not None:
        save_outputs(output, outputs)
        print_note(f"wrote {output}")
    summaries = [summarize_output(name, value, top_k) for name, value in outputs.items()]
    region = plan.regions[0]
    document: dict[str, Any] = {
        "model": plan.model["name"],
        "engine": " + ".join(plan.engines),
        "engine_version": " + ".join(plan.engines.values()),
        "engines": plan.engines,
        "device": region.device,
        "precision": region.precision,
        "inputs": {
            "source": source.describe(specs),
            "specs": {n: f"{a.dtype}{list(a.shape)}" for n, a in arrays.items()},
        },
        "outputs": [s.to_json() for s in summaries],
        "output_file": None if output is None else str(output),
        "warnings": list(plan.warnings),
        "receipt": run_receipt.to_json() if receipt and run_receipt is not None else None,
    }

    def show() -> None:
        _show(document, summaries)
        if receipt and run_receipt is not None:
            print_text(run_receipt.text())

    return CommandResult(document, show)


def _show(document: Mapping[str, Any], summaries: list[OutputSummary]) -> None:
    engine = " + ".join(f"{name} {version}".strip() for name, version in document["engines"].items())
    print_line(f"{document['model']} on {engine}, {document['device']}, {document['precision']}")
    print_line(f"inputs: {document['inputs']['source']}")
    print_line()
    numbers = ("min", "max", "mean", "not finite")
    rows = [
        (s.name, s.spec, _short(s.minimum), _short(s.maximum), _short(s.mean), s.not_finite)
        for s in summaries
    ]
    print_table("Outputs", ("name", "spec", *numbers), rows, right=numbers)
    for s in summaries:
        for k, row in enumerate(s.top):
            entries = ", ".join(f"{index} ({value:.6g})" for index, value in row)
            print_line(f"{s.name}[{k}] largest: {entries}")
        if s.texts:
            print_line(f"{s.name}: {', '.join(map(repr, s.texts))}")


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
