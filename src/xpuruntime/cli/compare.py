"""``xpu compare``: compare the outputs of engines on one model, or of two models on each engine. Exit 1 if they differ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from . import options
from .command import CommandResult, command
from .console import join_sentences, print_line, print_table, print_warning, progress
from .exit_codes import ExitCode

if TYPE_CHECKING:
    from ..numerics import Comparison
    from ..workbench.compare.report import CompareReport

__all__ = ["compare"]


@command
def compare(
    model: options.Model,
    engines: options.EngineListFlags,
    session: options.SessionFlags,
    inputs: options.InputFlags,
    run_timeout: options.RunTimeout = None,
    reference: Annotated[
        str | None,
        typer.Option(
            "--reference",
            metavar="OTHER",
            help="Compare with this model on each engine, not engine with engine.",
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            metavar="ENGINE|reference",
            help="Engine to compare with, or the ONNX reference evaluator. Default: the first engine.",
        ),
    ] = None,
    samples: Annotated[int, typer.Option("--samples", min=1, help="Number of generated inputs.")] = 3,
    tolerance: options.Tolerance = None,
    reference_seconds: Annotated[
        float,
        typer.Option(
            "--reference-seconds", min=1, help="Time limit of the reference evaluator for each sample."
        ),
    ] = 60.0,
    as_json: options.AsJson = False,
) -> CommandResult:
    """Run engines on the same inputs and compare their outputs. The first output that differs is named."""
    if reference is not None and against is not None:
        raise typer.BadParameter("--reference and --against exclude each other")
    if tolerance is not None and not tolerance < float("inf"):
        raise typer.BadParameter(f"must be a finite number; got {tolerance}", param_hint="--tolerance")
    session_options = options.session_options(
        session, device=engines.device, run_timeout=run_timeout
    ).with_device()
    source = inputs.to_inputs()
    names, named = options.engine_list(engines.engines)
    from ..workbench.compare.engines import REFERENCE, compare_engines
    from ..workbench.compare.models import compare_models

    with progress(f"comparing {model}") as update:
        if reference is not None:
            report = compare_models(
                model,
                reference,
                names,
                named=named,
                options=session_options,
                inputs=source,
                samples=samples,
                tolerance=tolerance,
                progress=update,
            )
        else:
            report = compare_engines(
                model,
                names,
                named=named,
                options=session_options,
                inputs=source,
                samples=samples,
                tolerance=tolerance,
                against=REFERENCE if against in ("reference", REFERENCE) else against,
                reference_seconds=reference_seconds,
                progress=update,
            )
    return CommandResult(report.to_json(), lambda: _show(report), ExitCode.OK if report.ok else ExitCode.NO)


def _show(report: CompareReport) -> None:
    for e in report.engines:
        threads = f", {e['threads']} threads" if e["threads"] else ""
        print_line(f"{e['engine']} {e['version']} on {e['device']}, {e['precision']}{threads}")
    for c in report.rejected:
        print_line(f"not {c.name} ({c.code.value}): {join_sentences(c.reason, c.do)}")
    print_line(f"inputs: {report.inputs}; samples: {report.samples}")
    print_line()
    right = ("max|d|", "max|d|/max|ref|", "cosine", "argmax equal", "tolerance")
    for pair in report.pairs:
        rows = [_row(c) for c in pair.outputs]
        print_table(
            f"{pair.actual} against {pair.reference}", ("output", *right, "verdict"), rows, right=right
        )
    for text in report.notes:
        print_warning(text)
    print_line(report.sentence)


def _row(c: Comparison) -> tuple[str, ...]:
    cosine = "" if c.cosine is None else f"{c.cosine:.9f}"
    argmax = "" if c.argmax_equal is None else f"{c.argmax_equal:.2%}"
    verdict = "agrees" if c.ok else f"DIFFERS: {c.reason}"
    return c.name, f"{c.max_abs:.3g}", f"{c.max_rel:.3g}", cosine, argmax, f"{c.tolerance:.3g}", verdict
