"""trace: what each pass made of a graph: dispatches before and after, nodes before and after, and the difference as text."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from ..ir import Graph, Node, is_view
from ..types import DType
from . import apply, find_passes
from ._lib.context import PassContext
from ._lib.known import known_values

__all__ = ["PassTrace", "dispatches", "trace_passes", "trace_table"]


@dataclass(frozen=True, slots=True)
class PassTrace:
    """One pass on one graph.

    dispatches: nodes after it that run as kernels: not views, not constants, not what depends on weights alone.
    diff:       lines that went (``-``) and came (``+``), without sources; empty when nothing changed.
    """

    name: str
    meaning: str
    dispatches: int
    nodes_before: int
    nodes_after: int
    diff: str


def dispatches(graph: Graph) -> int:
    """How many nodes run as kernels."""
    known = known_values(graph)
    return sum(n.name not in known and not is_view(n) for n in graph.nodes)


def trace_passes(
    graph: Graph,
    which: Iterable[str] | str | int = 3,
    *,
    context: PassContext | None = None,
    precision: DType | None = None,
) -> list[PassTrace]:
    """Every pass in order, with what it did; the first row, ``model``, is the graph as it came. Arguments as ``run_passes``'."""
    from . import in_context

    context = in_context(context, precision)
    traces = [PassTrace("model", "as it came", dispatches(graph), len(graph), len(graph), "")]
    for step in find_passes(which):
        after = apply(step, graph, context)
        traces.append(
            PassTrace(step.name, step.meaning, dispatches(after), len(graph), len(after), _diff(graph, after))
        )
        graph = after
    return traces


def _diff(before: Graph, after: Graph) -> str:
    if before is after:
        return ""
    old, new = _lines(before.nodes), _lines(after.nodes)
    return "\n".join(
        line
        for line in difflib.unified_diff(old, new, lineterm="", n=0)
        if not line.startswith(("---", "+++", "@@"))
    )


def _lines(nodes: Iterable[Node]) -> list[str]:
    return [line.split("  #")[0] for n in nodes for line in str(n).splitlines()]


def trace_table(traces: Iterable[PassTrace], *, diffs: bool = False) -> str:
    """The traces as text, a line per pass; with ``diffs`` what each changed below its line."""
    lines = [f"{'pass':22}{'dispatches':>11}{'nodes':>8}  what it does"]
    for t in traces:
        lines.append(f"{t.name:22}{t.dispatches:11}{t.nodes_after:8}  {t.meaning}")
        if diffs and t.diff:
            lines += [f"    {line}" for line in t.diff.splitlines()]
    return "\n".join(lines) + "\n"
