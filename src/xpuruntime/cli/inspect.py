"""``xpu inspect``: describe a model and which engines run it, a saved plan, receipt or lock, or a compiled program."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import options
from .command import CommandResult, command
from .console import join_sentences, print_line, print_note, print_table, print_text, progress

if TYPE_CHECKING:
    from ..workbench.inspection import Inspection, Parameters

__all__ = ["inspect"]

_ALL_PASSES = 3
"""The highest level of optimization."""


@command
def inspect(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL|PLAN.json|RECEIPT.json|FILE.lock|PROGRAM.npubin",
            help="A model, a plan saved by explain, a receipt saved by run, a lock, or a compiled program.",
        ),
    ],
    device: Annotated[
        str, typer.Option("--device", "-d", help="Show which engines support a model on this device.")
    ] = "cpu",
    nodes: Annotated[
        bool,
        typer.Option(
            "--nodes", help="List every node; of a program every buffer, with --passes every change."
        ),
    ] = False,
    source: Annotated[
        str,
        typer.Option(metavar="SYMBOL|KERNEL|NODE", help="Print the generated code of a program's kernel."),
    ] = "",
    passes: Annotated[
        bool, typer.Option("--passes", help="Show what each compiler pass changes in a model.")
    ] = False,
    only: Annotated[
        str,
        typer.Option(
            metavar="LEVEL|NAME,...", help="Passes to run with --passes, written as in xpu compile --passes."
        ),
    ] = "",
    shape: options.Shape = None,
    export: Annotated[
        Path | None,
        typer.Option(
            metavar="OUT.onnx|OUT.json",
            help="Write a program, plan, receipt or lock for viewers: an ONNX graph (Netron; of a program, one node per kernel call), or"
            " a graph with node data (Model Explorer).",
        ),
    ] = None,
    entry: Annotated[
        str, typer.Option(help="Entry point of a program. Default: all; of --export the first.")
    ] = "",
    html: options.Html = None,
    as_json: options.AsJson = False,
) -> CommandResult:
    """Show a model's inputs, outputs, ops and parameters, and which engines run it. Of a compiled program, show kernels, memory,
    binaries and decisions.
    """
    from ..inference.models.programs import holds_program

    is_program = holds_program(model)
    is_json = not is_program and Path(model).suffix.lower() in (".json", ".lock")
    if export is not None and export.suffix not in (".onnx", ".json"):
        raise typer.BadParameter(f"must end in .onnx or .json; got {export}", param_hint="--export")
    if html is not None:
        _write_page(model, html, is_model=not (is_json or is_program))
    if export is not None and (is_json or (is_program and export.suffix == ".json")):
        _write_for_viewers(model, export)
        export = None  # else inspect_program writes the ONNX graph, which depends on --entry
    if is_program:
        if passes:
            raise typer.BadParameter("--passes needs a model; this is a compiled program")
        from . import inspect_program

        return inspect_program.describe(model, buffers=nodes, source=source, export=export, entry=entry)
    if source or export or entry:
        raise typer.BadParameter(
            "--source and --entry need a compiled program (.npubin); --export needs a program, plan, receipt or lock"
        )
    if passes:
        return _trace_passes(model, options.parse_sizes(shape), only, diffs=nodes)
    if shape or only:
        raise typer.BadParameter("--shape and --only need --passes")
    if is_json:
        return _plan_receipt_or_lock(Path(model), nodes)
    from ..workbench.inspection import inspect_model

    with progress(f"reading {model}"):
        inspection = inspect_model(model, device)
    document = inspection.to_json()
    if nodes:
        document["node_list"] = [
            {"name": n.name, "op": n.op, "domain": n.domain} for n in inspection.model.nodes
        ]
    return CommandResult(document, lambda: _show(inspection, nodes))


def _trace_passes(model: str, shapes: dict[str, int], passes: str, *, diffs: bool) -> CommandResult:
    """Run the passes of ``--only`` (all without it) and return what each changed, with ``diffs`` every change."""
    from dataclasses import asdict

    from ..passes.trace import trace_table
    from ..workbench.programs.compile_model import trace_model

    with progress(f"running the passes on {model}"):
        traces = trace_model(model, shapes=shapes, passes=passes or _ALL_PASSES)
    document = {"model": model, "passes": [asdict(t) for t in traces]}
    return CommandResult(document, lambda: print_text(trace_table(traces, diffs=diffs).rstrip()))


def _write_page(path: str, html: Path, *, is_model: bool) -> None:
    """Write the page of a plan, receipt, lock or program. Raise BadParameter for a model."""
    from ..workbench.pages.page import write_page
    from ..workbench.pages.receipt_page import snapshot_page
    from ..workbench.review.files import read_snapshot

    if is_model:
        message = "needs a plan, a receipt, a lock or a program; for a model use xpu explain --html"
        raise typer.BadParameter(message, param_hint="--html")
    write_page(html, snapshot_page(read_snapshot(path)))
    print_note(f"wrote {html}")


def _write_for_viewers(path: str, export: Path) -> None:
    """Write a plan, receipt, lock or program for Netron (``.onnx``) or Model Explorer (``.json``)."""
    from ..workbench.pages.viewers import write_for_viewers
    from ..workbench.review.files import read_snapshot

    print_note("wrote " + ", ".join(map(str, write_for_viewers(export, read_snapshot(path)))))


def _plan_receipt_or_lock(path: Path, nodes: bool) -> CommandResult:
    from ..profiler.receipt import Receipt
    from ..program.lock import Lock
    from ..program.plan import Plan
    from ..workbench.review.files import read_document

    data = read_document(path)
    if data["format"] == "xpuruntime-receipt":
        receipt = Receipt.from_json(data)
        return CommandResult(receipt.to_json(), lambda: print_text(receipt.text()))
    if data["format"] == "xpuruntime-lock":
        from .lock import show_lock

        lock = Lock.from_json(data)
        return CommandResult(lock.to_json(), lambda: show_lock(lock))
    plan = Plan.from_json(data)
    return CommandResult(plan.to_json(), lambda: print_text(plan.explain(nodes=nodes)))


def _show(inspection: Inspection, nodes: bool) -> None:
    m = inspection.model
    opsets = ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in m.opsets.items())
    print_line(
        f"{m.name}: {m.format}{f' ({opsets})' if opsets else ''}, {m.precision.value}, {len(m.nodes)} nodes"
    )
    print_line(f"sha256 {m.digest}")
    if inspection.parameters is not None:
        print_line(_parameters_text(inspection.parameters))
    print_line()
    rows = [("input", s.name, str(s)) for s in m.inputs] + [("output", s.name, str(s)) for s in m.outputs]
    print_table("Inputs and outputs", ("", "name", "spec"), rows)
    families = [
        (family, sum(ops.values()), ", ".join(f"{count} {op}" for op, count in ops.items()))
        for family, ops in inspection.families.items()
    ]
    print_table("Ops by family", ("family", "nodes", "ops"), families, right=("nodes",))
    engines = [
        (
            e.engine,
            e.device,
            "yes" if e.support else "no",
            join_sentences(e.support.reason, e.support.do),
        )
        for e in inspection.engines
    ]
    print_table("Engines", ("engine", "device", "supported", "reason"), engines)
    if nodes:
        print_table("Nodes", ("op", "name"), [(n.op, n.name) for n in m.nodes])


def _parameters_text(p: Parameters) -> str:
    by_dtype = ", ".join(f"{count:,} {dtype}" for dtype, count in p.by_dtype.items())
    return (
        f"{p.elements:,} parameters in {p.tensors} tensors, {p.bytes / 2**20:.1f} MiB ({by_dtype or 'none'})"
    )
