"""fuse_pointwise: fuse connected elementwise nodes into one ``fused`` node, so that intermediate values never reach memory.

A group has one iteration space: the shape of its elementwise members. Smaller operands are broadcast from outside and are never
recomputed per element, except conversions from 16 bits, which are free in registers; a value with other readers becomes another output. So a group reads and writes no more than its members did,
and computes nothing twice. A group is convex: no path leaves it and returns.

In backward, elementwise nodes that read the same value of the full shape join a group, too, although none reads the other: forward's activation, which is
computed again, and its gradient then read memory once. Other graphs do without, since the value would live longer.

Row ops join a group if one kernel can hold it: reductions that keep their dims, softmax and norms over the last dims of values of up
to three dims, all over the same dims, with elementwise nodes before, between (one value per row) and after them. ``ROW_OPS`` lists
them. Values of four dims do not join row ops: in convolutional networks they are channels-last, and purely elementwise bodies support
any layout.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..ir import OPS, Attrs, Graph, Node, Value, body_of
from ..ir.rewrite import ordered, sources_of
from ..types import HALF_FLOATS, DimLike, DType
from ._lib.known import known_values
from .context import PassContext

__all__ = [
    "MAX_MEMBERS",
    "MAX_OPERANDS",
    "MAX_ROW_OPS",
    "ROW_OPS",
    "TYPES",
    "IterationSpace",
    "iteration_space",
    "run",
]

MAX_MEMBERS, MAX_OPERANDS, MAX_ROW_OPS = 64, 16, 2
"""Limits of a group: a kernel holds all values of a body in registers, has an argument per operand, and makes a pass over a row per row op."""

_DEQUANTIZING = 3
"""Steps from codes to the op that reads them as floats: cast, minus the zero point, times the scale."""

ROW_OPS = frozenset(["sum", "mean", "amax", "amin", "softmax", "log_softmax", "layer_norm", "rms_norm"])
"""Row ops that a body may contain."""

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


@dataclass(frozen=True, slots=True)
class IterationSpace:
    """The iteration space of a group: the full shape, and the dims that its row ops reduce (none: elementwise only)."""

    shape: tuple[DimLike, ...]
    reduced: tuple[int, ...] = ()

    @property
    def per_row(self) -> tuple[DimLike, ...]:
        """Return the shape of values with one element per row."""
        return tuple(1 if d in self.reduced else n for d, n in enumerate(self.shape))


def iteration_space(graph: Graph, node: Node) -> IterationSpace | None:
    """Return the iteration space of a node; None if no body may contain it."""
    op = OPS[node.op]
    specs = [graph.values[v].spec for v in node.values] + [v.spec for v in node.outputs]
    if any(s is None or s.dtype not in TYPES for s in specs):
        return None
    if node.op == "bitcast" and any(s.dtype in HALF_FLOATS for s in specs if s is not None):
        return None  # in registers they are float32, which changes the bits of a signaling NaN
    if op.pointwise and not op.random and len(node.outputs) == 1:
        return IterationSpace(node.spec.shape)
    if node.op not in ROW_OPS or not isinstance(node.inputs[0], str):
        return None
    x = graph.spec(node.inputs[0])
    dims = _reduced(node, x.rank)
    last = tuple(range(x.rank - len(dims), x.rank))
    reducible = x.dtype.is_float and x.rank <= 3 and dims and dims == last
    ranks = {
        graph.spec(v.name).rank for v in node.outputs
    }  # those of the statistics of a norm are of size 1 where it reduces
    return IterationSpace(x.shape, dims) if reducible and ranks == {x.rank} else None


def _reduced(node: Node, rank: int) -> tuple[int, ...]:
    if "normalized_shape" in node.attrs:
        return tuple(range(rank - len(node.attrs["normalized_shape"]), rank))
    dims = node.attrs["dim"]
    return (dims,) if isinstance(dims, int) else tuple(sorted(dims))


def _joined(a: IterationSpace, b: IterationSpace) -> IterationSpace | None:
    """Return the joint iteration space of a group and a node after it; None if they do not match."""
    if a.shape == b.shape and (not a.reduced or not b.reduced or a.reduced == b.reduced):
        return IterationSpace(a.shape, a.reduced or b.reduced)
    if a.reduced and not b.reduced and b.shape == a.per_row:  # one value per row, computed once per row
        return a
    return None


def run(graph: Graph, context: PassContext | None = None) -> Graph:
    """Return the graph with fused nodes in place of groups of two or more."""
    groups = _FusionGroups(graph, context or PassContext())
    for node in graph.nodes:
        groups.visit(node)
    bodies = [members for members in groups.members.values() if len(members) > 1]
    return _replaced(graph, bodies) if bodies else graph


class _FusionGroups:
    """Units of a contracted graph: every node is one, and groups grow by merging units that share an edge."""

    def __init__(self, graph: Graph, context: PassContext) -> None:
        self.graph, self.context = graph, context
        self.known = known_values(graph)
        self.unit: dict[str, str] = {}  # value -> the unit that produces it
        self.members: dict[str, list[Node]] = {}
        self.reads: dict[str, set[str]] = {}  # unit -> units that it reads
        self.readers: dict[str, set[str]] = {}  # unit -> units that read it
        self.level: dict[str, int] = {}  # of units: higher than those of all units that they read
        self.spaces: dict[str, IterationSpace] = {}  # of units that may grow
        self.elementwise: dict[str, list[str]] = {}  # value -> elementwise nodes of its shape that read it

    def visit(self, node: Node) -> None:
        """Make the node a unit, and merge it with its producers where possible."""
        name = node.name
        self.members[name] = [node]
        self.reads[name] = {self.unit[v] for v in node.values if v in self.unit}
        self.readers[name] = set()
        for unit in self.reads[name]:
            self.readers[unit].add(name)
        self.level[name] = self._lowest(name)
        self.unit.update((v.name, name) for v in node.outputs)
        space = None if name in self.known else iteration_space(self.graph, node)
        if space is None:
            return
        self.spaces[name] = space
        for producer in sorted(self.reads[name], key=lambda u: self.graph.position[u]):
            if self.belongs_to_reader(node):
                break
            unit_of_node = self.unit[node.name]
            if (
                producer in self.spaces
                and producer != unit_of_node
                and (joined := self.fits(producer, unit_of_node)) is not None
            ):
                self.join(producer, unit_of_node, joined)
        if self.context.joins_readers and not space.reduced:
            self.join_readers(node, space)

    def belongs_to_reader(self, node: Node) -> bool:
        """Return True for the cast of 8-bit codes that are in memory for another reader, if its value is needed after that reader.

        In a residual network the codes go to a convolution, and in floats to the sum after it: reading the codes again moves a quarter of the bytes.
        """
        graph = self.graph
        if node.op != "cast" or node.spec.dtype is not DType.FLOAT32 or not isinstance(node.inputs[0], str):
            return False
        codes = node.inputs[0]
        if graph.spec(codes).dtype not in (DType.INT8, DType.UINT8):
            return False
        others = {u.name for u in graph.users(codes)} - {node.name}
        reader = node
        for _ in range(_DEQUANTIZING if others else 0):
            users = graph.users(reader.outputs[0].name)
            if len(users) != 1 or not OPS[users[0].op].pointwise:
                return False
            (reader,) = users
            if self.depends(reader, others):
                return True
        return False

    def depends(self, node: Node, on: set[str]) -> bool:
        """Return True if a node's operands need one of these nodes."""
        first = min(self.graph.position[n] for n in on)
        seen: set[str] = set()
        stack = [node]
        while stack:
            for value in stack.pop().values:
                producer = self.graph.producer(value)
                if producer is None or producer.name in seen or self.graph.position[producer.name] < first:
                    continue
                if producer.name in on:
                    return True
                seen.add(producer.name)
                stack.append(producer)
        return False

    def join_readers(self, node: Node, space: IterationSpace) -> None:
        """Merge an elementwise node's unit with those of earlier elementwise nodes that read one of its operands of the full shape."""
        for value in dict.fromkeys(node.values):
            if value in self.known or self.graph.spec(value).shape != space.shape:
                continue
            readers = self.elementwise.setdefault(value, [])
            for reader in readers:
                a, b = self.unit[reader], self.unit[node.name]
                if a == b or self.spaces[a].reduced or self.spaces[b].reduced:
                    continue
                if (joined := self.fits(a, b)) is not None:
                    self.join(a, b, joined)
            readers.append(node.name)

    def fits(self, a: str, b: str) -> IterationSpace | None:
        """Return the iteration space of two units as one; None if they may not merge."""
        both = [*self.members[a], *self.members[b]]
        space = _joined(self.spaces[a], self.spaces[b]) or self.widened(a, b)
        if space is None or (space.reduced and len(space.shape) > 3):
            return None
        if len(both) > MAX_MEMBERS or len(_operands(both)) > MAX_OPERANDS:
            return None
        if sum(n.op in ROW_OPS for n in both) > MAX_ROW_OPS or self.forms_cycle(a, b):
            return None
        return space if self.context.may_fuse(self.graph, tuple(both)) else None

    def widened(self, a: str, b: str) -> IterationSpace | None:
        """Return the space of ``b`` if ``a`` is a conversion of a smaller 16-bit value that only elementwise members of ``b`` read."""
        space, (node, *others) = self.spaces[b], self.members[a]
        if others or node.op != "cast" or space.reduced or node.spec.dtype is not DType.FLOAT32:
            return None
        if not isinstance(node.inputs[0], str) or self.graph.spec(node.inputs[0]).dtype not in HALF_FLOATS:
            return None
        value = node.outputs[0].name
        users = {u.name for u in self.graph.users(value)}
        if value in self.graph.kept or not users or not users <= {n.name for n in self.members[b]}:
            return None
        lead = len(space.shape) - len(node.spec.shape)
        fits = lead >= 0 and all(
            d in (1, n) for d, n in zip(node.spec.shape, space.shape[lead:], strict=True)
        )
        return space if fits else None

    def forms_cycle(self, a: str, b: str) -> bool:
        """Return whether a path leads from one unit to the other through a third."""
        between = (self.reads[a] | self.reads[b]) - {a, b}
        lowest = min(self.level[a], self.level[b])
        return any(unit in (a, b) for unit in self.above(between, lowest))

    def above(self, starts: set[str], lowest: int) -> Iterator[str]:
        """Yield every unit that these depend on, including themselves, with a level of at least ``lowest``."""
        seen = {u for u in starts if self.level[u] >= lowest}
        stack = list(seen)
        while stack:
            unit = stack.pop()
            yield unit
            new = {u for u in self.reads[unit] - seen if self.level[u] >= lowest}
            seen |= new
            stack += new

    def join(self, a: str, b: str, space: IterationSpace) -> None:
        """Merge the units into one, named ``a``."""
        self.members[a] += self.members.pop(b)
        for reader in self.readers[b]:
            self.reads[reader] = (self.reads[reader] - {b}) | {a}
        for read in self.reads[b]:
            self.readers[read] = (self.readers[read] - {b}) | {a}
        self.reads[a] = (self.reads[a] | self.reads.pop(b)) - {a, b}
        self.readers[a] = (self.readers[a] | self.readers.pop(b)) - {a, b}
        self.spaces[a] = space
        del self.spaces[b], self.level[b]
        for node in self.members[a]:
            self.unit.update((v.name, a) for v in node.outputs)
        raised = [a]
        while raised:
            unit = raised.pop()
            level = self._lowest(unit)
            if level > self.level[unit]:
                self.level[unit] = level
                raised += self.readers[unit]

    def _lowest(self, unit: str) -> int:
        return 1 + max((self.level[u] for u in self.reads[unit]), default=0)


def _operands(nodes: list[Node]) -> set[str]:
    results = {v.name for n in nodes for v in n.outputs}
    return {v for n in nodes for v in n.values} - results


def _replaced(graph: Graph, groups: list[list[Node]]) -> Graph:
    last: dict[str, Node] = {}
    replaced: set[str] = set()
    for members in groups:
        members.sort(key=lambda n: graph.position[n.name])
        operands, body = body_of(graph, members)
        outputs = tuple(Value(o.value, graph.spec(o.value)) for o in body.outputs)
        fused = Node("fused", operands, Attrs({"body": body}), outputs, sources_of(members))
        replaced.update(n.name for n in members)
        last[members[-1].name] = fused
    nodes = [last.get(n.name, n) for n in graph.nodes if n.name not in replaced or n.name in last]
    return graph.replace(nodes=tuple(ordered(nodes)))
