"""cast_precision: float32 values are kept in a narrower type between kernels, as the context's ``storage`` says per node.

Inputs, outputs and states keep their types; casts stand where the types meet. Weights are cast as recipes. Kernels compute in float32 whatever
the storage (statistics of norms and softmax, sums of products), so a value is rounded once per kernel: chains of elementwise nodes, which
become one kernel, stay in float32 between a cast up and a cast down, and their scales and shifts are not rounded at all. Ops of the families below take part;
all others (sampling, tables of angles) stay as they are. So do values that are computed of integers alone (positions, counts, masks), which PyTorch's ``half()``
keeps in float32 too: a rounded one may be another place. So do scores among which the model chooses (experts, boxes), back to the product that makes them:
a rounded score may be another choice. A node whose operands must differ in type stays too.
"""

from __future__ import annotations

from typing import Any

from ..errors import IrError
from ..ir import OPS, Graph, Node, Output, State, Value, family_of
from ..ir.build import make_node
from ..types import DType
from ._lib.context import PassContext
from ._lib.known import known_values

__all__ = ["FAMILIES", "run"]

FAMILIES = frozenset(
    [
        "conv", "matmul", "attention", "rope", "norm", "softmax", "activation", "elementwise", "pool", "reduce", "data_movement",
        "embedding", "resize",
    ]
)  # fmt: skip
"""Op families whose values may be kept narrow."""

_ARITHMETIC = frozenset(["elementwise", "activation", "reduce", "data_movement", "create", "search"])
"""Families that keep what is computed of integers in float32."""
_CHOICES = frozenset(["argmax", "argmin", "sort", "topk"])
_LAYERS = frozenset(["attention", "conv", "embedding", "matmul", "norm", "rope"])
_COLUMNS = 1024
"""Columns of a weight up to which a product whose results are chosen among is computed in float32."""
_STAY = frozenset(["cast", "bitcast", "sin", "cos", "cumsum", "cumprod", "prod", "cdist", "constant", "full"])


def run(graph: Graph, context: PassContext | None = None) -> Graph:
    """The graph with narrow values where the context wants them; itself when it wants none."""
    context = context or PassContext()
    known = known_values(graph)
    stay = known | _of_integers(graph) | _scores(graph, known)
    wanted = {
        n.name: dtype
        for n in graph.nodes
        if n.name not in stay and (dtype := _wanted(n, context)) is not None
    }
    return _PrecisionCaster(graph, wanted).done() if wanted else graph


def _of_integers(graph: Graph) -> frozenset[str]:
    """Float results that are computed of integers and numbers alone by arithmetic and by moving elements."""
    found: set[str] = set()
    for node in graph.nodes:
        if family_of(node) not in _ARITHMETIC or OPS[node.op].random:
            continue
        if all(v in found or _is_exact(graph, v) for v in node.values):
            found.update(v.name for v in node.outputs)
    return frozenset(found)


def _scores(graph: Graph, known: frozenset[str]) -> frozenset[str]:
    """Float results that decide which places are chosen: from the choice back to a product, or to a value that other layers go on with."""
    found = {v for node in graph.nodes if node.op in _CHOICES for v in node.values}
    stream = {v for node in graph.nodes if family_of(node) in _LAYERS for v in node.values}
    scores: set[str] = set()
    for node in reversed(graph.nodes):
        made = {v.name for v in node.outputs}
        if not made & found or made & stream:
            continue
        if family_of(node) == "matmul":
            if _is_small(node, known):
                scores |= made
        elif family_of(node) in _ARITHMETIC | {"softmax"}:
            scores |= made
            found.update(node.values)
    return frozenset(scores)


def _is_small(node: Node, known: frozenset[str]) -> bool:
    """Whether float32 costs a product little: it has no weight, or few columns. Scores of a vocabulary stay narrow."""
    spec = node.outputs[0].spec
    columns = None if spec is None or not spec.shape else spec.shape[-1]
    return not any(v in known for v in node.values) or (isinstance(columns, int) and columns <= _COLUMNS)


def _is_exact(graph: Graph, value: str) -> bool:
    spec = graph.values[value].spec
    return spec is not None and not (spec.dtype.is_float or spec.dtype.is_complex)


