"""A model for the native engine: its graph, and where its weights lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...frontends.onnx import import_onnx
from ...ir import Graph
from ...protocols import Array, ModelSource
from ..models.digests import kept_by_digest

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
    return _imported(model)


@kept_by_digest
def _imported(model: ModelSource) -> NativeModel:
    return NativeModel(*import_onnx(model))
