"""Graph: a model as immutable data in SSA form. Values have names and specs, and nodes are in topological order.

This module knows no op: the op table (``ops``) has the rules of ops, and ``verify`` the rules of graphs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from os import PathLike
from types import MappingProxyType
from typing import Any

from ..errors import IrError
from ..types import TensorSpec
from .attributes import Attrs, Body, Const
from .parts import Input, Node, Output, Source, State, Value, Weight, known_spec
from .rewrite import Editor
from .serialization import json_writer
from .serialization.text_writer import graph_text
from .shapes.decided import deciding_values, symbols_of
from .verify import verify

__all__ = ["Graph", "Input", "Node", "Output", "Source", "State", "Value", "Weight"]


@dataclass(frozen=True)
class Graph(Body):
    """A model. Graphs compare by value; ``str`` returns text that ``ir.parse`` reads.

    metadata: facts about the model (producer, opset ...) as attribute values; nothing that affects results.
    former_names: of values that rewrites removed. Added nodes do not take them, so a name means one value through all passes.
    """

    name: str
    inputs: tuple[Value, ...]
    outputs: tuple[Output, ...]
    nodes: tuple[Node, ...]
    weights: tuple[Weight, ...] = ()
    states: tuple[State, ...] = ()
    metadata: Attrs = field(default_factory=Attrs)
    former_names: frozenset[str] = field(default=frozenset(), compare=False, repr=False)

    # ── values ──

    @cached_property
    def values(self) -> Mapping[str, Value]:
        """Every value by name: inputs, weights, states, results of nodes."""
        by_name = {v.name: v for v in self.inputs}
        by_name.update((w.name, w.value) for w in self.weights)
        by_name.update((s.name, s.value) for s in self.states)
        for node in self.nodes:
            for v in node.outputs:
                by_name[v.name] = v
        return MappingProxyType(by_name)

    def spec(self, name: str) -> TensorSpec:
        """Return a value's spec. Raises IrError for an unknown name or an unknown type."""
        value = self.values.get(name)
        if value is None:
            raise IrError(f"graph {self.name!r}", "has no such value", got=repr(name), do="See graph.values.")
        return known_spec(value)

    @cached_property
    def weight_names(self) -> frozenset[str]:
        """Names of all weights."""
        return frozenset(w.name for w in self.weights)

    @cached_property
    def input_specs(self) -> tuple[TensorSpec, ...]:
        """Specs of the inputs, names included."""
        return tuple(_named(v.name, known_spec(v)) for v in self.inputs)

    @cached_property
    def output_specs(self) -> tuple[TensorSpec, ...]:
        """Specs of the outputs, under the names that the user sees."""
        return tuple(_named(o.name, self.spec(o.value)) for o in self.outputs)

    @cached_property
    def symbols(self) -> frozenset[str]:
        """Every symbol in a spec or in an attribute of a node (as of ``dims``, whose spec has no symbols)."""
        specs = (v.spec.symbols for v in self.values.values() if v.spec is not None)
        return frozenset().union(*specs, *(symbols_of(v) for n in self.nodes for v in n.attrs.values()))

    @cached_property
    def deciding(self) -> Mapping[str, str]:
        """Sizes that only a run knows, each with the first value whose shape determines it."""
        return MappingProxyType(deciding_values(self.given_symbols, self.nodes) if self.symbols else {})

    @property
    def given_symbols(self) -> frozenset[str]:
        """Symbols in the shapes of inputs."""
        return frozenset[str]().union(*(s.symbols for s in self.input_specs))

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
        """Return the node that produces a value; None for inputs, weights and states."""
        return self._producers.get(value)

    def node(self, name: str) -> Node:
        """Return the node that produces the value. Raises IrError if there is none."""
        producer = self._producers.get(name)
        if producer is None:
            raise IrError(f"graph {self.name!r}", "has no node that produces this value", got=repr(name))
        return producer

    def users(self, value: str) -> tuple[Node, ...]:
        """Return the nodes that read a value, in order, each once."""
        return self._users.get(value, ())

    @cached_property
    def kept(self) -> frozenset[str]:
        """Values that leave the graph: outputs and the next contents of states."""
        return frozenset(
            [*(o.value for o in self.outputs), *(s.next for s in self.states if s.next is not None)]
        )

    def only_user(self, value: str) -> Node | None:
        """Return the only node that reads a value, or None if there are several or the value leaves the graph."""
        users = self._users.get(value, ())
        return users[0] if len(users) == 1 and value not in self.kept else None

    def literal(self, operand: Input) -> Const | None:
        """Return the content of a compile-time constant: an immediate number or a ``constant`` node's tensor; None for other values."""
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
        return {f.name: getattr(self, f.name) for f in fields(self)}  # cached properties are not pickled

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    def __len__(self) -> int:
        return len(self.nodes)

    # ── whole graph ──

    def subgraph(self, nodes: Iterable[Node], name: str = "") -> Graph:
        """Extract nodes as a separate graph. Values from outside become inputs (weights stay weights); values that are read outside
        or leave this graph become outputs. Raises IrError if the nodes read a state.
        """
        member_names = {n.name for n in nodes}
        inside = tuple(n for n in self.nodes if n.name in member_names)
        produced = {v.name for n in inside for v in n.outputs}
        read = dict.fromkeys(v for n in inside for v in n.values if v not in produced)
        stateful = [s.name for s in self.states if s.name in read]
        if stateful:
            raise IrError(
                f"graph {self.name!r}", "cannot extract a region with states", got=", ".join(stateful)
            )
        leaving = [
            v.name
            for n in inside
            for v in n.outputs
            if v.name in self.kept or any(u.name not in member_names for u in self.users(v.name))
        ]
        return Graph(
            name or self.name,
            tuple(self.values[v] for v in read if v not in self.weight_names),
            tuple(Output(v, v) for v in leaving),
            inside,
            tuple(w for w in self.weights if w.name in read),
            (),
            self.metadata,
            self.former_names | (self.values.keys() - produced - read.keys()),
        )

    def rewrite(self, rule: Callable[[Editor, Node], None]) -> Graph:
        """Apply ``rule`` with an Editor to every node in order. Dead nodes and unused weights are removed."""
        editor = Editor(self)
        for node in self.nodes:
            if editor.alive(node):
                rule(editor, editor.current(node))
        return editor.done()

    def check(self) -> None:
        """Raise IrError for the first violation that ``verify`` finds."""
        verify(self)

    def replace(self, **changes: Any) -> Graph:
        """Return a copy with some fields changed. It remembers the names of values that it no longer has."""
        graph = replace(self, **changes)
        removed = self.values.keys() - graph.values.keys()
        return replace(graph, former_names=self.former_names | removed) if removed else graph

    @cached_property
    def digest(self) -> str:
        """sha256 of the canonical JSON form: equal for equal graphs."""
        return hashlib.sha256(json_writer.to_bytes(self)).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Return plain data, which ``Graph.from_json`` reads."""
        return json_writer.to_json(self)

    @staticmethod
    def from_json(data: Any) -> Graph:
        """Build a graph from ``to_json``'s data. Raises FormatError."""
        from .serialization.json_reader import from_json

        return from_json(data)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the graph as JSON, atomically. Raises StoreError."""
        json_writer.save(self, path)

    @staticmethod
    def load(path: str | PathLike[str]) -> Graph:
        """Read a file that ``save`` wrote. Raises FormatError."""
        from .serialization.json_reader import load

        return load(path)

    def __str__(self) -> str:
        return graph_text(self)


def _named(name: str, spec: TensorSpec) -> TensorSpec:
    return TensorSpec(spec.shape, spec.dtype, name)
