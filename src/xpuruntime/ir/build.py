"""GraphBuilder: builds a graph op by op, with type inference and errors that name the op and the mismatch.

    b = GraphBuilder("mlp")
    x = b.input("x", "float32[n, 4]")
    w = b.weight("w", "float32[8, 4]")
    b.output("y", b.relu(b.linear(x, w)))
    graph = b.build()

Values are represented by their names. Operands are names, numbers (if the op takes immediates), arrays (which become
``constant`` nodes) or None. Every op of the table is a method.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import IrError
from ..types import TensorSpec
from .attributes import Attrs, Const, canonical
from .graph import Graph, Input, Node, Output, Source, State, Value, Weight
from .nodes import make_node
from .ops import OPS

__all__ = ["GraphBuilder"]


class GraphBuilder:
    """A builder of the graph ``name``; see the module for an example."""

    def __init__(self, name: str = "graph") -> None:
        self.name = name
        self.inputs: list[Value] = []
        self.outputs: list[Output] = []
        self.nodes: list[Node] = []
        self.weights: list[Weight] = []
        self.states: list[State] = []
        self.metadata: dict[str, Any] = {}
        self.values: dict[str, Value] = {}
        self._counters: dict[str, int] = {}
        self._sources: tuple[Source, ...] = ()

    # ── values from outside ──

    def input(self, name: str, spec: TensorSpec | str | None) -> str:
        """Add an input. ``spec`` may be text (``float32[n, 3]``), or None for a value that only opaque ops read."""
        self.inputs.append(self._declare(name, spec))
        return name

    def weight(self, name: str, spec: TensorSpec | str, **where: Any) -> str:
        """Add a weight. Keywords as of ``Weight``: file, format, key, offset, digest, data."""
        self.weights.append(Weight(self._declare(name, spec), **where))
        return name

    def state(self, name: str, spec: TensorSpec | str, init: str | None = None) -> str:
        """Add a state, a buffer that persists between runs; ``set_state`` sets its next content."""
        self.states.append(State(self._declare(name, spec), init))
        return name

    def set_state(self, name: str, value: str) -> None:
        """Set the content of a state at the end of a run. Raises IrError for an unknown state."""
        for i, state in enumerate(self.states):
            if state.name == name:
                self.states[i] = State(state.value, state.init, value)
                return
        raise IrError(
            f"builder {self.name!r}", "has no such state", got=repr(name), do="Create it with state()."
        )

    def output(self, name: str, value: str | None = None) -> None:
        """Add an output with this name (default: the value's name)."""
        self.outputs.append(Output(name, name if value is None else value))

    def constant(self, array: Any, *, name: str = "") -> str:
        """Add a constant of at most 4096 elements. Raises IrError for a larger one."""
        try:
            value = array if isinstance(array, Const) else Const(array)
        except ValueError as error:
            raise IrError("constant", str(error), do="Make it a weight.") from error
        output: str = self.call("constant", value=value, name=name)
        return output

    # ── nodes ──

    def call(
        self, op: str, *inputs: Any, name: str | Sequence[str] = "", outputs: int | None = None, **attrs: Any
    ) -> Any:
        """Append a node. Return its output's name, or a tuple of names if it has several.

        name: of the output, or one per output. outputs: their number, for ops with optional outputs.
        Raises IrError.
        """
        output_names = [name] if isinstance(name, str) else list(name)
        operands = tuple(self._operand(i) for i in inputs)

        def names(count: int) -> list[str]:
            if len(output_names) > 1 and len(output_names) != count:
                raise IrError(op, f"has {count} outputs", got=f"{len(output_names)} names")
            return [n or self.fresh(op) for n in output_names + [""] * (count - len(output_names))]

        node = make_node(op, operands, attrs, names, self.values, outputs=outputs, sources=self._sources)
        return self.append(node)

    def opaque(
        self,
        op_type: str,
        inputs: Sequence[str | None],
        outputs: Sequence[tuple[str, TensorSpec | str | None]],
        *,
        reason: str,
        domain: str = "",
        attributes: Mapping[str, Any] | None = None,
    ) -> tuple[str, ...]:
        """Append an op that the table does not have. ``outputs`` declares names and specs (None: unknown); ``reason`` says why it is opaque."""
        if not reason.strip():
            raise IrError(f"opaque {op_type}", "needs a reason")
        attrs = Attrs(
            {
                "domain": domain,
                "op_type": op_type,
                "reason": reason,
                "attributes": canonical(dict(attributes or {})),
            }
        )
        results = tuple(Value(n or self.fresh(op_type.lower() or "opaque"), _spec(s)) for n, s in outputs)
        for item in inputs:
            if item is not None and item not in self.values:
                raise IrError(f"opaque {op_type}", "reads a value that does not exist", got=f"%{item}")
        self.append(Node("opaque", tuple(inputs), attrs, results, self._sources))
        return tuple(v.name for v in results)

    def append(self, node: Node) -> Any:
        """Append an existing node. Return its output's name, or a tuple of them."""
        for value in node.outputs:
            self._declare(value.name, value.spec)
        self.nodes.append(node)
        return node.outputs[0].name if len(node.outputs) == 1 else tuple(v.name for v in node.outputs)

    @contextlib.contextmanager
    def source(self, *sources: Source) -> Iterator[None]:
        """Set the sources of all nodes that are created inside the block."""
        outer_sources, self._sources = self._sources, sources
        try:
            yield
        finally:
            self._sources = outer_sources

    def spec(self, value: str) -> TensorSpec:
        """Return the spec of an existing value. Raises IrError for an unknown value or type."""
        entry = self.values.get(value)
        if entry is None or entry.spec is None:
            raise IrError(f"builder {self.name!r}", "has no such value of known type", got=f"%{value}")
        return entry.spec

    def fresh(self, stem: str) -> str:
        """Return an unused name."""
        while True:
            number = self._counters.get(stem, 0)
            self._counters[stem] = number + 1
            name = f"{stem}_{number}" if number else stem
            if name not in self.values:
                return name

    def build(self, *, verify: bool = True) -> Graph:
        """Return the graph, verified by default. Raises IrError."""
        graph = Graph(
            self.name,
            tuple(self.inputs),
            tuple(self.outputs),
            tuple(self.nodes),
            tuple(self.weights),
            tuple(self.states),
            Attrs({k: canonical(v) for k, v in self.metadata.items()}),
        )
        if verify:
            graph.check()
        return graph

    def __getattr__(self, op: str) -> Callable[..., Any]:
        if op not in OPS:
            raise AttributeError(f"GraphBuilder has no method {op!r}, and the op table has no such op")
        return lambda *inputs, **keywords: self.call(op, *inputs, **keywords)

    def _declare(self, name: str, spec: TensorSpec | str | None) -> Value:
        if not name or name in self.values:
            problem = "is taken" if name else "is empty"
            raise IrError(
                f"builder {self.name!r}", f"the name of a value {problem}", got=repr(name), do="Use fresh()."
            )
        value = Value(name, _spec(spec))
        self.values[name] = value
        return value

    def _operand(self, item: Any) -> Input:
        match item:
            case None | bool() | int() | float():
                return canonical(item)  # type: ignore[return-value]
            case str():
                return item
            case np.generic() if item.dtype.kind in "bif" and item.dtype.isbuiltin:
                return canonical(item.item())  # type: ignore[return-value]
            case np.ndarray() | Const():
                return self.constant(item)
            case _:
                raise IrError(f"builder {self.name!r}", "not an operand", got=type(item).__name__)


def _spec(spec: TensorSpec | str | None) -> TensorSpec | None:
    if not isinstance(spec, str):
        return spec
    try:
        return TensorSpec.parse(spec)
    except ValueError as error:
        raise IrError(
            f"spec {spec[:80]!r}", "is not a tensor spec", got=error, do="Write dtype[dim, dim]."
        ) from error
