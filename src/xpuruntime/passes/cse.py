"""cse: keep the first of equal nodes on equal operands, with the sources of all."""

from __future__ import annotations

from typing import Any

from ..ir import OPS, Graph, Input, Node, Output, State
from ..ir.ops.control import AT_RUN_TIME
from .context import PassContext

__all__ = ["run"]


def run(graph: Graph, context: PassContext | None = None) -> Graph:
    """Return the graph with common subexpressions computed once."""
    same: dict[str, str] = {}
    first: dict[Any, int] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        inputs = tuple(same.get(i, i) if isinstance(i, str) else i for i in node.inputs)
        current = (
            node if inputs == node.inputs else Node(node.op, inputs, node.attrs, node.outputs, node.sources)
        )
        key = _key(current)
        index = first.setdefault(key, len(nodes)) if key is not None else len(nodes)
        if index == len(nodes):
            nodes.append(current)
            continue
        original = nodes[index]
        sources = tuple(dict.fromkeys((*original.sources, *current.sources)))
        nodes[index] = Node(original.op, original.inputs, original.attrs, original.outputs, sources)
        same.update((v.name, k.name) for v, k in zip(current.outputs, original.outputs, strict=True))
    if not same:
        return graph
    return graph.replace(
        nodes=tuple(nodes),
        outputs=tuple(Output(o.name, same.get(o.value, o.value)) for o in graph.outputs),
        states=tuple(State(s.value, s.init, s.next and same.get(s.next, s.next)) for s in graph.states),
    )


def _key(node: Node) -> Any:
    """Return a key that is equal for nodes with equal results; None for nodes that may differ."""
    op = OPS[node.op]
    if node.op in AT_RUN_TIME or op.random or op.data_dependent:
        return None
    inputs: tuple[Input, ...] = node.inputs
    if op.commutative and len(inputs) >= 2:
        inputs = (*sorted(inputs[:2], key=repr), *inputs[2:])
    return node.op, repr(inputs), node.attrs, tuple(v.spec for v in node.outputs)
