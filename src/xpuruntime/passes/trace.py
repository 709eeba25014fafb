"""trace: the effect of each pass on a graph, as dispatches and nodes before and after, and as a text diff."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from ..ir import Graph, Node, is_view
from ..types import DType
from . import apply, find_passes
from ._lib.known import known_values
from .context import PassContext

__all__ = ["PassTrace", "dispatches", "trace_passes", "trace_table"]


@dataclass(frozen=True, slots=True)
class PassTrace:
    """The effect of one pass on one graph.

    dispatches: nodes after it that run as kernels: no views, no constants, no nodes that depend on weights alone.
    diff:       removed (``-``) and added (``+``) lines, without sources; empty if nothing changed.
    """

    name: str
    meaning: str
    dispatches: int
    nodes_before: int
    nodes_after: int
    diff: str


def dispatches(graph: Graph) -> int:
    """Return how many nodes run as kernels."""
    known = known_values(graph)
    return sum(n.name not in known and not is_view(n) for n in graph.nodes)


def trace_passes(
    graph: Graph,
    which: Iterable[str] | str | int = 3,
    *,
    context: PassContext | None = None,
    precision: DType | None = None,
) -> list[PassTrace]:
    """Return the traces of all passes in order; the first row, ``model``, is the input graph. Arguments as in ``run_passes``."""
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
    """Return the traces as text, a line per pass; with ``diffs`` each is followed by its changes."""
    lines = [f"{'pass':22}{'dispatches':>11}{'nodes':>8}  what it does"]
    for t in traces:
        lines.append(f"{t.name:22}{t.dispatches:11}{t.nodes_after:8}  {t.meaning}")
        if diffs and t.diff:
            lines += [f"    {line}" for line in t.diff.splitlines()]
    return "\n".join(lines) + "\n"
