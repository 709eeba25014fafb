"""Graph: a model as immutable data. Values have names and specs; nodes are in topological order, each value is made once.

Nothing here knows an op: rules of ops live in the op table (``ops``), laws of graphs in ``verify``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from os import PathLike
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from ..errors import IrError
from ..types import Dim, TensorSpec
from .attributes import Attrs, Body, Const

if TYPE_CHECKING:
    from .rewrite import Editor

__all__ = ["Graph", "Input", "Node", "Output", "Source", "State", "Value", "Weight"]

Input: TypeAlias = "str | bool | int | float | None"
"""An operand of a node: a value's name, an immediate number, or None where an optional operand is absent."""


@dataclass(frozen=True, slots=True)
class Value:
    """A name and what it stands for. ``spec`` None: unknown (a result of an opaque op that is no plain tensor, or of unknown rank)."""

    name: str
    spec: TensorSpec | None

    def __post_init__(self) -> None:
        if self.spec is not None and (
            self.spec.name or self.spec.layout
        ):  # one place for the name; no place for a layout
            object.__setattr__(self, "spec", TensorSpec(self.spec.shape, self.spec.dtype))

    def __str__(self) -> str:
        return f"%{self.name}: {'?' if self.spec is None else self.spec}"


@dataclass(frozen=True, slots=True)
class Source:
    """Where a node comes from in the user's model; every field may be empty.

    name:   the node's name in the model (ONNX node name, FX node name).
    op:     the op as the model calls it: ``Conv``, ``com.microsoft::FusedConv``, ``aten.addmm.default``.
    module: path of the PyTorch module: ``layers.0.attn.q_proj``.
    file, line: the line of Python code.
    """

    name: str = ""
    op: str = ""
    module: str = ""
    file: str = ""
    line: int = 0

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.file else ""
        return (
            " ".join(part for part in (self.name, self.op and f"({self.op})", self.module, place) if part)
            or "?"
        )


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One op applied. ``name`` is its first output's. ``sources``: the model's nodes that it computes; a fused one has several."""

    op: str
    inputs: tuple[Input, ...]
    attrs: Attrs
    outputs: tuple[Value, ...]
    sources: tuple[Source, ...] = ()

    @property
    def name(self) -> str:
        """The first output's name, unique in the graph."""
        return self.outputs[0].name if self.outputs else ""

    @property
    def spec(self) -> TensorSpec:
        """The first output's spec. Raises IrError when it is unknown."""
        return _known(self.outputs[0])

    @property
    def values(self) -> tuple[str, ...]:
        """Names of the values it reads, in order, repetitions included."""
        return tuple(i for i in self.inputs if isinstance(i, str))

    def _key(self) -> tuple[object, ...]:
        # repr keeps 1, 1.0, True and the signs of zero apart, and NaN equal to itself
        return (self.op, repr(self.inputs), self.attrs, self.outputs, self.sources)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Node) and (self is other or self._key() == other._key())

    def __hash__(self) -> int:
        return hash((self.op, self.name))

    def __str__(self) -> str:
        from .text import node_text

        return node_text(self)


@dataclass(frozen=True, slots=True)
class Weight:
    """A constant of the model that lies elsewhere: what it is, and where to load it from.

    file:   path of the file, relative to the graph's own; empty: whoever runs the graph hands the array in by name.
    format: ``safetensors`` (``key`` names the tensor) or ``raw`` (little-endian, dense, at ``offset``).
    digest: sha256 of the elements' bytes (row-major, little-endian) where known.
    """

    value: Value
    file: str = ""
    format: str = ""
    key: str = ""
    offset: int = 0
    digest: str = ""

    @property
    def name(self) -> str:
        """The value's name."""
        return self.value.name

    @property
    def spec(self) -> TensorSpec:
        """The value's spec."""
        return _known(self.value)


