"""Weight files of a graph: read lazily from safetensors or raw files, written as safetensors."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ...storage.tensor_files import TensorFiles, write_safetensors
from ...types import DType, TensorSpec
from ..graph import Graph, Value, Weight

__all__ = ["WeightFiles", "open_weights", "save_weights"]


def save_weights(arrays: Mapping[str, NDArray[Any]], path: str | os.PathLike[str]) -> dict[str, Weight]:
    """Write arrays as one safetensors file atomically, and return the Weight of each, with its digest.

    Raises StoreError, and FormatError for a dtype that the format lacks (strings, sub-byte types).
    """
    file = Path(path).name
    digests = write_safetensors(arrays, path)
    specs = {k: TensorSpec(tuple(a.shape), DType.of(a.dtype)) for k, a in arrays.items()}
    return {k: Weight(Value(k, specs[k]), file, "safetensors", k, digest=digests[k]) for k in arrays}


class WeightFiles(Mapping[str, NDArray[Any]]):
    """The weights of a graph by value name, each memory-mapped read-only on first access.

    Raises ModelError for a weight whose file is missing, unsafe, too short, or has another dtype or shape.
    """

    def __init__(self, graph: Graph, folder: str | os.PathLike[str] = ".") -> None:
        self.folder = Path(folder)
        self._weights = {w.name: w for w in graph.weights}
        self._files = TensorFiles(folder)

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)

    def __getitem__(self, name: str) -> NDArray[Any]:
        w = self._weights[name]
        if w.data:
            return w.array()
        return self._files.read(name, w.spec, file=w.file, form=w.format, key=w.key, offset=w.offset)


def open_weights(graph: Graph, folder: str | os.PathLike[str] = ".") -> WeightFiles:
    """Return the graph's weights as a lazy mapping; ``folder`` is the folder of the graph's file."""
    return WeightFiles(graph, folder)
