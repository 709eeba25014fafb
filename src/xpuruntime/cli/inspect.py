"""``xpu inspect``: what a model is and who takes it, what a saved plan says, or what a compiled program holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import options
from .answer import Answer, verb
from .console import page, progress, say, sentences, table

if TYPE_CHECKING:
    from ..workbench.inspection import Inspection, Parameters

__all__ = ["inspect"]


@verb
def inspect(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL|PLAN.json|PROGRAM.npubin",
            help="A model, a plan that explain saved, or a compiled program.",
        ),
    ],
    device: Annotated[
        str, typer.Option("--device", "-d", help="Device that the engines are asked about.")
    ] = "cpu",
    nodes: Annotated[
        bool, typer.Option("--nodes", help="List every node; of a program every buffer.")
    ] = False,
    source: Annotated[
        str,
        typer.Option(metavar="SYMBOL|KERNEL|NODE", help="Print the generated code of a program's kernel."),
    ] = "",
    passes: Annotated[
        bool,
        typer.Option(
            "--passes", help="What each pass of the compiler makes of a model; with --nodes every change."
        ),
    ] = False,
    only: Annotated[
        str,
        typer.Option(metavar="LEVEL|NAME,...", help="With --passes: which, as compile's --passes has it."),
    ] = "",
    shape: options.Shape = None,
    export: Annotated[
        Path | None,
        typer.Option(
            metavar="OUT.onnx", help="Write a program as an ONNX graph for viewers: a node per kernel call."
        ),
    ] = None,
    entry: Annotated[str, typer.Option(help="Entry point of a program; the first by default.")] = "",
    as_json: options.AsJson = False,
) -> Answer:
    """Show inputs, outputs, ops, parameters, and which engine takes the model here and why another does not; of a compiled program
    its kernels, memory, binaries and decisions.
    """
    from ..inference.models.programs import holds_program

    if holds_program(model):
        if passes:
            raise typer.BadParameter("--passes is for models; a program was compiled already")
        from . import inspect_program

        return inspect_program.answer(model, buffers=nodes, source=source, export=export, entry=entry)
    if source or export or entry:
        raise typer.BadParameter("--source, --export and --entry are for compiled programs (.npubin)")
    if passes:
        return _passes(model, options.sizes(shape), nodes, only or 3)
    if shape or only:
        raise typer.BadParameter("--shape and --only go with --passes")
    if Path(model).suffix.lower() == ".json":
        return _plan(Path(model), nodes)
    from ..workbench.inspection import inspect_model

    with progress(f"reading {model}"):
        found = inspect_model(model, device)
    document = found.to_json()
    if nodes:
        document["node_list"] = [{"name": n.name, "op": n.op, "domain": n.domain} for n in found.model.nodes]
    return Answer(document, lambda: _show(found, nodes))


def _passes(model: str, shapes: dict[str, int], diffs: bool, which: str | int) -> Answer:
    from dataclasses import asdict

    from ..passes.trace import trace_table
    from ..workbench.compile_model import trace_model

    with progress(f"running the passes on {model}"):
        traces = trace_model(model, shapes=shapes, passes=which)
    document = {"model": model, "passes": [asdict(t) for t in traces]}
    return Answer(document, lambda: page(trace_table(traces, diffs=diffs).rstrip()))


_MOST_PLAN = 1 << 30


def _plan(path: Path, nodes: bool) -> Answer:
    from ..errors import FormatError
    from ..files import read_regular
    from ..program.plan import Plan

    try:
        text = read_regular(path, _MOST_PLAN).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FormatError(f"plan {path}", "cannot be read", got=error, do="Check the path.") from error
    plan = Plan.from_json(_only_plan(text))
    return Answer(plan.to_json(), lambda: page(plan.explain(nodes=nodes)))


def _only_plan(text: str) -> Any:
    """``xpu explain --json`` writes a document that holds the plan; a bare plan is read as it is."""
    import json

    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return text  # Plan.from_json says what is wrong with it
    return data["plan"] if isinstance(data, dict) and isinstance(data.get("plan"), dict) else data


def _show(found: Inspection, nodes: bool) -> None:
    m = found.model
    opsets = ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in m.opsets.items())
    say(f"{m.name}: {m.format}{f' ({opsets})' if opsets else ''}, {m.precision.value}, {len(m.nodes)} nodes")
    say(f"sha256 {m.digest}")
    if found.parameters is not None:
        say(_parameters(found.parameters))
    say()
    rows = [("input", s.name, str(s)) for s in m.inputs] + [("output", s.name, str(s)) for s in m.outputs]
    table("Inputs and outputs", ("", "name", "spec"), rows)
    families = [
        (family, sum(ops.values()), ", ".join(f"{count} {op}" for op, count in ops.items()))
        for family, ops in found.families.items()
    ]
    table("Ops by family", ("family", "nodes", "ops"), families, right=("nodes",))
    answers = [
        (
            e.engine,
            e.device,
            "yes" if e.support else "no",
            sentences(e.support.reason, e.support.do),
        )
        for e in found.engines
    ]
    table("Engines", ("engine", "device", "takes it", "why not"), answers)
    if nodes:
        table("Nodes", ("op", "name"), [(n.op, n.name) for n in m.nodes])


def _parameters(p: Parameters) -> str:
    kinds = ", ".join(f"{count:,} {dtype}" for dtype, count in p.by_dtype.items())
    return f"{p.elements:,} parameters in {p.tensors} tensors, {p.bytes / 2**20:.1f} MiB ({kinds or 'none'})"
