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
from typing import NamedTuple

from ...errors import ModelError, XpuError
from ...faults import contained
from ...ir import Graph
from ...protocols import Array, ModelSource
from ..model_file import open_with
from .check import Checked, check_onnx
from .lower import Lowering
from .ops import NotLowered
from .scope import Scope
from .tensors import OnnxWeights, raw_offsets
from .types import Types, dim_params
from .values import Values

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


@contained("import_onnx", kind=ModelError)
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
    bound for more to be lowered), ``types`` (TypeProtos of inputs and outputs without a spec, in base64).
    Raises ModelError (see ``open_model``).
    """
    if isinstance(model, ModelSource):
        if model.format != "onnx":
            raise ModelError(
                f"model {model.name!r}", "is not ONNX", got=model.format, do="Hand over an ONNX model."
            )
        found = open_with(model.path or model.data, name or model.name, check_onnx)
    else:
        found = open_with(model, name, check_onnx)
    if not isinstance(found, Checked):
        raise ModelError(
            f"model {found.name!r}", "is not ONNX", got=found.format, do="Hand over an ONNX model."
        )
    try:
        return _import(found, bind or {})
    except XpuError:
        raise
    except NotLowered as no:  # of an opaque node's operands: nothing can take them
        raise ModelError(
            f"model {found.name!r}",
            f"cannot be read: {no.reason}",
            do="The file is damaged, or needs a newer onnx package.",
        ) from no
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
        # What a checked model holds may still contradict itself in a place that no check looks at.
        raise ModelError(
            f"model {found.name!r}",
            "contradicts itself",
            got=f"{type(error).__name__}: {error}",
            do="The file is damaged: export it again. If an engine runs it, please report it with the model.",
        ) from error


def _import(model: Checked, bind: Mapping[str, Array]) -> OnnxImport:
    proto, path = model.proto, model.path
    folder = path.parent if path else None
    declared = [*proto.graph.input, *proto.graph.output, *proto.graph.value_info]
    values = Values(
        proto,
        model.name,
        Types(model.dtypes, dim_params(declared)),
        path=path,
        folder=folder,
        offsets=raw_offsets(model.data) if path else {},
    )
    scope = Scope.of_graph(proto.graph, model.opsets)
    for given in proto.graph.input:
        if given.name not in scope.tensors:
            values.input(given, scope, bind.get(given.name))
    Lowering(proto, values).nodes(zip(model.names, proto.graph.node, strict=True), scope)
    for output in proto.graph.output:
        values.b.output(output.name, values.value(output.name, scope))
    values.b.metadata.update(
        {
            "opset": model.opsets.get("", 0),
            "opsets": model.opsets,
            "ir_version": int(proto.ir_version),
            "producer": f"{proto.producer_name} {proto.producer_version}".strip(),
            "deciding": sorted(values.deciding),
            "types": values.untyped([*proto.graph.input, *proto.graph.output]),
        }
    )
    return OnnxImport(values.done(), OnnxWeights(values.weight_tensors, folder))
