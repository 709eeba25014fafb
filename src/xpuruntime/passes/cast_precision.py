"""cast_precision: store float32 values in a narrower type between kernels, as the context's ``storage`` decides per node.

Inputs, outputs and states keep their types; casts are inserted where types differ. Weights are cast as recipes. Kernels compute in
float32 regardless of the storage type (statistics of norms and softmax, sums of products), so a value is rounded once per kernel.
Chains of elementwise nodes, which become one kernel, stay in float32 between a cast up and a cast down.

Only the op families in ``FAMILIES`` are narrowed. These values stay in float32:
- Values computed from integers alone (positions, counts, masks), as in PyTorch's ``half()``: a rounded position is wrong.
- Scores among which the model chooses (experts, boxes), back to the product that computes them: rounding may change the choice.
- Nodes whose operands must differ in type.
"""

from __future__ import annotations

from typing import Any

from ..errors import IrError
from ..ir import OPS, Graph, Node, Output, State, Value, family_of
from ..ir.nodes import make_node
from ..types import DType
from ._lib.expand_scatter import reduces
from ._lib.known import known_values
from .context import PassContext

__all__ = ["FAMILIES", "run"]

FAMILIES = frozenset(
    [
        "conv", "matmul", "attention", "rope", "norm", "softmax", "activation", "elementwise", "pool", "reduce", "data_movement",
        "embedding", "resize",
    ]
)  # fmt: skip
"""Op families whose values may be stored narrow."""

_ARITHMETIC = frozenset(["elementwise", "activation", "reduce", "data_movement", "create", "search"])
"""Families whose results stay in float32 if they are computed from integers."""
_CHOICES = frozenset(["argmax", "argmin", "sort", "topk"])
_LAYERS = frozenset(["attention", "conv", "embedding", "matmul", "norm", "rope"])
_COLUMNS = 1024
"""Maximum columns of a weight for which a product that feeds a choice is computed in float32."""
_STAY = frozenset(
    ["cast", "bitcast", "sin", "cos", "cumsum", "cumprod", "prod", "cdist", "pdist", "constant", "full"]
)


def run(graph: Graph, context: PassContext | None = None) -> Graph:
    """Return the graph with values stored in the narrow types that the context demands."""
    context = context or PassContext()
    known = known_values(graph)
    stay = known | _of_integers(graph) | _scores(graph, known)
    narrow_types = {
        n.name: dtype
        for n in graph.nodes
        if n.name not in stay and (dtype := _wanted(n, context)) is not None
    }
    return _PrecisionCaster(graph, narrow_types).done() if narrow_types else graph


def _of_integers(graph: Graph) -> frozenset[str]:
    """Return float results that are computed from integers and numbers alone, by arithmetic and data movement."""
    exact: set[str] = set()
    for node in graph.nodes:
        if family_of(node) not in _ARITHMETIC or OPS[node.op].random:
            continue
        if all(v in exact or _is_exact(graph, v) for v in node.values):
            exact.update(v.name for v in node.outputs)
    return frozenset(exact)


def _scores(graph: Graph, known: frozenset[str]) -> frozenset[str]:
    """Return float results that determine a choice, from the choice back to a product or to a value that other layers read."""
    deciding = {v for node in graph.nodes if node.op in _CHOICES for v in node.values}
    stream = {v for node in graph.nodes if family_of(node) in _LAYERS for v in node.values}
    scores: set[str] = set()
    for node in reversed(graph.nodes):
        results = {v.name for v in node.outputs}
        if not results & deciding or results & stream:
            continue
        if family_of(node) == "matmul":
            if _is_small(node, known):
                scores |= results
        elif family_of(node) in _ARITHMETIC | {"softmax"}:
            scores |= results
            deciding.update(node.values)
    return frozenset(scores)


def _is_small(node: Node, known: frozenset[str]) -> bool:
    """Return whether float32 costs a product little: it has no weight, or few columns. Vocabulary scores stay narrow."""
    spec = node.outputs[0].spec
    columns = None if spec is None or not spec.shape else spec.shape[-1]
    return not any(v in known for v in node.values) or (isinstance(columns, int) and columns <= _COLUMNS)


def _is_exact(graph: Graph, value: str) -> bool:
    spec = graph.values[value].spec
    return spec is not None and not (spec.dtype.is_float or spec.dtype.is_complex)


def _wanted(node: Node, context: PassContext) -> DType | None:
    if node.op in _STAY or node.op == "opaque" or family_of(node) not in FAMILIES or reduces(node) != "none":
        return None
    floats = [v.spec.dtype for v in node.outputs if v.spec is not None and v.spec.dtype.is_float]
    if not floats or any(d is not DType.FLOAT32 for d in floats):
        return None
    dtype = context.storage(node)
    return None if dtype is DType.FLOAT32 else dtype


