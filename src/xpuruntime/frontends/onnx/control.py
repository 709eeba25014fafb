"""Control flow: If, Loop and Scan become ``cond`` and ``loop`` nodes, whose bodies are graphs.

A body that reads a name of an enclosing graph gets an input for it, and the node an operand; constants are copied into the body.
Initializers of a body become weights of the model. Scan becomes a loop that selects a slice of each scanned operand.

A size that a loop changes becomes a symbol of its body: the body is lowered again until the sizes agree. ``MAX_NODES`` bounds that work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...ir import Graph, find_op
from ...ir.attributes import MAX_NESTED
from ...ir.graph import Output, Value
from ...ir.infer import infer
from ...types import Dim, DimLike, DType, TensorSpec
from ..builder import ImportBuilder
from ..not_lowered import NotLowered
from .nodes import attributes, version
from .scope import Scope
from .values import OnnxValues

__all__ = ["BodyValues", "lower_control", "rank_of"]

MAX_NODES = 200_000
"""Nodes of bodies that one import lowers, repetitions included."""
_ROUNDS = 8
_BRANCHES = ("then_branch", "else_branch")
_SCAN = 9  # the opset in which Scan lost its batch axis

LowerNodes = Callable[["BodyValues", Sequence[Any], Scope], None]
"""Lowers nodes into the values of a body."""


class _Impossible(NotLowered):
    """A body cannot run for the sizes that its operands have."""


class BodyValues(OnnxValues):
    """Values of a body while it is lowered. ``captures``: values of the enclosing graph, and the inputs that hold them."""

    def __init__(self, parent: OnnxValues, scope: Scope, name: str) -> None:
        self.b = ImportBuilder(name, parent.b.reserved, parent.b)
        self.types, self.path, self.folder, self.offsets = (
            parent.types,
            parent.path,
            parent.folder,
            parent.offsets,
        )
        self.known, self.weight_tensors, self.unknown = {}, {}, {}
        self.impossible = set()
        self.deciding = parent.deciding
        self.parent, self.captures = parent, dict[str, str]()
        self.level: int = getattr(parent, "level", 0) + 1
        self._outside: set[int] = set()
        outer: Scope | None = scope
        while outer is not None:
            self._outside.add(id(outer))
            outer = outer.parent

    def value(self, name: str, scope: Scope) -> str:
        """Return the value of an ONNX name; one of an enclosing graph is captured."""
        holder = scope.holder(name)
        if holder is not None and id(holder) in self._outside:
            return self.capture(self.parent.value(name, holder))
        return super().value(name, scope)

    def capture(self, outer: str) -> str:
        """Return the input for a value of the enclosing graph, or a copy of a constant."""
        inner = self.captures.get(outer)
        if inner is not None and inner in self.b.values:
            return inner
        spec, content = self.parent.b.values[outer].spec, self.parent.content(outer)
        if spec is None:
            raise NotLowered("its body reads a value whose type or rank is known only at run time")
        inner = outer if outer not in self.b.values else self.b.fresh("captured")
        if content is not None and content.dtype != object and outer not in self.parent.weight_tensors:
            with self.b.source():
                self.b.constant(content, name=inner)
        else:
            self.b.input(inner, spec)
        if content is not None:
            self.known[inner] = content
        self.captures[outer] = inner
        return inner

    def undo(self, mark: Any) -> None:
        super().undo(mark)
        self.b.inputs = [v for v in self.b.inputs if v.name in self.b.values]

    def roots(self, value: str) -> frozenset[str]:
        """Return the model's inputs that a value depends on."""
        outer = {inner: name for name, inner in self.captures.items()}
        mine = super().roots(value)
        return frozenset().union(*(self.parent.roots(outer[v]) for v in mine if v in outer))

    def weight(self, name: str, spec: TensorSpec, tensor: Any, *, stored: bool) -> str:
        """Make an initializer of the body a weight of the model, and capture it."""
        outer = self.parent.b.fresh("weight") if name in self.parent.b.values else name
        return self.capture(self.parent.weight(outer, spec, tensor, stored=False))

    def graph(self, inputs: Sequence[str], outputs: Sequence[str], captured: Sequence[str]) -> Graph:
        """Return the body with its own inputs, then one per captured value of the node."""
        values = [self.b.values[i] for i in inputs]
        for outer in captured:
            inner = self.captures.get(outer)
            if inner is None or inner not in {v.name for v in self.b.inputs}:
                inner = outer if outer not in self.b.values else self.b.fresh("unused")
                self.b.values[inner] = Value(inner, self.parent.b.spec(outer))
            values.append(self.b.values[inner])
        read = {i for n in self.b.nodes for i in n.inputs} | set(outputs)
        nodes = tuple(n for n in self.b.nodes if n.op != "constant" or n.name in read)
        results = tuple(Output(f"{i}", v) for i, v in enumerate(outputs))
        return Graph(self.b.name, tuple(values), results, nodes)

    def read(self) -> list[str]:
        """Return the captured values that the body reads as inputs."""
        inputs = {v.name for v in self.b.inputs}
        read = {i for n in self.b.nodes for i in n.inputs} | {o.value for o in self.b.outputs}
        return [outer for outer, inner in self.captures.items() if inner in inputs and inner in read]


