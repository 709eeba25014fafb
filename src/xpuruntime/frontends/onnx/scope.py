"""Name scopes of ONNX graphs and inlined functions."""

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
    """The names of one ONNX graph, or of one function body while it is inlined.

    values:  ONNX name -> IR value. tensors: initializers by name. types: declared types.
    parent:  scope of the enclosing graph, whose names are visible too.
    actuals: attributes of the function call.
    prefix:  prefix of names, which keeps them unique if a body is inlined twice.
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
        """Return the scope of a GraphProto."""
        tensors = {t.name: t for t in graph.initializer}
        tensors |= {s.values.name: dense(s) for s in graph.sparse_initializer}
        types = {v.name: v.type for v in (*graph.value_info, *graph.output, *graph.input)}
        scope = Scope(opsets, tensors=tensors, types=types, parent=parent, prefix=prefix)
        if parent is not None:
            scope.source, scope.depth, scope.actuals = parent.source, parent.depth + 1, parent.actuals
        return scope

    def holder(self, name: str) -> Scope | None:
        """Return the innermost scope that has the name."""
        scope: Scope | None = self
        while scope is not None and name not in scope.values and name not in scope.tensors:
            scope = scope.parent
        return scope


MAX_ELEMENTS = 1 << 28
"""Maximum elements of a sparse tensor, whose shape a few bytes can make arbitrarily large."""


def dense(sparse: Any) -> Any:
    """Return a SparseTensorProto as a dense TensorProto."""
    from onnx import numpy_helper

    if any(d < 0 for d in sparse.dims) or math.prod(sparse.dims) > MAX_ELEMENTS:
        raise ModelError(
            f"sparse tensor {sparse.values.name!r}",
            f"is too large: at most {MAX_ELEMENTS} elements are supported",
            got=list(sparse.dims)[:8],
            do="Export it as a dense tensor, in parts.",
        )
    values, indices = tensor_array(sparse.values), tensor_array(sparse.indices)
    dense = np.zeros(tuple(sparse.dims), values.dtype)
    dense[tuple(indices.T) if indices.ndim == 2 else np.unravel_index(indices, dense.shape)] = values
    return numpy_helper.from_array(dense, sparse.values.name)