class _PrecisionCaster:
    """Rebuilds the graph. Every value exists in its own type and, if read so, in another."""

    def __init__(self, graph: Graph, narrow_types: dict[str, DType]) -> None:
        self.graph, self.narrow_types = graph, narrow_types
        self.wide: dict[str, str] = {}  # elementwise result -> the float32 value before its cast down
        self.nodes: list[Node] = []
        self.values: dict[str, Value] = {
            v.name: v
            for v in (*graph.inputs, *(w.value for w in graph.weights), *(s.value for s in graph.states))
        }
        self.names = {*graph.values, *graph.former_names}
        self.versions: dict[tuple[str, DType], str] = {}

    def done(self) -> Graph:
        for node in self.graph.nodes:
            if not (node.name in self.narrow_types and self.narrow(node, self.narrow_types[node.name])):
                self.keep(node)
        outputs = tuple(Output(o.name, self.original(o.value)) for o in self.graph.outputs)
        states = tuple(State(s.value, s.init, s.next and self.original(s.next)) for s in self.graph.states)
        return self.graph.replace(nodes=tuple(self.nodes), outputs=outputs, states=states)

    def keep(self, node: Node) -> None:
        """Add the node in its own types."""
        inputs = tuple(self.original(i) if isinstance(i, str) else i for i in node.inputs)
        self.add(Node(node.op, inputs, node.attrs, node.outputs, node.sources))

    def narrow(self, node: Node, dtype: DType) -> bool:
        """Add the node with narrow operands. Return False if its op does not support them."""
        if OPS[node.op].pointwise and len(node.outputs) == 1:
            self.between(node, dtype)
            return True
        count = len(self.nodes)
        inputs = tuple(self.version(i, dtype) if isinstance(i, str) else i for i in node.inputs)
        try:
            replacement = _narrow_node(node, inputs, dtype, self.values)
        except IrError:
            del self.nodes[count:]
            self.versions = {k: v for k, v in self.versions.items() if v in self.values}
            return False
        self.add(replacement)
        return True

    def between(self, node: Node, dtype: DType) -> None:
        """Add an elementwise node in float32, and the cast of its result."""
        name = self.fresh(f"{node.name}_float32")
        inputs = tuple(self.float32_operand(i) if isinstance(i, str) else i for i in node.inputs)
        value = Value(name, self.graph.spec(node.name))
        self.add(Node(node.op, inputs, node.attrs, (value,), node.sources))
        self.add(make_node("cast", (name,), {"dtype": dtype}, lambda count: [node.name], self.values))
        self.wide[node.name] = name

    def float32_operand(self, value: str) -> str:
        """Return an operand of an elementwise node: the float32 value before its cast down if nothing else reads the cast. Both then become one kernel."""
        if value in self.wide and self.graph.only_user(value) is not None:
            return self.wide[value]
        return self.original(value)

    def fresh(self, name: str) -> str:
        while name in self.names:
            name += "_"
        self.names.add(name)
        return name

    def add(self, node: Node) -> None:
        self.nodes.append(node)
        self.values.update((v.name, v) for v in node.outputs)

    def original(self, value: str) -> str:
        """Return the value in the type that it has in the old graph."""
        spec = self.graph.values[value].spec
        return (
            value
            if spec is None or self.values[value].spec is None
            else self.version(value, spec.dtype, any_float=True)
        )

    def version(self, value: str, dtype: DType, *, any_float: bool = False) -> str:
        """Return a float32 value in another type, cast once. Values of other types stay."""
        spec, own = self.values[value].spec, self.graph.values[value].spec
        if spec is None or own is None or spec.dtype is dtype:
            return value
        if not any_float and own.dtype is not DType.FLOAT32:
            return value
        key = (value, dtype)
        if key not in self.versions:
            name = self.fresh(f"{value}_{dtype.value}")
            self.add(make_node("cast", (value,), {"dtype": dtype}, lambda count: [name], self.values))
            self.versions[key] = name
        return self.versions[key]


def _narrow_node(node: Node, inputs: tuple[Any, ...], dtype: DType, values: dict[str, Value]) -> Node:
    """Return the node with narrow operands. Raise IrError if the op does not support them, or infers another type."""
    attrs = dict(node.attrs)
    if attrs.get("dtype") is DType.FLOAT32:
        attrs["dtype"] = dtype
    replacement = make_node(
        node.op,
        inputs,
        attrs,
        lambda count: [v.name for v in node.outputs],
        values,
        outputs=len(node.outputs),
        sources=node.sources,
    )
    for old, new in zip(node.outputs, replacement.outputs, strict=True):
        expected = (
            dtype if old.spec is not None and old.spec.dtype is DType.FLOAT32 else old.spec and old.spec.dtype
        )
        if (
            new.spec is None
            or old.spec is None
            or new.spec.dtype is not expected
            or new.spec.shape != old.spec.shape
        ):
            raise IrError(f"cast of %{node.name}", "has another result type", got=new)
    return replacement
