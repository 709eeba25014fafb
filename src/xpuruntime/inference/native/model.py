"""A model for the native engine: its graph, and where its weights lie."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from ...frontends.onnx import import_onnx
from ...ir import Graph
from ...protocols import Array, ModelSource

__all__ = ["NativeModel", "native_model"]


@dataclass(frozen=True, slots=True)
class NativeModel:
    """The graph of a model and its weights by name, read when asked for."""

    graph: Graph
    weights: Mapping[str, Array]


def native_model(model: ModelSource) -> NativeModel:
    """The model in the IR. Raises ModelError. The last few are kept: asking, building and loading follow one another."""
    if model.format == "graph":
        return NativeModel(*model.graph)
    return _by_digest(model.digest, _Held(model))


class _Held:
    """A ModelSource that does not enter the cache's key: the digest says all."""

    def __init__(self, model: ModelSource) -> None:
        self.model = model

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Held)

    def __hash__(self) -> int:
        return 0


@functools.lru_cache(maxsize=2)
def _by_digest(digest: str, held: _Held) -> NativeModel:
    return NativeModel(*import_onnx(held.model))
