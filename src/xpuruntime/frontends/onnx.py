"""ONNX models to the IR: opset 9 to the newest that the installed onnx package knows.

    graph = load_onnx("model.onnx")
    graph, weights = import_onnx("model.onnx")      # weights: array by name, read when asked for

Ops are lowered by the table in ``onnx_ops``; functions (the model's own, and ops that ONNX itself defines by others) that have no
row are inlined; shape arithmetic is folded into dims. What is left (loops, custom domains, text, sequences, content that decides
shapes) is an ``opaque`` node with its reason, so that no valid model is refused. Every node carries its ONNX node's name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import ModelError
from ..ir import Graph
from ..protocols import Array, ModelSource
from ..types import DType
from .model_file import open_model
from .onnx_file import dtype_table, node_names
from .onnx_lower import Lowering, Scope
from .onnx_tensors import OnnxWeights, raw_offsets
from .onnx_types import Types, dim_params

__all__ = ["OnnxImport", "import_onnx", "load_onnx"]


class OnnxImport(NamedTuple):
    """A graph, and its weights by name for whoever runs or writes it."""

    graph: Graph
    weights: OnnxWeights


def load_onnx(
    model: str | os.PathLike[str] | bytes | ModelSource | object,
    *,
    name: str = "",
    bind: Mapping[str, Array] | None = None,
) -> Graph:
    """The graph of a model. Parameters and errors as ``import_onnx``."""
    return import_onnx(model, name=name, bind=bind).graph


def import_onnx(
    model: str | os.PathLike[str] | bytes | ModelSource | object,
    *,
    name: str = "",
    bind: Mapping[str, Array] | None = None,
) -> OnnxImport:
    """The graph of a model, and its weights.

    model: as ``open_model`` takes it.
    name:  of the graph; by default the file's, else the model's own.
    bind:  content of inputs that is fixed for this graph: a model whose inputs decide shapes (the ``shape`` of a Reshape, the
           ``k`` of a TopK) is then lowered where it would be opaque. The graph still has the input, and is only right for that content.
    Inputs that are no tensors (sequences, optionals, maps), and values of unknown rank, have no spec.
    ``graph.metadata``: ``opset``, ``opsets`` by domain, ``ir_version``, ``producer``, ``deciding`` (inputs whose content would have to be
    bound for more to be lowered).
    Raises ModelError (see ``open_model``).
    """
    source = open_model(model, name=name)
    if source.format != "onnx":
        raise ModelError(
            f"model {source.name!r}", "is not ONNX", got=source.format, do="Hand over an ONNX model."
        )
    return _import(source, bind or {})


def _import(source: ModelSource, bind: Mapping[str, Array]) -> OnnxImport:
    import onnx

    data = source.path.read_bytes() if source.path else source.data or b""
    proto = onnx.ModelProto.FromString(data)
    folder = source.path.parent if source.path else None
    opsets = dict(source.opsets)
    types = Types(dtype_table(onnx), dim_params([*proto.graph.input, *proto.graph.output, *proto.graph.value_info]))
    lowering = Lowering(
        proto, source.name, types, path=source.path, folder=folder, offsets=raw_offsets(data) if source.path else {}
    )
    scope = Scope.of_graph(proto.graph, opsets)
    for value in proto.graph.input:
        if value.name not in scope.tensors:
            lowering.input(value, scope, bind.get(value.name))
    lowering.nodes(zip(node_names(proto.graph.node), proto.graph.node, strict=True), scope)
    for value in proto.graph.output:
        lowering.b.output(value.name, lowering.value(value.name, scope))
    lowering.b.metadata.update(
        {
            "opset": opsets.get("", 0),
            "opsets": opsets,
            "ir_version": int(proto.ir_version),
            "producer": f"{proto.producer_name} {proto.producer_version}".strip(),
            "deciding": sorted(lowering.deciding),
        }
    )
    graph = lowering.b.build(verify=False)
    return OnnxImport(graph, OnnxWeights(lowering.weight_tensors, folder))


def known_dtypes() -> Mapping[int, DType]:
    """TensorProto.DataType -> DType for the installed onnx package."""
    import onnx

    return dtype_table(onnx)
