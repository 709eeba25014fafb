"""Nodes for which the host must wait in a run: a value decides the sizes of later values, or which nodes run next."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .family import source_names
from .graph import Graph
from .ops.control import bodies_of
from .parts import Node

__all__ = ["HostWait", "decided_sizes", "decides_sizes", "host_waits"]


@dataclass(frozen=True, slots=True)
class HostWait:
    """A node that makes the host wait. name, op: as in the user's model. why: the reason. do: the remedy."""

    name: str
    op: str
    why: str
    do: str


def host_waits(graph: Graph) -> tuple[HostWait, ...]:
    """Return every node that makes the host wait, in the graph's order, those in branches and bodies included."""
    return tuple(_waits(graph))


def decides_sizes(graph: Graph, node: Node) -> bool:
    """Return True if a node's results have sizes that neither its operands nor the graph's inputs determine."""
    known = frozenset[str]().union(
        *(s.symbols for s in graph.input_specs),
        *(graph.spec(v).symbols for v in node.values if graph.values[v].spec),
    )
    return any(v.spec is not None and not v.spec.symbols <= known for v in node.outputs)


def decided_sizes(graph: Graph) -> dict[str, str]:
    """Return the sizes that only a run knows, each with the name of the node whose values decide it."""
    given = frozenset[str]().union(*(s.symbols for s in graph.input_specs))
    found: dict[str, str] = {}
    for node in graph.nodes:
        for value in node.outputs:
            if value.spec is not None:
                name = source_names(node)[0]
                found |= {s: name for s in sorted(value.spec.symbols - given) if s not in found}
    return found


def _waits(graph: Graph) -> Iterator[HostWait]:
    for node in graph.nodes:
        if reason := _reason(graph, node):
            source = node.sources[-1] if node.sources else None
            name = source.name or node.name if source else node.name
            op = source.op or node.op if source else node.op
            yield HostWait(name, op, *reason)
        for body in bodies_of(node):
            yield from _waits(body)


def _reason(graph: Graph, node: Node) -> tuple[str, str] | None:
    if node.op == "cond":
        do = "Compute both branches and select with Where, or export the model with a fixed branch."
        return "its condition decides which branch runs", do
    if node.op == "loop" and (node.attrs.get("checked") or node.attrs.get("trips") is None):
        return (
            "a value decides the number of its iterations",
            "Export the model with a fixed number of iterations.",
        )
    if decides_sizes(graph, node):
        do = "Pad its result to a fixed size in the model, or split the model at this node."
        return "the sizes of its results are known only after it ran", do
    if node.op == "opaque" and any(v.spec is None for v in node.outputs):
        return (
            "the sizes of its results are not known before a run",
            "Replace it with ops of known result sizes.",
        )
    return None
