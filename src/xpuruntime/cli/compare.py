"""``xpu compare``: compare the outputs of engines on one model, or of two models on each engine. Exit 1 if they differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from . import options
from .command import CommandResult, command
from .console import join_sentences, print_line, print_table, print_warning, progress
from .exit_codes import ExitCode

if TYPE_CHECKING:
    from ..decisions import Candidate
    from ..numerics import Comparison
    from ..workbench.compare.nodes import NodeComparison, NodesReport
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
    nodes: Annotated[
        bool,
        typer.Option(
            "--nodes", help="Compare every intermediate value that both sides show, not outputs alone."
        ),
    ] = False,
    budget: Annotated[
        int,
        typer.Option(
            "--budget",
            min=1,
            metavar="MIB",
            help="With --nodes: memory for intermediate values, in MiB.",
        ),
    ] = 256,
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
    if nodes:
        from ..workbench.compare.nodes import compare_engine_nodes

        with progress(f"comparing {model}") as update:
            reports, rejected = compare_engine_nodes(
                model,
                names,
                named=named,
                options=session_options,
                reference_model=reference,
                against=against,
                inputs=source,
                budget=budget << 20,
                tolerance=tolerance,
                progress=update,
            )
        agree = all(r.ok for r in reports)
        document = {
            "ok": agree,
            "reports": [r.to_json() for r in reports],
            "rejected": [c.to_json() for c in rejected],
        }
        return CommandResult(
            document, lambda: _show_nodes(reports, rejected), ExitCode.OK if agree else ExitCode.NO
        )
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


def _show_nodes(reports: Sequence[NodesReport], rejected: Sequence[Candidate]) -> None:
    for c in rejected:
        print_line(f"not {c.name} ({c.code.value}): {join_sentences(c.reason, c.do)}")
    right = ("max|d|", "max|d|/max|ref|", "cosine", "NaN", "infinite", "argmax", "tolerance")
    for report in reports:
        rows = [_node_row(n) for n in report.nodes]
        title = f"{report.actual} against {report.reference}"
        print_table(title, ("node", "op", *right, "verdict"), rows, right=right)
        if report.unseen:
            names = ", ".join(report.unseen[:8]) + (", ..." if len(report.unseen) > 8 else "")
            print_line(
                f"{len(report.unseen)} nodes have no value that both sides show (fused or folded): {names}"
            )
        print_line(
            f"{report.runs} runs, at most {report.held_bytes / 2**20:.1f} MiB of values at a time "
            f"(budget {report.budget >> 20} MiB)"
        )
        print_line(report.sentence)


def _node_row(n: NodeComparison) -> tuple[str, ...]:
    s = n.statistics
    cosine = "" if s.cosine is None else f"{s.cosine:.9f}"
    same = "same" if s.argmax[0] == s.argmax[1] else f"{s.argmax[0]}, {s.argmax[1]}"
    verdict = f"DIFFERS: {n.reason}" if n.reason else "agrees"
    ops = "+".join(n.ops)
    counts = [str(a) if a == b else f"{a}, {b}" for a, b in (s.nans, s.infs)]
    name = (n.nodes or (n.value,))[-1]
    return (
        name,
        ops,
        f"{s.max_abs:.3g}",
        f"{s.max_rel:.3g}",
        cosine,
        *counts,
        same,
        f"{n.tolerance:.3g}",
        verdict,
    )


def _row(c: Comparison) -> tuple[str, ...]:
    cosine = "" if c.cosine is None else f"{c.cosine:.9f}"
    argmax = "" if c.argmax_equal is None else f"{c.argmax_equal:.2%}"
    verdict = "agrees" if c.ok else f"DIFFERS: {c.reason}"
    return c.name, f"{c.max_abs:.3g}", f"{c.max_rel:.3g}", cosine, argmax, f"{c.tolerance:.3g}", verdict
