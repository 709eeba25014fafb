"""Copying the nodes of a body into the graph that has its node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...ir import Graph, Input, Node, Value
from ...ir.attributes import Attrs, Const
from ...ir.nodes import make_node

__all__ = ["BodyInliner"]


class BodyInliner:
    """The nodes of a graph under construction, with unused names for what is added."""

    def __init__(self, graph: Graph) -> None:
        self.nodes: list[Node] = []
        self.values: dict[str, Value] = dict(graph.values)
        self.replacements: dict[str, str] = {}
        self._former_names = graph.former_names

    def now(self, item: Input) -> Input:
        """Return the value that replaces an operand."""
        while isinstance(item, str) and item in self.replacements:
            item = self.replacements[item]
        return item

    def fresh(self, stem: str) -> str:
        """Return a name that no value has or had."""
        name, number = stem, 0
        while name in self.values or name in self._former_names:
            number += 1
            name = f"{stem}_{number}"
        return name

    def add(self, node: Node) -> None:
        self.nodes.append(node)
        self.values.update((v.name, v) for v in node.outputs)

    def make(self, like: Node, op: str, *inputs: Input, **attrs: Any) -> str:
        """Append a node with the sources of another and return its first result."""

        def names(count: int) -> list[str]:
            return [self.fresh(f"{like.name}.{op}" + (f".{i}" if i else "")) for i in range(count)]

        node = make_node(op, inputs, attrs, names, self.values, sources=like.sources)
        self.add(node)
        return node.name

    def constant(self, like: Node, array: Any) -> str:
        """Append a constant and return it."""
        return self.make(like, "constant", value=Const(array))

    def copy(self, node: Node, body: Graph, operands: Sequence[Input]) -> list[Input]:
        """Append the nodes of a body and return its results."""
        names: dict[str, Input] = {v.name: o for v, o in zip(body.inputs, operands, strict=True)}
        for member in body.nodes:
            for value in member.outputs:
                names[value.name] = self._declared(f"{node.name}/{value.name}", value)
            self.add(_renamed(member, names, node))
        return [names[o.value] for o in body.outputs]

    def _declared(self, stem: str, value: Value) -> str:
        name = self.fresh(stem)
        self.values[name] = Value(name, value.spec)
        return name


def _renamed(member: Node, names: Mapping[str, Input], node: Node) -> Node:
    rename: Callable[[Input], Input] = lambda i: names[i] if isinstance(i, str) else i  # noqa: E731
    return Node(
        member.op,
        tuple(rename(i) for i in member.inputs),
        Attrs(dict(member.attrs)),
        tuple(Value(str(names[v.name]), v.spec) for v in member.outputs),
        member.sources or node.sources,
    )