@dataclass(slots=True)
class _Site:
    """A node with bodies: its values and scope, and how bodies are lowered."""

    node: Any
    values: OnnxValues
    scope: Scope
    lower: LowerNodes
    budget: list[int]

    @property
    def b(self) -> ImportBuilder:
        return self.values.b

    def operand(self, position: int) -> str | None:
        """Return an operand; None if it is absent."""
        name = self.node.input[position] if position < len(self.node.input) else ""
        return self.values.value(name, self.scope) if name else None

    def spec(self, value: str) -> TensorSpec:
        spec = self.b.values[value].spec
        if spec is None:
            raise NotLowered("it reads a value whose type or rank is known only at run time")
        return spec

    def scalar(self, value: str) -> str:
        """Return a value of one element without dims."""
        return value if not self.spec(value).rank else str(self.b.view(value, size=[]))

    def open(self, graph: Any) -> tuple[BodyValues, Scope]:
        """Return empty values for a body and the scope of its names. Raise NotLowered if bodies are too deep or too many."""
        body = BodyValues(self.values, self.scope, graph.name or "body")
        if body.level > MAX_NESTED:
            raise NotLowered(f"control flow is nested more than {MAX_NESTED} levels deep")
        self.budget[0] -= len(graph.node) + 1
        if self.budget[0] < 0:
            raise NotLowered(f"its bodies have more than {MAX_NODES:,} nodes")
        inner = Scope.of_graph(graph, self.scope.opsets, self.scope)
        inner.source = None
        return body, inner

    def fill(self, body: BodyValues, graph: Any, inner: Scope) -> list[str]:
        """Lower the nodes of a body and return its results. Raise NotLowered if a node has no form in the IR."""
        self.lower(body, graph.node, inner)
        results = [body.value(o.name, inner) for o in graph.output]
        for node in body.b.nodes:
            if node.op == "opaque":
                text = f"its body has {node.attrs['op_type']}, {node.attrs['reason']}"
                raise (_Impossible if node.name in body.impossible else NotLowered)(text)
        for value in results:
            if body.b.values[value].spec is None:
                raise NotLowered("a result of its body has a type or rank that is known only at run time")
            body.b.output(f"{len(body.b.outputs)}", value)
        return results

    def emit(self, op: str, operands: Sequence[str | None], **attrs: Any) -> list[str]:
        """Append the node, with a symbol for each size that is known only at run time. Return its results."""
        bodies = [v for v in attrs.values() if isinstance(v, Graph)]
        ranks = sum(s.rank for s in bodies[0].output_specs) + len(bodies[0].outputs)
        specs = [None if o is None else self.spec(o) for o in operands]
        fresh = self.b.sizes(ranks)
        own = {s for d in fresh for s in d.symbols}
        trial = infer(find_op(op), specs, {**attrs, "sizes": _enough(op, specs, attrs, fresh)})
        sizes = [d if isinstance(d, Dim) and d.symbols <= own else 0 for s in trial for d in s.shape]
        results = self.b.call(op, *operands, **attrs, sizes=sizes if any(d != 0 for d in sizes) else [])
        return [results] if isinstance(results, str) else list(results)


