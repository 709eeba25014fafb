"""Names of one ONNX graph, or of one function's body while it is inlined."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...errors import ModelError
from ...ir import Source
from .tensors import tensor_array

__all__ = ["Scope", "dense"]


@dataclass
class Scope:
    """Names of one ONNX graph, or of one function body while it is inlined.

    values:  ONNX name -> value of the IR.   tensors: initialisers by name.   types: declared types.
    parent:  the graph around a subgraph, whose names are seen too.
    actuals: attributes that a function was called with.
    prefix:  put before names, so that they stay unique when a body is inlined twice.
    """

    opsets: Mapping[str, int]
    values: dict[str, str] = field(default_factory=dict)
    tensors: dict[str, Any] = field(default_factory=dict)
    types: dict[str, Any] = field(default_factory=dict)
    parent: Scope | None = None
    actuals: Mapping[str, Any] = field(default_factory=dict)
    prefix: str = ""
    source: Source | None = None
    depth: int = 0

    @staticmethod
    def of_graph(
        graph: Any, opsets: Mapping[str, int], parent: Scope | None = None, prefix: str = ""
    ) -> Scope:
        """The scope of a GraphProto."""
        tensors = {t.name: t for t in graph.initializer}
        tensors |= {s.values.name: dense(s) for s in graph.sparse_initializer}
        types = {v.name: v.type for v in (*graph.value_info, *graph.output, *graph.input)}
        scope = Scope(opsets, tensors=tensors, types=types, parent=parent, prefix=prefix)
        if parent is not None:
            scope.source, scope.depth, scope.actuals = parent.source, parent.depth + 1, parent.actuals
        return scope

    def holder(self, name: str) -> Scope | None:
        """The innermost scope that has the name."""
        scope: Scope | None = self
        while scope is not None and name not in scope.values and name not in scope.tensors:
            scope = scope.parent
        return scope


MOST_ELEMENTS = 1 << 28
"""Of a sparse tensor, which a few bytes can make of any size."""


def dense(sparse: Any) -> Any:
    """A TensorProto of a SparseTensorProto."""
    from onnx import numpy_helper

    if any(d < 0 for d in sparse.dims) or math.prod(sparse.dims) > MOST_ELEMENTS:
        raise ModelError(
            f"sparse tensor {sparse.values.name!r}",
            f"has another shape than one of at most {MOST_ELEMENTS} elements",
            got=list(sparse.dims)[:8],
            do="Export it as a dense tensor, in parts.",
        )
    values, indices = tensor_array(sparse.values), tensor_array(sparse.indices)
    dense = np.zeros(tuple(sparse.dims), values.dtype)
    dense[tuple(indices.T) if indices.ndim == 2 else np.unravel_index(indices, dense.shape)] = values
    return numpy_helper.from_array(dense, sparse.values.name)
