"""Weights of a graph by the graph's names, wherever they come from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError
from ..ir import Graph, Weight, open_weights
from ..protocols import Array
from ..tensor_files import read_safetensors
from ..types import DType, TensorSpec

__all__ = ["WeightArrays"]


class WeightArrays(Mapping[str, Array]):
    """Arrays by name from a mapping, a safetensors file, or a folder (None: the working one) in which the graph's own files lie."""

    def __init__(self, who: str, graph: Graph, source: Any) -> None:
        self._who, self._refs = who, {w.name: w for w in graph.weights}
        self._given: Mapping[str, Any] = {}
        self._files: Mapping[str, Array] | None = None
        if isinstance(source, Mapping):
            self._given = source
        elif source is not None and not Path(source).is_dir():
            self._given = read_safetensors(source)
        else:
            self._files = open_weights(graph, source or ".")

    def __getitem__(self, name: str) -> Array:
        ref = self._refs[name]
        for key in (name, ref.key):
            if key and key in self._given:
                return np.asarray(self._given[key])
        if self._files is not None and ref.file:
            return self._files[name]
        got = f"{len(self._given)} arrays, none called {name!r}"
        raise InputError(
            self._who, f"lacks the weight {name!r}", got=got, do=f"Hand in {ref.spec} by that name."
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self._refs)

    def __len__(self) -> int:
        return len(self._refs)

    def check(self, weight: Weight) -> None:
        """Raises InputError for another type than the graph's."""
        array = self[weight.name]
        got = TensorSpec(tuple(array.shape), DType.of(array.dtype))
        if got.dtype is not weight.spec.dtype or (weight.spec.is_static and got.shape != weight.spec.shape):
            do = "Give the weights of the model that was partitioned."
            raise InputError(self._who, f"weight {weight.name!r} must be {weight.spec}", got=got, do=do)