def _wanted(node: Node, context: PassContext) -> DType | None:
    if node.op in _STAY or node.op == "opaque" or family_of(node) not in FAMILIES:
        return None
    floats = [v.spec.dtype for v in node.outputs if v.spec is not None and v.spec.dtype.is_float]
    if not floats or any(d is not DType.FLOAT32 for d in floats):
        return None
    dtype = context.storage(node)
    return None if dtype is DType.FLOAT32 else dtype


class _PrecisionCaster:
    """Rebuilds the graph; every value exists in its own type and, where somebody reads it so, in another."""

    def __init__(self, graph: Graph, wanted: dict[str, DType]) -> None:
        self.graph, self.wanted = graph, wanted
        self.wide: dict[str, str] = {}  # elementwise results: the float32 value before its cast down
        self.nodes: list[Node] = []
        self.values: dict[str, Value] = {
            v.name: v
            for v in (*graph.inputs, *(w.value for w in graph.weights), *(s.value for s in graph.states))
        }
        self.names = set(graph.values)
        self.versions: dict[tuple[str, DType], str] = {}

    def done(self) -> Graph:
        for node in self.graph.nodes:
            if not (node.name in self.wanted and self.narrow(node, self.wanted[node.name])):
                self.keep(node)
        outputs = tuple(Output(o.name, self.original(o.value)) for o in self.graph.outputs)
        states = tuple(State(s.value, s.init, s.next and self.original(s.next)) for s in self.graph.states)
        return self.graph.replace(nodes=tuple(self.nodes), outputs=outputs, states=states)

    def keep(self, node: Node) -> None:
        """The node in its own types."""
        inputs = tuple(self.original(i) if isinstance(i, str) else i for i in node.inputs)
        self.add(Node(node.op, inputs, node.attrs, node.outputs, node.sources))

    def narrow(self, node: Node, dtype: DType) -> bool:
        """The node with its float32 operands in the type; False when its op does not take them so."""
        if OPS[node.op].pointwise and len(node.outputs) == 1:
            self.between(node, dtype)
            return True
        count = len(self.nodes)
        inputs = tuple(self.version(i, dtype) if isinstance(i, str) else i for i in node.inputs)
        try:
            made = _made(node, inputs, dtype, self.values)
        except IrError:
            del self.nodes[count:]
            self.versions = {k: v for k, v in self.versions.items() if v in self.values}
            return False
        self.add(made)
        return True

    def between(self, node: Node, dtype: DType) -> None:
        """An elementwise node in float32, and the cast of its result."""
        name = self.fresh(f"{node.name}_float32")
        inputs = tuple(self.wide_operand(i) if isinstance(i, str) else i for i in node.inputs)
        value = Value(name, self.graph.spec(node.name))
        self.add(Node(node.op, inputs, node.attrs, (value,), node.sources))
        self.add(make_node("cast", (name,), {"dtype": dtype}, lambda count: [node.name], self.values))
        self.wide[node.name] = name

    def wide_operand(self, value: str) -> str:
        """An operand of an elementwise node: before its cast down where nobody else reads it, so that both become one kernel."""
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
        """The value in the type that it has in the old graph."""
        spec = self.graph.values[value].spec
        return (
            value
            if spec is None or self.values[value].spec is None
            else self.version(value, spec.dtype, any_float=True)
        )

    def version(self, value: str, dtype: DType, *, any_float: bool = False) -> str:
        """A float32 value in another type, cast once; a value of another type stays."""
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


def _made(node: Node, inputs: tuple[Any, ...], dtype: DType, values: dict[str, Value]) -> Node:
    """The node again over narrow operands. Raises IrError when the op does not take them, or gives something else."""
    attrs = dict(node.attrs)
    if attrs.get("dtype") is DType.FLOAT32:
        attrs["dtype"] = dtype
    made = make_node(
        node.op,
        inputs,
        attrs,
        lambda count: [v.name for v in node.outputs],
        values,
        outputs=len(node.outputs),
        sources=node.sources,
    )
    for old, new in zip(node.outputs, made.outputs, strict=True):
        want = (
            dtype if old.spec is not None and old.spec.dtype is DType.FLOAT32 else old.spec and old.spec.dtype
        )
        if (
            new.spec is None
            or old.spec is None
            or new.spec.dtype is not want
            or new.spec.shape != old.spec.shape
        ):
            raise IrError(f"cast of %{node.name}", "gives another type", got=new)
    return made
