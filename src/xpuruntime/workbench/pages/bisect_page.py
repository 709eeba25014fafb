"""The page of a bisection: the model's graph, with the node whose result differs first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ...inference.models.edges import node_reads
from ...protocols import ModelSource
from ..bisect.report import Bisection
from .page import Page, PageNode, PageTable, Value

__all__ = ["bisect_page"]

_COLUMNS = ("position", "op", "domain")


def bisect_page(result: Bisection, model: ModelSource) -> Page:
    """Return the page of a bisection. model: the model of side A."""
    reads = node_reads(model)
    faulty = () if result.node is None else result.node.nodes
    position = _positions(faulty, reads)
    nodes = tuple(
        PageNode(n.name, (position.get(n.name, "independent"), n.op, n.domain), reads.get(n.name, ()))
        for n in model.nodes
    )
    tables = (
        PageTable("First value that differs", ("", ""), _difference(result)),
        PageTable(
            "Policy changes that make the difference", ("change",), tuple((c,) for c in result.changes)
        ),
        PageTable("Search", ("", ""), _search(result)),
        PageTable("Notes", ("",), tuple((n,) for n in result.notes)),
    )
    return Page(
        title=f"{model.name}: bisection",
        verdict=("the sides agree", True) if result.ok else ("the sides differ", False),
        columns=_COLUMNS,
        colors=("position", "op"),
        nodes=nodes if faulty else tuple(PageNode(n.name, ("", *n.values[1:]), n.reads) for n in nodes),
        lead=(f"{result.sentence}.", f"A: {result.actual}", f"B: {result.reference}"),
        tables=tuple(t for t in tables if t.rows),
        selected=faulty[0] if faulty else "",
    )


def _positions(faulty: Iterable[str], reads: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Return the position of each node relative to the faulty ones; nodes without an entry are independent of them."""
    readers: dict[str, list[str]] = {}
    for name, inputs in reads.items():
        for i in inputs:
            readers.setdefault(i, []).append(name)
    before, after = (_reached(faulty, edges) for edges in (reads, readers))
    positions = dict.fromkeys(before, "before it") | dict.fromkeys(after, "depends on it")
    return positions | dict.fromkeys(faulty, "first that differs")


def _reached(starts: Iterable[str], edges: Mapping[str, Iterable[str]]) -> set[str]:
    reached: set[str] = set()
    pending = list(starts)
    while pending:
        for name in edges.get(pending.pop(), ()):
            if name not in reached:
                reached.add(name)
                pending.append(name)
    return reached


def _difference(result: Bisection) -> tuple[tuple[Value, ...], ...]:
    node = result.node
    if node is None:
        return ()
    s = node.statistics
    return (
        ("value", node.value),
        ("nodes", ", ".join(node.nodes)),
        ("ops", "+".join(node.ops)),
        ("kernel of A", node.kernels[0] or "not reported"),
        ("kernel of B", node.kernels[1] or "not reported"),
        ("source", node.source or "not kept by the model"),
        ("largest difference", s.max_abs),
        ("relative to the largest element", s.max_rel),
        ("tolerance", node.tolerance),
        ("cosine", s.cosine),
        ("elements that differ", f"{s.mismatched} of {s.elements}"),
    )


def _search(result: Bisection) -> tuple[tuple[Value, ...], ...]:
    rows: list[tuple[Value, ...]] = [
        ("values that both sides show", result.values),
        ("runs", f"{result.runs} of at most {result.bound}"),
        ("sessions for policies", result.trials),
    ]
    if (saved := result.reproduction) is not None:
        rows += [("reproduction", str(saved.folder)), ("command", saved.command)]
    return tuple(rows)