def _enough(op: str, specs: Sequence[Any], attrs: dict[str, Any], fresh: Sequence[Dim]) -> list[DimLike]:
    """Return as many symbols as the results have dims."""
    body: Graph = attrs["then_branch" if op == "cond" else "body"]
    results = body.output_specs
    if op == "cond":
        return list(fresh[: sum(s.rank for s in results)])
    results = results[1:] if attrs["checked"] else results
    carried = attrs["carried"]
    count = sum(s.rank for s in results[:carried]) + sum(s.rank + 1 for s in results[carried:])
    return list(fresh[:count])


def lower_control(
    node: Any, values: OnnxValues, scope: Scope, lower: LowerNodes, budget: list[int]
) -> list[str]:
    """Append the nodes of an If, Loop or Scan and return its results. Raise NotLowered, IrError."""
    if node.op_type == "Scan" and scope.opsets.get("", 1) < _SCAN:
        node, scope = _batched(node), replace(scope, opsets={**scope.opsets, "": _SCAN})
    site = _Site(node, values, scope, lower, budget)
    return {"If": _if, "Loop": _loop, "Scan": _scan}[node.op_type](site)


def _if(site: _Site) -> list[str]:
    condition = site.operand(0)
    if condition is None:
        raise NotLowered("its condition is absent")
    graphs = attributes(site.node)
    bodies: list[tuple[BodyValues, list[str]]] = []
    impossible: dict[int, _Impossible] = {}
    for at, name in enumerate(_BRANCHES):
        body, inner = site.open(graphs[name])
        try:
            results = site.fill(body, graphs[name], inner)
        except _Impossible as no:
            impossible[at], results = no, []
        bodies.append((body, results))
    if len(impossible) == len(_BRANCHES):
        raise impossible[0]
    for at, why in impossible.items():
        bodies[at] = _failing(site, graphs[_BRANCHES[at]], why, *bodies[1 - at])
    captured = list(dict.fromkeys(v for body, _ in bodies for v in body.read()))
    then, other = (body.graph((), results, captured) for body, results in bodies)
    return site.emit("cond", [site.scalar(condition), *captured], then_branch=then, else_branch=other)


def _failing(
    site: _Site, graph: Any, no: _Impossible, other: BodyValues, results: Sequence[str]
) -> tuple[BodyValues, list[str]]:
    """Return a body that fails, with the other branch's types, for a branch that the sizes of the operands rule out. Raise ``no``
    if the types have open sizes.
    """
    body, _ = site.open(graph)
    specs = [other.b.spec(value) for value in results]
    if any(not s.is_static for s in specs):
        raise no
    reason = f"the branch {graph.name!r} cannot run for inputs of these sizes: {no.reason}"
    return body, [str(body.b.fail(size=s.shape, dtype=s.dtype, reason=reason)) for s in specs]


def _shaped(site: _Site, body: BodyValues, value: str, declared: Any) -> str:
    """Return a value without dims in the rank that the body declares for it: 0 or 1."""
    shape = declared.type.tensor_type
    one = shape.HasField("shape") and len(shape.shape.dim) == 1
    return str(body.b.view(value, size=[1])) if one else value


def _loop(site: _Site) -> list[str]:
    graph = attributes(site.node)["body"]
    limit, condition = site.operand(0), site.operand(1)
    initial = [site.operand(i) for i in range(2, len(site.node.input))]
    if len(graph.input) != 2 + len(initial) or len(graph.output) < 1 + len(initial):
        raise NotLowered(
            f"its body has {len(graph.input)} inputs and {len(graph.output)} outputs for {len(initial)} carried values"
        )
    known = None if condition is None else site.values.content(condition)
    if known is not None and bool(known.reshape(-1)[0]):
        condition = None

    def start(body: BodyValues, inner: Scope, carried: Sequence[str]) -> None:
        inner.values[graph.input[0].name] = _shaped(site, body, "iteration", graph.input[0])
        going = np.ones([1] * rank_of(graph.input[1]), np.bool_)
        name = str(body.b.constant(going))
        body.known[name] = going
        inner.values[graph.input[1].name] = name
        for formal, value in zip(graph.input[2:], carried, strict=True):
            inner.values[formal.name] = value

    trips, count = _trips(site, limit)
    return _repeated(site, graph, initial, start, True, trips, count, condition)


