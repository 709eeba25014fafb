"""A model for the native engine: its graph and its weights."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from ...errors import IrError
from ...frontends.onnx.importer import import_onnx
from ...ir import Graph, specialize
from ...ir.ops.control import CONTROL
from ...protocols import Array, ModelSource
from ..models.digests import kept_by_digest

__all__ = ["NativeModel", "is_settled", "native_model", "original_model", "sized_model"]


@dataclass(frozen=True, slots=True)
class NativeModel:
    """The graph of a model and its weights by name, which are read on access."""

    graph: Graph
    weights: Mapping[str, Array]


def is_settled(graph: Graph) -> bool:
    """Return True if every node has a form in the IR, and sizes that the inputs determine."""
    known = frozenset[str]().union(*(s.symbols for s in graph.input_specs))
    return all(
        n.op != "opaque" and all(v.spec is None or v.spec.symbols <= known for v in n.outputs)
        for n in graph.nodes
    )


def sized_model(model: ModelSource, sizes: Mapping[str, int]) -> NativeModel:
    """Return the model in the IR for inputs of these sizes.

    It is imported again if only the sizes tell what it computes (a branch that depends on a dim, the bounds of a Range), or if they rule out
    a branch.
    """
    source = native_model(model)
    if model.format != "onnx" or not sizes or (is_settled(source.graph) and _accepts(source.graph, sizes)):
        return source
    return _sized(model, tuple(sorted(sizes.items())))


def _accepts(graph: Graph, sizes: Mapping[str, int]) -> bool:
    """Return False if a graph with control flow is not valid for these sizes."""
    if not any(n.op in CONTROL for n in graph.nodes):
        return True
    try:
        specialize(graph, sizes).check()
    except IrError:
        return False
    return True


def native_model(model: ModelSource) -> NativeModel:
    """Return the model in the IR. Raises ModelError. The last few results are cached for building and loading."""
    if model.format == "graph":
        return NativeModel(*model.graph)
    return _imported(model)


def original_model(model: ModelSource) -> NativeModel:
    """Return the model in the IR as the user gave it: a module that was written as ONNX is not read back. Raises ModelError."""
    return native_model(model) if model.graph is None else NativeModel(*model.graph)


@kept_by_digest
def _imported(model: ModelSource) -> NativeModel:
    return NativeModel(*import_onnx(model))


_SIZED: OrderedDict[tuple[str, tuple[tuple[str, int], ...]], NativeModel] = OrderedDict()
_KEPT = 4
_LOCK = threading.Lock()


def _sized(model: ModelSource, sizes: tuple[tuple[str, int], ...]) -> NativeModel:
    """Return an import with fixed sizes. The last few are kept, because compiling and loading need the same one."""
    key = model.digest, sizes
    with _LOCK:
        if key in _SIZED:
            _SIZED.move_to_end(key)
            return _SIZED[key]
    imported = NativeModel(*import_onnx(model, sizes=dict(sizes)))
    with _LOCK:
        _SIZED[key] = imported
        while len(_SIZED) > _KEPT:
            _SIZED.popitem(last=False)
    return imported
