"""fuse_pointwise: chains and bushes of elementwise nodes become one ``fused`` node, so that values between them never reach memory.

What a group may hold stands in ``may_join``: pointwise ops of the types that kernels compute with, all of one shape. Smaller operands
broadcast from outside and are never computed again per element; a value that others read too becomes one more output. So a group reads and
writes no more than its members did, and computes nothing twice. A group stays convex: no path leaves it and comes back.

Layouts may differ per value: a body of pointwise ops follows whatever layout its operands have.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..ir import OPS, Attrs, Graph, Node, Value, body_of
from ..ir.rewrite import ordered, sources_of
from ..types import DType
from .context import Context
from .known import known_values

__all__ = ["MOST_MEMBERS", "MOST_OPERANDS", "TYPES", "may_join", "run"]

MOST_MEMBERS, MOST_OPERANDS = 64, 16
"""Limits of a group: a kernel holds all values of a body in registers, and an argument per operand."""

TYPES = frozenset(
    [
        DType.FLOAT32,
        DType.FLOAT64,
        DType.FLOAT16,
        DType.BFLOAT16,
        DType.BOOL,
        DType.INT8,
        DType.INT16,
        DType.INT32,
        DType.INT64,
        DType.UINT8,
        DType.UINT16,
        DType.UINT32,
        DType.UINT64,
    ]
)
"""Types that generated kernels compute with."""


def may_join(graph: Graph, node: Node) -> bool:
    """Whether a body may hold the node."""
    row = OPS[node.op]
    if not row.pointwise or row.random or len(node.outputs) != 1:
        return False
    specs = [graph.values[v].spec for v in node.values] + [node.outputs[0].spec]
    return all(s is not None and s.dtype in TYPES for s in specs)


def run(graph: Graph, context: Context | None = None) -> Graph:
    """The graph with fused nodes in place of groups of two or more."""
    groups = _Groups(graph, context or Context())
    for node in graph.nodes:
        groups.visit(node)
    bodies = [members for members in groups.members.values() if len(members) > 1]
    return _replaced(graph, bodies) if bodies else graph


class _Groups:
    """Units of a contracted graph: every node is one, and groups grow by taking in units that share an edge."""

    def __init__(self, graph: Graph, context: Context) -> None:
        self.graph, self.context = graph, context
        self.known = known_values(graph)
        self.unit: dict[str, str] = {}  # value -> the unit that makes it
        self.members: dict[str, list[Node]] = {}
        self.reads: dict[str, set[str]] = {}  # unit -> units that it reads
        self.open: set[str] = set()  # units that may grow

    def visit(self, node: Node) -> None:
        """Make the node a unit, and join it with those of its producers that it may join."""
        name = node.name
        self.members[name] = [node]
        self.reads[name] = {self.unit[v] for v in node.values if v in self.unit}
        self.unit.update((v.name, name) for v in node.outputs)
        if name in self.known or not may_join(self.graph, node):
            return
        self.open.add(name)
        for producer in sorted(self.reads[name], key=lambda u: self.graph.position[u]):
            here = self.unit[node.name]
            if producer in self.open and producer != here and self.fits(producer, here):
                self.join(producer, here)

    def fits(self, a: str, b: str) -> bool:
        """Whether two units may become one."""
        both = [*self.members[a], *self.members[b]]
        if self.members[a][0].outputs[0].spec.shape != self.members[b][0].outputs[0].spec.shape:  # type: ignore[union-attr]
            return False
        if len(both) > MOST_MEMBERS or len(_operands(both)) > MOST_OPERANDS or self.comes_back(a, b):
            return False
        return bool(self.context.may_fuse(tuple(both)))

    def comes_back(self, a: str, b: str) -> bool:
        """Whether a path leads from one to the other over a third."""
        between = (self.reads[a] | self.reads[b]) - {a, b}
        return any(unit in (a, b) for start in between for unit in self.above(start))

    def above(self, start: str) -> Iterator[str]:
        """Every unit that this one depends on, itself included."""
        seen, stack = {start}, [start]
        while stack:
            unit = stack.pop()
            yield unit
            fresh = self.reads[unit] - seen
            seen |= fresh
            stack += fresh

    def join(self, a: str, b: str) -> None:
        """The units become one, called ``a``."""
        self.members[a] += self.members.pop(b)
        self.reads[a] = (self.reads[a] | self.reads.pop(b)) - {a, b}
        self.open.discard(b)
        for node in self.members[a]:
            self.unit.update((v.name, a) for v in node.outputs)
        for reads in self.reads.values():
            if b in reads:
                reads.discard(b)
                reads.add(a)


def _operands(nodes: list[Node]) -> set[str]:
    made = {v.name for n in nodes for v in n.outputs}
    return {v for n in nodes for v in n.values} - made


def _replaced(graph: Graph, groups: list[list[Node]]) -> Graph:
    last: dict[str, Node] = {}
    gone: set[str] = set()
    for members in groups:
        members.sort(key=lambda n: graph.position[n.name])
        operands, body = body_of(graph, members)
        outputs = tuple(Value(o.value, graph.spec(o.value)) for o in body.outputs)
        fused = Node("fused", operands, Attrs({"body": body}), outputs, sources_of(members))
        gone.update(n.name for n in members)
        last[members[-1].name] = fused
    nodes = [last.get(n.name, n) for n in graph.nodes if n.name not in gone or n.name in last]
    return graph.replace(nodes=tuple(ordered(nodes)))
