"""in_place_state: order the readers of a state's old content before the node that computes its new content, if data flow allows it.

The memory plan then finds the old content dead at that node, so that a cache is updated in place: ``index_copy``, ``slice_scatter`` and
``select_scatter`` write a few rows instead of copying everything. The order has no effect on the meaning of the graph.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..ir import Graph, Node
from .context import PassContext

__all__ = ["UPDATES", "run"]

UPDATES = frozenset(
    ["index_copy", "slice_scatter", "select_scatter", "scatter", "scatter_nd", "index_put", "tensor_scatter"]
)
"""Ops that update part of their first operand."""
_CACHES: Mapping[str, tuple[int, ...]] = {
    "rope_append": (5, 6),
    "rope_attention": (5, 6),
    "sample_token": (1,),
}
"""Positions of the operands that other ops update in part."""


def run(graph: Graph, context: PassContext | None = None) -> Graph:
    """Return the graph in an order that allows in-place updates of states."""
    predecessors: dict[str, set[str]] = {}
    for state in graph.states:
        update = _first_update(graph, state.name)
        if state.next is None or update is None:
            continue
        readers = {n.name for n in graph.users(state.name) if n.name != update.name}
        # A reader that depends on the update keeps the old content alive anyway.
        if readers.isdisjoint(_below(graph, update)):
            predecessors[update.name] = readers
    if not predecessors:
        return graph
    nodes = _in_order(graph, predecessors)
    return graph if nodes == graph.nodes else graph.replace(nodes=nodes)


def _first_update(graph: Graph, state: str) -> Node | None:
    """Return the node that updates the state's old content, if there is exactly one."""
    updates = [n for n in graph.users(state) if any(n.inputs[i] == state for i in _changed(n.op))]
    return updates[0] if len(updates) == 1 else None


def _changed(op: str) -> tuple[int, ...]:
    """Return the positions of the operands that an op updates in part."""
    return (0,) if op in UPDATES else _CACHES.get(op, ())


def _below(graph: Graph, node: Node) -> set[str]:
    """Return the names of nodes that depend on a node."""
    below: set[str] = set()
    stack = [node]
    while stack:
        for value in stack.pop().outputs:
            new = [u for u in graph.users(value.name) if u.name not in below]
            below.update(u.name for u in new)
            stack += new
    return below


def _in_order(graph: Graph, predecessors: Mapping[str, set[str]]) -> tuple[Node, ...]:
    """Return the nodes in order, with each node after its ``predecessors``. Cycles are ignored."""
    placed: dict[str, Node] = {}
    pending: set[str] = set()

    def visit(node: Node) -> None:
        if node.name in placed or node.name in pending:
            return
        pending.add(node.name)
        for value in node.values:
            maker = graph.producer(value)
            if maker is not None:
                visit(maker)
        for other in sorted(predecessors.get(node.name, ()), key=graph.position.__getitem__):
            visit(graph.node(other))
        placed[node.name] = node

    for node in graph.nodes:
        visit(node)
    return tuple(placed.values())
