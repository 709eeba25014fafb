"""Weights of a graph by the graph's names, from any source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...errors import InputError
from ...ir import Graph, Weight, open_weights
from ...protocols import Array
from ...runtime.memory.buffer import host_array
from ...storage.checkpoints import WeightSource
from ...types import DType, TensorSpec

__all__ = ["WeightArrays"]


class WeightArrays(Mapping[str, Array]):
    """Arrays by name from a mapping, a checkpoint, or the folder of the graph's own files (None: the working folder)."""

    def __init__(self, who: str, graph: Graph, source: Any) -> None:
        self._who, self._refs = who, {w.name: w for w in graph.weights}
        self._source = WeightSource(who, source, graph.weights, graph.metadata.get("aliases"))
        from_files = source is None or self._source.folder is not None
        self._files = open_weights(graph, self._source.folder or ".") if from_files else None

    def __getitem__(self, name: str) -> Array:
        ref = self._refs[name]
        array = self._source.find(ref)
        if array is not None:
            return host_array(array)
        if ref.data:
            return ref.array()
        if self._files is not None and ref.file:
            return self._files[name]
        got = f"{len(self._source.arrays)} arrays, none called {name!r}"
        raise InputError(
            self._who, f"lacks the weight {name!r}", got=got, do=f"Hand in {ref.spec} by that name."
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self._refs)

    def __len__(self) -> int:
        return len(self._refs)

    def check(self, weight: Weight) -> None:
        """Raise InputError if a weight's type differs from the graph's."""
        array = self[weight.name]
        got = TensorSpec(tuple(array.shape), DType.of(array.dtype))
        if got.dtype is not weight.spec.dtype or (weight.spec.is_static and got.shape != weight.spec.shape):
            do = "Give the weights of the model that was partitioned."
            raise InputError(self._who, f"weight {weight.name!r} must be {weight.spec}", got=got, do=do)
