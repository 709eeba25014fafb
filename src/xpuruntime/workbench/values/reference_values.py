"""Values of a model by the reference interpreter: NumPy, each op in float64, on the graph as imported."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

from ...inference.native.model import native_model
from ...ir import Node, interp, specialize
from ...ir.shapes.symbols import bind
from ...protocols import Array, ModelSource
from ...types import DType
from .observer import ObservedNode

__all__ = ["REFERENCE", "ReferenceValues"]

REFERENCE = "reference"
"""The name of the interpreter as an engine of a side."""


class _Enough(Exception):
    """All requested values were computed."""


class ReferenceValues:
    """The observer of the interpreter. Raises ModelError if the model has no form in the IR."""

    def __init__(self, model: ModelSource, feeds: Mapping[str, Array]) -> None:
        self.label, self.runs = f"the reference interpreter, model {model.name}", 0
        self.precision: DType = model.precision
        self._source, self._feeds = native_model(model), dict(feeds)
        graph = self._source.graph
        sizes = bind(graph.input_specs, {n: a.shape for n, a in feeds.items()})
        static = specialize(graph, sizes) if graph.symbols else graph
        self._specs = {name: value.spec for name, value in static.values.items()}
        self._nodes = {v.name: node for node in graph.nodes for v in node.outputs}
        self.outputs: Sequence[str] = tuple(o.name for o in graph.outputs)
        self._aliases = {
            o.name: o.value for o in graph.outputs if o.name != o.value and o.value in self._nodes
        }
        self._specs |= {name: self._specs[value] for name, value in self._aliases.items()}
        named = {v for n in model.nodes for v in n.outputs}
        shown = [v for v in self._nodes if not named or v in named]
        self.order: Sequence[str] = (*shown, *self._aliases)
        self.reads: Mapping[str, Sequence[str]] = {
            **{name: node.values for name, node in self._nodes.items()},
            **{name: (value,) for name, value in self._aliases.items()},
        }

    def values(self, names: Sequence[str]) -> dict[str, Array]:
        """Evaluate nodes in order until the last requested value. Raises IrError, InputError."""
        wanted, arrays = {self._aliases.get(n, n) for n in names}, dict[str, Array]()

        def watch(node: Node, results: tuple[Array, ...]) -> None:
            arrays.update((v.name, a) for v, a in zip(node.outputs, results, strict=True) if v.name in wanted)
            if len(arrays) == len(wanted):
                raise _Enough

        self.runs += 1
        with contextlib.suppress(_Enough):
            interp.run(self._source.graph, self._feeds, weights=self._source.weights, states={}, watch=watch)
        return {n: arrays[self._aliases.get(n, n)] for n in names}

    def shape_of(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of a value, if inference knows it."""
        spec = self._specs[name]
        if spec is None or not all(isinstance(d, int) for d in spec.shape):
            return None
        return tuple(int(d) for d in spec.shape if isinstance(d, int))

    def dtype_of(self, name: str) -> DType | None:
        """Return the element type of a value, if inference knows it."""
        spec = self._specs[name]
        return None if spec is None else spec.dtype

    def bytes_of(self, name: str) -> int | None:
        """Return the size of a value, if inference knows it."""
        spec = self._specs[name]
        return None if spec is None else spec.size_bytes

    def node_of(self, name: str) -> ObservedNode:
        """Return the node that computes a value."""
        node = self._nodes[self._aliases.get(name, name)]
        sources = tuple(s.name for s in node.sources if s.name) or (node.name,)
        return ObservedNode(sources, (node.op,))

    def close(self) -> None:
        """Do nothing: the interpreter holds no resources."""
