"""A model for the native engine: its graph and its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...frontends.onnx.importer import import_onnx
from ...ir import Graph
from ...protocols import Array, ModelSource
from ..models.digests import kept_by_digest

__all__ = ["NativeModel", "native_model"]


@dataclass(frozen=True, slots=True)
class NativeModel:
    """The graph of a model and its weights by name, which are read on access."""

    graph: Graph
    weights: Mapping[str, Array]


def native_model(model: ModelSource) -> NativeModel:
    """Return the model in the IR. Raises ModelError. The last few results are cached for building and loading."""
    if model.format == "graph":
        return NativeModel(*model.graph)
    return _imported(model)


@kept_by_digest
def _imported(model: ModelSource) -> NativeModel:
    return NativeModel(*import_onnx(model))
