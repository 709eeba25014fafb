"""in_place_state: whatever reads a state's old content stands before the node that makes its new one, where the data allows it.

The memory plan then finds the old content dead at that node, so a cache is updated where it lies: ``index_copy``, ``slice_scatter`` and
``select_scatter`` write a few rows instead of copying all. The graph means the same in any order; this only chooses one.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..ir import Graph, Node
from ._lib.context import PassContext

__all__ = ["UPDATES", "run"]

UPDATES = frozenset(
    ["index_copy", "slice_scatter", "select_scatter", "scatter", "scatter_nd", "index_put", "tensor_scatter"]
)
"""Ops that change part of their first operand."""
_CACHES: Mapping[str, tuple[int, ...]] = {"rope_append": (5, 6), "rope_attention": (5, 6)}
"""Where other ops have the operands that they change part of."""


def run(graph: Graph, context: PassContext | None = None) -> Graph:
    """The graph in an order that lets states be updated in place; itself when it has no such updates, or is in that order."""
    waits: dict[str, set[str]] = {}
    for state in graph.states:
        update = _first_update(graph, state.name)
        if state.next is None or update is None:
            continue
        readers = {n.name for n in graph.users(state.name) if n.name != update.name}
        if readers.isdisjoint(
            _below(graph, update)
        ):  # a reader that needs the update keeps the old content alive anyway
            waits[update.name] = readers
    if not waits:
        return graph
    nodes = _in_order(graph, waits)
    return graph if nodes == graph.nodes else graph.replace(nodes=nodes)


def _first_update(graph: Graph, state: str) -> Node | None:
    """The node that changes the state's old content, when one node alone does."""
    found = [n for n in graph.users(state) if any(n.inputs[i] == state for i in _changed(n.op))]
    return found[0] if len(found) == 1 else None


def _changed(op: str) -> tuple[int, ...]:
    """Positions of the operands that an op changes part of."""
    return (0,) if op in UPDATES else _CACHES.get(op, ())


def _below(graph: Graph, node: Node) -> set[str]:
    """The nodes that depend on a node."""
    below: set[str] = set()
    stack = [node]
    while stack:
        for value in stack.pop().outputs:
            fresh = [u for u in graph.users(value.name) if u.name not in below]
            below.update(u.name for u in fresh)
            stack += fresh
    return below


def _in_order(graph: Graph, waits: Mapping[str, set[str]]) -> tuple[Node, ...]:
    """The given order, but a node that waits for others stands after them. One that would wait for itself does not wait."""
    placed: dict[str, Node] = {}
    pending: set[str] = set()

    def place(node: Node) -> None:
        if node.name in placed or node.name in pending:
            return
        pending.add(node.name)
        for value in node.values:
            maker = graph.producer(value)
            if maker is not None:
                place(maker)
        for other in sorted(waits.get(node.name, ()), key=graph.position.__getitem__):
            place(graph.node(other))
        placed[node.name] = node

    for node in graph.nodes:
        place(node)
    return tuple(placed.values())