def rank_of(declared: Any) -> int:
    """Return the rank of a condition or iteration number as a body declares it: 0 or 1."""
    shape = declared.type.tensor_type
    return min(len(shape.shape.dim), 1) if shape.HasField("shape") else 0


def _trips(site: _Site, limit: str | None) -> tuple[DimLike | None, str | None]:
    """Return the number of iterations, as a dim if it is known, else as a value."""
    if limit is None:
        return None, None
    content = site.values.content(limit)
    if content is None or content.size != 1:
        site.values.deciding |= site.values.roots(limit)
        return None, site.scalar(limit)
    number = content.reshape(-1)[0]
    return (number if isinstance(number, Dim) else max(int(number), 0)), None


Start = Callable[[BodyValues, Scope, Sequence[str]], None]
"""Binds the formal inputs of a body: the values that it carries, and what else the loop gives it."""


def _repeated(
    site: _Site,
    graph: Any,
    initial: Sequence[str | None],
    start: Start,
    decides: bool,
    trips: DimLike | None,
    count: str | None,
    condition: str | None,
) -> list[str]:
    """Append a loop. ``decides``: whether the first output of the body is its condition."""
    operands = [v for v in initial if v is not None]
    if len(operands) != len(initial):
        raise NotLowered("a carried value is absent")
    shapes: list[list[DimLike]] = [list(site.spec(v).shape) for v in operands]
    dtypes = [site.spec(v).dtype for v in operands]
    opened: set[tuple[int, int]] = set()
    for attempt in range(_ROUNDS):
        body, inner = site.open(graph)
        body.b.input("iteration", TensorSpec((), DType.INT64))
        carried = []
        for at, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True)):
            name = body.b.fresh(f"carried{at}")
            body.b.input(name, TensorSpec(tuple(shape), dtype))
            carried.append(name)
        start(body, inner, carried)
        results = site.fill(body, graph, inner)
        going = body.content(results[0]) if decides else np.True_
        checked = going is None or not bool(np.reshape(going, -1)[0])
        first = int(decides)
        changed = _changed(body, results[first : first + len(carried)], shapes, dtypes, opened)
        if not changed:
            break
        for at, axes in changed.items():
            free = [a for a in range(len(shapes[at])) if (at, a) not in opened] if attempt > 1 else axes
            for axis, symbol in zip(free, site.b.sizes(len(free)), strict=True):
                shapes[at][axis] = symbol
                opened.add((at, axis))
    else:
        raise NotLowered("the sizes of its carried values do not settle")
    if checked:
        results[0] = results[0] if not body.b.spec(results[0]).rank else str(body.b.view(results[0], size=[]))
    else:
        results = results[first:]
        if trips is None and count is None:
            raise NotLowered("it never ends")
    captured = body.read()
    return site.emit(
        "loop",
        [count, condition, *operands, *captured],
        body=body.graph(["iteration", *carried], results, captured),
        carried=len(carried),
        trips=trips,
        checked=checked,
    )


def _changed(
    body: BodyValues,
    results: Sequence[str],
    shapes: Sequence[Sequence[DimLike]],
    dtypes: Sequence[DType],
    opened: set[tuple[int, int]],
) -> dict[int, list[int]]:
    """Return the axes of carried values whose sizes differ after an iteration, without those in ``opened``."""
    changed: dict[int, list[int]] = {}
    for at, (value, shape, dtype) in enumerate(zip(results, shapes, dtypes, strict=True)):
        spec = body.b.spec(value)
        if spec.dtype is not dtype or spec.rank != len(shape):
            raise NotLowered("a carried value changes its type or rank")
        axes = [
            axis
            for axis, (before, after) in enumerate(zip(shape, spec.shape, strict=True))
            if before != after and (at, axis) not in opened
        ]
        if axes:
            changed[at] = axes
    return changed


