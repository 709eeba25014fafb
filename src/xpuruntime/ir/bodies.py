"""Bodies of ``fused`` nodes: moving nodes of a graph into a body, and inlining bodies.

body = body_of(graph, nodes)        # operands and a body for one fused node
plain = inline_fused(graph)         # the graph without fused nodes
"""

from __future__ import annotations

from collections.abc import Iterable

from .graph import Graph, Input, Node, Output, State, Value

__all__ = ["body_of", "inline_fused"]


def body_of(graph: Graph, nodes: Iterable[Node], name: str = "") -> tuple[tuple[str, ...], Graph]:
    """Return the operands in order of first use, and the nodes as a body. Its outputs are the values that are read outside.

    Nodes keep names and sources. ``name``: by default the members' ops, ``mul_add_relu``.
    """
    member_names = {n.name for n in nodes}
    inside = tuple(graph.nodes[i] for i in sorted(graph.position[name] for name in member_names))
    produced = {v.name for n in inside for v in n.outputs}
    operands = tuple(dict.fromkeys(v for n in inside for v in n.values if v not in produced))
    leaving = [
        v.name
        for n in inside
        for v in n.outputs
        if v.name in graph.kept or any(u.name not in member_names for u in graph.users(v.name))
    ]
    body = Graph(
        name or "_".join(n.op for n in inside if n.op != "constant")[:80],
        tuple(Value(v, graph.spec(v)) for v in operands),
        tuple(Output(v, v) for v in leaving),
        inside,
    )
    return operands, body


def inline_fused(graph: Graph) -> Graph:
    """Replace each fused node by the nodes of its body. Results keep their names; inner values are renamed if their names are taken.
    Nodes without sources get the fused node's sources.
    """
    if not any(n.op == "fused" for n in graph.nodes):
        return graph
    used_names = set(graph.values)
    replacements: dict[str, Input] = {}  # results that are an operand or another result of the same node
    nodes: list[Node] = []

    def now(item: Input) -> Input:
        return replacements.get(item, item) if isinstance(item, str) else item

    for node in graph.nodes:
        operands = tuple(now(i) for i in node.inputs)
        if node.op == "fused":
            nodes += _members(node, operands, used_names, replacements)
        else:
            nodes.append(Node(node.op, operands, node.attrs, node.outputs, node.sources))
    return graph.replace(
        nodes=tuple(nodes),
        outputs=tuple(Output(o.name, str(now(o.value))) for o in graph.outputs),
        states=tuple(
            State(s.value, s.init, None if s.next is None else str(now(s.next))) for s in graph.states
        ),
    )


def _members(
    node: Node, operands: tuple[Input, ...], used_names: set[str], replacements: dict[str, Input]
) -> list[Node]:
    body: Graph = node.attrs["body"]
    outer_names: dict[str, Input] = {v.name: o for v, o in zip(body.inputs, operands, strict=True)}
    for output, value in zip(body.outputs, node.outputs, strict=False):
        if output.value in outer_names:
            replacements[value.name] = outer_names[output.value]
        else:
            outer_names[output.value] = value.name
    members: list[Node] = []
    for member in body.nodes:
        for value in member.outputs:
            if value.name not in outer_names:
                outer_names[value.name] = name = _fresh(value.name, used_names)
                used_names.add(name)
        outputs = tuple(Value(str(outer_names[v.name]), v.spec) for v in member.outputs)
        inputs = tuple(outer_names[i] if isinstance(i, str) else i for i in member.inputs)
        members.append(Node(member.op, inputs, member.attrs, outputs, member.sources or node.sources))
    return members


def _fresh(stem: str, used_names: set[str]) -> str:
    name, number = stem, 0
    while name in used_names:
        number += 1
        name = f"{stem}_{number}"
    return name