@dataclass(frozen=True, slots=True)
class State:
    """A buffer that lives from run to run. Reading ``name`` gives its content at the start of the run.

    init: name of the weight it starts from; None starts from zeros.
    next: value that becomes its content at the end of the run (it may alias the state); None: the run does not change it.
    """

    value: Value
    init: str | None = None
    next: str | None = None

    @property
    def name(self) -> str:
        """The value's name."""
        return self.value.name

    @property
    def spec(self) -> TensorSpec:
        """The value's spec."""
        return _known(self.value)


@dataclass(frozen=True, slots=True)
class Output:
    """One result: the name that the user sees and the value it is."""

    name: str
    value: str


@dataclass(frozen=True)
class Graph(Body):
    """A model. Equal when everything in it is equal; ``str`` gives text that ``ir.parse`` reads back.

    metadata: plain facts about the model (producer, opset ...), attribute values; nothing that changes results.
    """

    name: str
    inputs: tuple[Value, ...]
    outputs: tuple[Output, ...]
    nodes: tuple[Node, ...]
    weights: tuple[Weight, ...] = ()
    states: tuple[State, ...] = ()
    metadata: Attrs = field(default_factory=Attrs)

    # ── values ──

    @cached_property
    def values(self) -> Mapping[str, Value]:
        """Every value by name: inputs, weights, states, results of nodes."""
        found = {v.name: v for v in self.inputs}
        found.update((w.name, w.value) for w in self.weights)
        found.update((s.name, s.value) for s in self.states)
        for node in self.nodes:
            for v in node.outputs:
                found[v.name] = v
        return MappingProxyType(found)

    def spec(self, name: str) -> TensorSpec:
        """A value's spec. Raises IrError for an unknown name, and for a value whose type is not known."""
        value = self.values.get(name)
        if value is None:
            raise IrError(f"graph {self.name!r}", "has no such value", got=repr(name), do="See graph.values.")
        return _known(value)

    @cached_property
    def weight_names(self) -> frozenset[str]:
        """Names of all weights."""
        return frozenset(w.name for w in self.weights)

    @cached_property
    def input_specs(self) -> tuple[TensorSpec, ...]:
        """Specs of the inputs, names included."""
        return tuple(_named(v.name, _known(v)) for v in self.inputs)

    @cached_property
    def output_specs(self) -> tuple[TensorSpec, ...]:
        """Specs of the outputs, under the names that the user sees."""
        return tuple(_named(o.name, self.spec(o.value)) for o in self.outputs)

    @cached_property
    def symbols(self) -> frozenset[str]:
        """Every symbol in any spec, or in an attribute of a node (``dims`` makes a tensor of sizes: its spec has none)."""
        specs = (v.spec.symbols for v in self.values.values() if v.spec is not None)
        return frozenset().union(*specs, *(_symbols(v) for n in self.nodes for v in n.attrs.values()))

    # ── structure ──

    @cached_property
    def _producers(self) -> dict[str, Node]:
        return {v.name: node for node in self.nodes for v in node.outputs}

    @cached_property
    def _users(self) -> dict[str, tuple[Node, ...]]:
        users: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(node.values):
                users.setdefault(name, []).append(node)
        return {name: tuple(nodes) for name, nodes in users.items()}

    @cached_property
    def position(self) -> Mapping[str, int]:
        """Place of each node in ``nodes``, by the node's name."""
        return MappingProxyType({node.name: i for i, node in enumerate(self.nodes)})

    def producer(self, value: str) -> Node | None:
        """The node that makes a value; None for inputs, weights and states."""
        return self._producers.get(value)

    def node(self, name: str) -> Node:
        """The node that makes the value of this name. Raises IrError when none does."""
        found = self._producers.get(name)
        if found is None:
            raise IrError(f"graph {self.name!r}", "has no node that makes this value", got=repr(name))
        return found

    def users(self, value: str) -> tuple[Node, ...]:
        """The nodes that read a value, in order, each once."""
        return self._users.get(value, ())

    @cached_property
    def kept(self) -> frozenset[str]:
        """Values that leave the graph: outputs and next contents of states."""
        return frozenset(
            [*(o.value for o in self.outputs), *(s.next for s in self.states if s.next is not None)]
        )

    def only_user(self, value: str) -> Node | None:
        """The one node that reads a value that does not leave the graph; None otherwise."""
        users = self._users.get(value, ())
        return users[0] if len(users) == 1 and value not in self.kept else None

    def literal(self, operand: Input) -> Const | None:
        """A value that is known here: an immediate number or a ``constant`` node's tensor; None otherwise."""
        if operand is None:
            return None
        if not isinstance(operand, str):
            return Const(operand)
        producer = self._producers.get(operand)
        if producer is not None and producer.op == "constant":
            value: Const = producer.attrs["value"]
            return value
        return None

    def __getstate__(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}  # caches are made anew

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    def __len__(self) -> int:
        return len(self.nodes)

    # ── whole graph ──

    def subgraph(self, nodes: Iterable[Node], name: str = "") -> Graph:
        """Some of the nodes as a graph of their own: values from outside become inputs (weights stay weights), values
        that are read outside or leave this graph become outputs. Raises IrError when the nodes read a state.
        """
        chosen = {n.name for n in nodes}
        inside = tuple(n for n in self.nodes if n.name in chosen)
        made = {v.name for n in inside for v in n.outputs}
        read = dict.fromkeys(v for n in inside for v in n.values if v not in made)
        stateful = [s.name for s in self.states if s.name in read]
        if stateful:
            raise IrError(
                f"graph {self.name!r}", "a region with states cannot be cut out", got=", ".join(stateful)
            )
        leaving = [
            v.name
            for n in inside
            for v in n.outputs
            if v.name in self.kept or any(u.name not in chosen for u in self.users(v.name))
        ]
        return Graph(
            name or self.name,
            tuple(self.values[v] for v in read if v not in self.weight_names),
            tuple(Output(v, v) for v in leaving),
            inside,
            tuple(w for w in self.weights if w.name in read),
            (),
            self.metadata,
        )

    def rewrite(self, rule: Callable[[Editor, Node], None]) -> Graph:
        """The graph after ``rule`` saw every node in order with an Editor; dead nodes and unread weights are dropped."""
        from .rewrite import Editor

        editor = Editor(self)
        for node in self.nodes:
            if editor.alive(node):
                rule(editor, editor.current(node))
        return editor.done()

    def replace(self, **changes: Any) -> Graph:
        """A copy with some fields changed."""
        return replace(self, **changes)

    @cached_property
    def digest(self) -> str:
        """sha256 of the canonical JSON form: equal for equal graphs."""
        from .serial import to_bytes

        return hashlib.sha256(to_bytes(self)).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Plain data; ``Graph.from_json`` gives an equal graph back."""
        from .serial import to_json

        return to_json(self)

    @staticmethod
    def from_json(data: Any) -> Graph:
        """The inverse of ``to_json``. Raises FormatError."""
        from .serial import from_json

        return from_json(data)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the graph as JSON, whole or not at all. Raises StoreError."""
        from .serial import save

        save(self, path)

    @staticmethod
    def load(path: str | PathLike[str]) -> Graph:
        """Read what ``save`` wrote. Raises FormatError."""
        from .serial import load

        return load(path)

    def __str__(self) -> str:
        from .text import graph_text

        return graph_text(self)


def _symbols(value: object) -> frozenset[str]:
    """Symbols in an attribute."""
    if isinstance(value, Dim | Graph):
        return value.symbols
    if isinstance(value, tuple):
        return frozenset().union(*map(_symbols, value))
    return frozenset()


def _known(value: Value) -> TensorSpec:
    if value.spec is None:
        raise IrError(
            f"value %{value.name}",
            "has no known tensor type (it comes from an opaque op)",
            do="Let an engine that knows the op take its users too.",
        )
    return value.spec


def _named(name: str, spec: TensorSpec) -> TensorSpec:
    return TensorSpec(spec.shape, spec.dtype, name)
