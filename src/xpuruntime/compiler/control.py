"""Branches and bodies as entry points: control flow's graphs are compiled like the graph that holds them.

A body gets the weights and constants that its node passes to it as its own, so that kernels may pack and fold them. Its name is that of
its entry point: ``body.`` and a digest, so that equal bodies are compiled once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace

from ..ir import Graph, Node, Weight
from ..ir.graph import Value
from ..ir.ops.control import CONTROL, bodies_of
from ..program.program import BODY

__all__ = ["apart", "with_entries"]

Optimize = Callable[[Graph], Graph]
"""Runs the passes on a body."""


def with_entries(graph: Graph, optimize: Optimize, phase: str, bodies: dict[str, Graph]) -> Graph:
    """Return the graph with the bodies of its control flow compiled apart, and add them to ``bodies`` by entry-point name."""
    if not any(n.op in CONTROL for n in graph.nodes):
        return graph
    return graph.replace(nodes=tuple(_node(graph, n, optimize, phase, bodies) for n in graph.nodes))


def _node(graph: Graph, node: Node, optimize: Optimize, phase: str, bodies: dict[str, Graph]) -> Node:
    if node.op not in CONTROL:
        return node
    first = 1 if node.op == "cond" else 2
    carried = 0 if node.op == "cond" else node.attrs["carried"]
    captured = node.inputs[first + carried :]
    fixed = [_content(graph, i) for i in captured]
    names = ("then_branch", "else_branch") if node.op == "cond" else ("body",)
    own = 0 if node.op == "cond" else 1
    entries: dict[str, Graph] = {}
    for name, body in zip(names, bodies_of(node), strict=True):
        bound = optimize(apart(body, [None] * (own + carried) + fixed))
        bound = with_entries(bound, optimize, phase, bodies)
        digest = hashlib.sha256(f"{phase} {bound.replace(name='').digest}".encode()).hexdigest()
        entry = f"{BODY}{digest[:16]}"
        entries[name] = bodies[entry] = bound.replace(name=entry)
    inputs = (
        *node.inputs[: first + carried],
        *(i for i, f in zip(captured, fixed, strict=True) if f is None),
    )
    return Node(node.op, inputs, node.attrs.replace(**entries), node.outputs, node.sources)


def _content(graph: Graph, operand: object) -> Weight | Node | None:
    """Return the weight or constant that an operand is."""
    if not isinstance(operand, str):
        return None
    if operand in graph.weight_names:
        return next(w for w in graph.weights if w.name == operand)
    producer = graph.producer(operand)
    return producer if producer is not None and producer.op == "constant" else None


def apart(body: Graph, contents: Sequence[Weight | Node | None]) -> Graph:
    """Return a body with some inputs replaced by weights or constants. A weight keeps its name; equal names in the body change."""
    names = {v.name: w.name for v, w in zip(body.inputs, contents, strict=True) if isinstance(w, Weight)}
    taken = {*body.values, *names.values()}
    clashing = set(names.values())
    for value in body.values:
        if value not in names and value in clashing:
            fresh = value
            while fresh in taken:
                fresh += "_"
            names[value] = fresh
            taken.add(fresh)

    def renamed(value: Value) -> Value:
        return Value(names.get(value.name, value.name), value.spec)

    nodes = tuple(
        Node(
            n.op,
            tuple(names.get(i, i) if isinstance(i, str) else i for i in n.inputs),
            n.attrs,
            tuple(renamed(v) for v in n.outputs),
            n.sources,
        )
        for n in body.nodes
    )
    constants = tuple(
        Node("constant", (), c.attrs, (renamed(v),), c.sources)
        for v, c in zip(body.inputs, contents, strict=True)
        if isinstance(c, Node)
    )
    return body.replace(
        inputs=tuple(renamed(v) for v, c in zip(body.inputs, contents, strict=True) if c is None),
        weights=tuple({w.name: w for w in contents if isinstance(w, Weight)}.values()),
        nodes=(*constants, *nodes),
        outputs=tuple(replace(o, value=names.get(o.value, o.value)) for o in body.outputs),
    )
