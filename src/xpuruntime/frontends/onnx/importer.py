"""Import of ONNX models: opset 1 to the newest that the installed onnx package knows.

    graph = load_onnx("model.onnx")
    graph, weights = import_onnx("model.onnx")      # weights: arrays by name, read on access

Ops are lowered by the table in ``ops``. Functions without a table entry (the model's own, and ops that ONNX defines as functions)
are inlined. Shape arithmetic is folded into dims. The rest (loops, custom domains, text, sequences, shapes that depend on content)
becomes ``opaque`` nodes with a reason, so that no valid model is refused. Every node carries its ONNX node's name.
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
from ..not_lowered import NotLowered
from .files.check import CheckedOnnx, check_onnx
from .lower import OnnxLowering
from .scope import Scope
from .tensors import OnnxWeights, raw_offsets
from .types import OnnxTypes, dim_params
from .values import OnnxValues

__all__ = ["OnnxImport", "import_onnx", "load_onnx"]


class OnnxImport(NamedTuple):
    """A graph and its weights by name."""

    graph: Graph
    weights: OnnxWeights


def load_onnx(
    model: str | os.PathLike[str] | bytes | ModelSource | object,
    *,
    name: str = "",
    bind: Mapping[str, Array] | None = None,
) -> Graph:
    """Return the graph of a model. Parameters and errors are those of ``import_onnx``."""
    return import_onnx(model, name=name, bind=bind).graph


@contained("import_onnx", kind=ModelError)
def import_onnx(
    model: str | os.PathLike[str] | bytes | ModelSource | object,
    *,
    name: str = "",
    bind: Mapping[str, Array] | None = None,
    sizes: Mapping[str, int] | None = None,
) -> OnnxImport:
    """Return the graph of a model and its weights.

    model: as in ``open_model``.
    name:  name of the graph; by default the file's, else the model's own.
    bind:  fixed content of inputs. A model whose inputs decide shapes (the ``shape`` of a Reshape, the
           ``k`` of a TopK) is then lowered instead of opaque. The graph keeps the input and is correct for that content only.
    sizes: sizes of symbols, under the names that the graph without this argument has. Branches that depend on a size, and bounds that
           are computed from one, are then known. The graph is correct for these sizes only.
    Inputs that are not tensors (sequences, optionals, maps), and values of unknown rank, have no spec.
    ``graph.metadata``: ``opset``, ``opsets`` by domain, ``ir_version``, ``producer``, ``deciding`` (inputs whose content must be bound
    to lower more nodes, or to know more sizes), ``types`` (base64 TypeProtos of inputs and outputs without a spec).
    Raises ModelError (see ``open_model``).
    """
    if isinstance(model, ModelSource):
        if model.format != "onnx":
            raise ModelError(
                f"model {model.name!r}", "is not ONNX", got=model.format, do="Pass an ONNX model."
            )
        checked = open_with(model.path or model.data, name or model.name, check_onnx)
    else:
        checked = open_with(model, name, check_onnx)
    if not isinstance(checked, CheckedOnnx):
        raise ModelError(
            f"model {checked.name!r}", "is not ONNX", got=checked.format, do="Pass an ONNX model."
        )
    try:
        return _import(checked, bind or {}, sizes or {})
    except XpuError:
        raise
    except NotLowered as no:  # raised for the operands of an opaque node, which cannot be represented at all
        raise ModelError(
            f"model {checked.name!r}",
            f"cannot be read: {no.reason}",
            do="The file is damaged, or needs a newer onnx package.",
        ) from no
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
        # A checked model may still contradict itself where no check looks.
        raise ModelError(
            f"model {checked.name!r}",
            "contradicts itself",
            got=f"{type(error).__name__}: {error}",
            do="The file is damaged: export it again. If an engine runs it, please report it with the model.",
        ) from error


def _import(model: CheckedOnnx, bind: Mapping[str, Array], sizes: Mapping[str, int]) -> OnnxImport:
    proto, path = model.proto, model.path
    folder = path.parent if path else None
    declared = [*proto.graph.input, *proto.graph.output, *proto.graph.value_info]
    values = OnnxValues(
        proto,
        model.name,
        OnnxTypes(model.dtypes, dim_params(declared), sizes),
        path=path,
        folder=folder,
        offsets=raw_offsets(model.data) if path else {},
    )
    scope = Scope.of_graph(proto.graph, model.opsets)
    for declared_input in proto.graph.input:
        if declared_input.name not in scope.tensors:
            values.input(declared_input, scope, bind.get(declared_input.name))
    OnnxLowering(proto, values).nodes(zip(model.names, proto.graph.node, strict=True), scope)
    for name in dict.fromkeys(
        o.name for o in proto.graph.output
    ):  # PyTorch's exporter may list a value twice
        values.b.output(name, values.value(name, scope))
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