def _scan(site: _Site) -> list[str]:
    attrs = attributes(site.node)
    graph, scanned = attrs["body"], int(attrs["num_scan_inputs"])
    states = len(site.node.input) - scanned
    outputs = len(graph.output) - states
    if scanned < 1 or states < 0 or outputs < 0 or len(graph.input) != states + scanned:
        raise NotLowered("its body does not have an input for each state and scanned operand")
    axes = _per(attrs, "scan_input_axes", scanned)
    backward = _per(attrs, "scan_input_directions", scanned)
    sources = [site.operand(states + i) for i in range(scanned)]
    length: DimLike | None = None
    scanned_axes: list[tuple[str, int]] = []
    for source, axis in zip(sources, axes, strict=True):
        if source is None:
            raise NotLowered("a scanned operand is absent")
        spec = site.spec(source)
        if not -spec.rank <= axis < spec.rank:
            raise NotLowered(f"axis {axis} is outside rank {spec.rank}")
        scanned_axes.append((source, axis % spec.rank))
        size = spec.shape[axis]
        length = size if length is None or not isinstance(length, int) else length

    def start(body: BodyValues, inner: Scope, carried: Sequence[str]) -> None:
        for formal, value in zip(graph.input, carried, strict=False):
            inner.values[formal.name] = value
        last: str | None = None
        for formal, (source, axis), reverse in zip(graph.input[states:], scanned_axes, backward, strict=True):
            at = "iteration"
            if reverse:
                assert length is not None
                last = last or _number(body, length - 1)
                at = str(body.b.sub(last, at))
            inner.values[formal.name] = str(body.b.index_select(body.capture(source), at, dim=axis))

    initial = [site.operand(i) for i in range(states)]
    results = _repeated(site, graph, initial, start, False, length, None, None)
    turned = zip(
        results[states:],
        _per(attrs, "scan_output_axes", outputs),
        _per(attrs, "scan_output_directions", outputs),
        strict=True,
    )
    return [
        *results[:states],
        *(_turned(site, value, axis, bool(reverse)) for value, axis, reverse in turned),
    ]


def _batched(node: Any) -> Any:
    """Return a Scan of opset 8, whose operands have a batch axis, as a Scan over the batch whose body is a Scan. Raise NotLowered."""
    from onnx import NodeProto, helper

    attrs = attributes(node)
    graph, scanned = attrs["body"], int(attrs["num_scan_inputs"])
    if node.input[0]:
        raise NotLowered("Scan of opset 8 with the lengths of sequences is not supported")
    differing = [n.op_type for n in graph.node if version(n.op_type, _SCAN - 1) != version(n.op_type, _SCAN)]
    if differing:
        raise NotLowered(f"opset {_SCAN - 1} defines {differing[0]} differently from opset {_SCAN}")
    names = [f"{name}.batch" for name in (*node.input[1:], *node.output)]
    inputs, outputs = names[: len(node.input) - 1], names[len(node.input) - 1 :]
    inner = helper.make_node(
        "Scan", inputs, outputs, name=node.name, body=graph, num_scan_inputs=scanned,
        **({"scan_input_directions": attrs["directions"]} if "directions" in attrs else {}),
    )  # fmt: skip
    infos = [[helper.make_empty_tensor_value_info(n) for n in group] for group in (inputs, outputs)]
    outer = NodeProto()
    outer.CopyFrom(node)
    del outer.attribute[:], outer.input[:]
    outer.input.extend(node.input[1:])
    body = helper.make_graph([inner], f"{graph.name}.batch", *infos)
    outer.attribute.append(helper.make_attribute("body", body))
    outer.attribute.append(helper.make_attribute("num_scan_inputs", len(inputs)))
    return outer


def _per(attrs: dict[str, Any], name: str, count: int) -> list[int]:
    values = [int(v) for v in attrs.get(name, [0] * count)]
    if len(values) != count:
        raise NotLowered(f"{name} has {len(values)} numbers for {count}")
    return values


def _number(body: BodyValues, value: DimLike) -> str:
    """Return an int64 value without dims."""
    if isinstance(value, int):
        return str(body.b.constant(np.array(value, np.int64)))
    return str(body.b.view(body.b.dims(values=[value]), size=[]))


def _turned(site: _Site, value: str, axis: int, reverse: bool) -> str:
    """Return stacked results in the direction and along the axis that the node names."""
    rank = site.spec(value).rank
    if not -rank <= axis < rank:
        raise NotLowered(f"axis {axis} is outside rank {rank}")
    if reverse:
        value = str(site.b.flip(value, dims=[0]))
    if axis % rank:
        order = list(range(1, rank))
        order.insert(axis % rank, 0)
        value = str(site.b.permute(value, dims=order))
    return value
