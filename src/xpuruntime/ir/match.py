"""Pattern matching over a graph, with patterns written as expressions of values.

    x, w, b = Any("x"), Any("w", kind="weight"), Any("b")
    pattern = Op("add", Op("matmul", x, w), b)
    found = find(graph, pattern)
    found.matches[0]["x"]            # the value's name
    print(found.explain())           # also the nearest misses: where a match failed, and why

Commutative ops match in both orders. Inner nodes must have no other user unless ``shared=True``, because a fusion would
compute them twice. A constraint is a function of the Match. It returns a bool, a Support, or a text with the reason against.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any as AnyType
from typing import TypeAlias

from ..decisions import Support
from .attributes import Attrs, canonical
from .graph import Graph, Input, Node
from .ops import OPS

__all__ = ["Any", "Found", "Match", "Miss", "Number", "Op", "Pattern", "find", "match"]


@dataclass(frozen=True, slots=True)
class Any:
    """A pattern for any value or immediate number, captured under a name. The same name must match the same value everywhere.

    kind: ``weight``, ``input``, ``node`` (a node's result), ``number`` (a constant) or empty for all. optional: may be absent.
    """

    name: str = ""
    kind: str = ""
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Number:
    """A pattern for a constant number: an immediate, or a constant whose elements are all equal.

    value: the expected number, within ``rtol`` (None: any number). name: captures the operand.
    """

    value: float | None = None
    name: str = ""
    rtol: float = 1e-6


@dataclass(frozen=True, slots=True)
class Op:
    """A pattern for a node of an op (or of several: ``"silu|gelu"``) with matching operands.

    Operands beyond those of the pattern match anything. attrs: values or predicates by name.
    name: captures the node. shared: other nodes may also read its result. output: index of the output.
    """

    op: str
    operands: tuple[Pattern, ...] = ()
    attrs: Mapping[str, AnyType] = field(default_factory=dict)
    name: str = ""
    shared: bool = False
    output: int = 0

    def __init__(
        self,
        op: str,
        *operands: Pattern,
        name: str = "",
        shared: bool = False,
        output: int = 0,
        **attrs: AnyType,
    ) -> None:
        for key, value in (
            ("op", op), ("operands", operands), ("attrs", attrs), ("name", name), ("shared", shared), ("output", output)
        ):  # fmt: skip
            object.__setattr__(self, key, value)


Pattern: TypeAlias = Any | Number | Op


@dataclass(frozen=True, slots=True)
class Match:
    """One match of a pattern: ``m["x"]`` is a captured operand, ``m.node("name")`` a captured node."""

    graph: Graph
    root: Node
    captures: Mapping[str, Input]
    named: Mapping[str, Node]
    nodes: tuple[Node, ...]

    def __getitem__(self, name: str) -> Input:
        return self.captures[name]

    def node(self, name: str) -> Node:
        """Return the node captured under a name."""
        return self.named[name]


@dataclass(frozen=True, slots=True)
class Miss:
    """A near match: the number of matched nodes, the point of failure, and the reason."""

    root: Node
    depth: int
    at: str
    reason: str

    def __str__(self) -> str:
        return f"%{self.root.name}: {self.depth} nodes match, then at {self.at}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Found:
    """All matches in order, with no node in two of them, and the misses that matched the most nodes."""

    matches: tuple[Match, ...]
    misses: tuple[Miss, ...]

    def __iter__(self) -> Iterator[Match]:
        return iter(self.matches)

    def __len__(self) -> int:
        return len(self.matches)

    def explain(self) -> str:
        """Describe the matches, then the misses, nearest first."""
        lines = [f"match %{m.root.name}: {', '.join('%' + n.name for n in m.nodes)}" for m in self.matches]
        return "\n".join([*lines, *(f"miss {m}" for m in self.misses)]) or "no match"


Constraint: TypeAlias = Callable[[Match], "bool | str | Support"]
_MAX_STEPS = 20_000  # bound of the search over commutative orders at one root


def find(
    graph: Graph, pattern: Op, where: Constraint | Sequence[Constraint] = (), *, misses: int = 5
) -> Found:  # fmt: skip
    """Find all matches of a pattern, and the nearest misses. Later (larger) roots claim their nodes first."""
    matches: list[Match] = []
    near: list[Miss] = []
    claimed: set[str] = set()
    for root in reversed(graph.nodes):
        if root.op not in pattern.op.split("|"):
            continue
        result = match(graph, pattern, root, where)
        if isinstance(result, Miss):
            near.append(result)
        elif claimed.isdisjoint(n.name for n in result.nodes):
            claimed.update(n.name for n in result.nodes)
            matches.append(result)
        else:
            near.append(
                Miss(root, len(result.nodes), f"%{root.name}", "a node already belongs to another match")
            )
    near.sort(key=lambda m: -m.depth)
    return Found(tuple(reversed(matches)), tuple(near[:misses]))


def match(
    graph: Graph, pattern: Op, root: Node, where: Constraint | Sequence[Constraint] = ()
) -> Match | Miss:
    """Match the pattern with its root at this node."""
    search = _Search(graph, root)
    constraints = (where,) if callable(where) else tuple(where)
    for state in search.node(pattern, root, _Bindings({}, {}, ()), is_root=True):
        members = {n.name: n for n in state.nodes}.values()
        nodes = tuple(sorted(members, key=lambda n: graph.position[n.name]))
        result = Match(graph, root, state.captures, state.named, nodes)
        for constraint in constraints:
            answer = constraint(result)
            if isinstance(answer, str) or not answer:  # a text is a reason against
                reason = answer.reason if isinstance(answer, Support) else answer
                search.miss(len(nodes), f"%{root.name}", reason or "a constraint is not satisfied")
                break
        else:
            return result
    return search.nearest or Miss(root, 0, f"%{root.name}", f"is {root.op}, wanted {pattern.op}")


@dataclass(frozen=True, slots=True)
class _Bindings:
    captures: dict[str, Input]
    named: dict[str, Node]
    nodes: tuple[Node, ...]


class _Search:
    """A backtracking search over operand orders, which records the furthest point of failure."""

    def __init__(self, graph: Graph, root: Node) -> None:
        self.graph, self.root, self.steps = graph, root, 0
        self.nearest: Miss | None = None

    def miss(self, depth: int, at: str, reason: str) -> None:
        if self.nearest is None or depth > self.nearest.depth:
            self.nearest = Miss(self.root, depth, at, reason)

    def node(
        self, pattern: Op, node: Node, bound: _Bindings, *, is_root: bool = False
    ) -> Iterator[_Bindings]:
        self.steps += 1
        at, depth = f"%{node.name}", len(bound.nodes)
        if self.steps > _MAX_STEPS:
            return self.miss(depth, at, "the search exceeds its limit")
        if node.op not in pattern.op.split("|"):
            return self.miss(depth, at, f"is {node.op}, wanted {pattern.op}")
        for name, want in pattern.attrs.items():
            attr_value = node.attrs.get(name)
            ok = (
                want(attr_value)
                if callable(want)
                else Attrs({"": attr_value}) == Attrs({"": canonical(want)})
            )
            if not ok:
                return self.miss(
                    depth,
                    at,
                    f"attribute {name} is {attr_value!r}" + ("" if callable(want) else f", wanted {want!r}"),
                )
        if not is_root and not pattern.shared:
            for value in node.outputs:
                if value.name in self.graph.kept:
                    return self.miss(depth, at, f"%{value.name} leaves the graph")
                if len(self.graph.users(value.name)) > 1:
                    return self.miss(depth, at, f"%{value.name} has several users")
        if len(pattern.operands) > len(node.inputs):
            padded: tuple[Input, ...] = (*node.inputs, *(None,) * (len(pattern.operands) - len(node.inputs)))
        else:
            padded = node.inputs
        nodes_by_name = {**bound.named, pattern.name: node} if pattern.name else bound.named
        bindings = _Bindings(bound.captures, nodes_by_name, (*bound.nodes, node))
        orders: list[tuple[Input, ...]] = [padded]
        row = OPS.get(node.op)
        if row is not None and row.commutative and len(padded) >= 2 and padded[0] != padded[1]:
            orders.append((padded[1], padded[0], *padded[2:]))
        for order in orders:
            yield from self.operands(pattern.operands, order, bindings)

    def operands(
        self, patterns: Sequence[Pattern], operands: Sequence[Input], bound: _Bindings
    ) -> Iterator[_Bindings]:
        if not patterns:
            yield bound
            return
        for state in self.operand(patterns[0], operands[0], bound):
            yield from self.operands(patterns[1:], operands[1:], state)

    def operand(self, pattern: Pattern, operand: Input, bound: _Bindings) -> Iterator[_Bindings]:
        depth, at = len(bound.nodes), f"%{operand}" if isinstance(operand, str) else repr(operand)
        match pattern:
            case Op():
                producer = self.graph.producer(operand) if isinstance(operand, str) else None
                if producer is None:
                    return self.miss(depth, at, f"no node produces it, wanted {pattern.op}")
                if producer.outputs[pattern.output % len(producer.outputs)].name != operand:
                    return self.miss(
                        depth, at, f"is another output of {producer.op}, wanted number {pattern.output}"
                    )
                yield from self.node(pattern, producer, bound)
                return
            case Number():
                if not self.is_number(pattern, operand):
                    return self.miss(
                        depth,
                        at,
                        f"is not the number {pattern.value}"
                        if pattern.value is not None
                        else "is not a number",
                    )
            case Any():
                if operand is None and not pattern.optional:
                    return self.miss(depth, at, f"operand {pattern.name!r} is absent")
                if pattern.kind and operand is not None and not self.is_kind(pattern.kind, operand):
                    return self.miss(depth, at, f"{pattern.name!r} is no {pattern.kind}")
        if not pattern.name:
            yield bound
        elif pattern.name not in bound.captures:
            yield _Bindings({**bound.captures, pattern.name: operand}, bound.named, bound.nodes)
        elif Attrs({"": bound.captures[pattern.name]}) == Attrs({"": operand}):
            yield bound
        else:
            self.miss(depth, at, f"{pattern.name!r} was {bound.captures[pattern.name]!r} before")

    def is_number(self, pattern: Number, operand: Input) -> bool:
        literal = self.graph.literal(operand)
        if literal is None or not literal.size or not (literal.dtype.is_float or literal.dtype.is_integer):
            return False
        values = literal.numpy().astype(float).ravel()
        first = float(values[0])
        if not all(v == first for v in values):
            return False
        return pattern.value is None or math.isclose(first, pattern.value, rel_tol=pattern.rtol)

    def is_kind(self, kind: str, operand: Input) -> bool:
        match kind:
            case "weight":
                return operand in self.graph.weight_names
            case "node":
                return isinstance(operand, str) and self.graph.producer(operand) is not None
            case "number":
                return self.graph.literal(operand) is not None
            case "input":
                return any(v.name == operand for v in self.graph.inputs)
            case _:
                raise ValueError(f"unknown kind {kind!r}")
