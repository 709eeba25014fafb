"""PyTorch modules as models of a session: as a graph for the native engine, exported to ONNX for the other engines."""

from __future__ import annotations

import hashlib
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np

from ...errors import InputError, ModelError
from ...frontends.lowered_parts import EVERYTHING, LoweredParts
from ...frontends.model_file import open_model
from ...ir import Graph, Node
from ...ir.extensions import LEFT_TO_PYTORCH
from ...protocols import Array, ModelSource, NodeRef
from ...runtime.device import cpu
from ...storage.store import Store
from ...types import DType, TensorSpec
from .digests import kept_by_digest
from .exported_cache import import_known
from .model_cache import open_known
from .programs import is_program, open_program

__all__ = ["as_onnx", "open_any"]

_PIECE = 1 << 20
"""Bytes of a weight that have a digest of their own. Digests of models depend on it."""
_MOST_PIECES = 256


def open_any(
    model: Any,
    example_inputs: Any,
    dynamic_shapes: Any,
    store: Store,
    parts: LoweredParts = EVERYTHING,
) -> ModelSource:
    """Open a model, an ``nn.Module`` (traced with example inputs) or a ``torch.export.ExportedProgram``. Files use their store records.

    parts: what of a module is lowered.
    Raises ModelError, InputError.
    """
    if is_program(model):
        return open_program(model)
    if not _is_torch(model):
        if dynamic_shapes is not None:
            raise InputError(
                "session",
                "dynamic_shapes are for PyTorch modules",
                got=type(model).__name__,
                do="Leave them out.",
            )
        return open_known(model, store)
    if example_inputs is None and not hasattr(model, "graph_signature"):
        raise InputError(
            f"session({type(model).__name__})",
            "needs example inputs to trace a PyTorch module",
            do="Give example_inputs=(tensor, ...), or an ExportedProgram.",
        )
    graph, weights = import_known(model, example_inputs, dynamic_shapes, store, parts)
    return _source(graph, weights)


def _is_torch(model: object) -> bool:
    """Return True for an ``nn.Module`` or ExportedProgram, without importing torch: a caller that has one has imported it."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    export = getattr(torch, "export", None)
    return isinstance(model, torch.nn.Module) or (
        export is not None and isinstance(model, export.ExportedProgram)
    )


def _source(graph: Graph, weights: Mapping[str, Array]) -> ModelSource:
    return ModelSource(
        name=graph.name,
        format="graph",
        path=None,
        data=None,
        digest=_digest(graph, weights),
        inputs=graph.input_specs,
        outputs=_output_specs(graph),
        nodes=_nodes(graph),
        precision=_precision(graph),
        graph=(graph, weights),
    )


def _output_specs(graph: Graph) -> tuple[TensorSpec, ...]:
    """Return the specs of the outputs. Raise ModelError for one whose shape no dims describe."""
    unknown = next((o for o in graph.outputs if graph.values[o.value].spec is None), None)
    if unknown is None:
        return graph.output_specs
    opaque = next(n for n in graph if n.op == "opaque" and any(v.spec is None for v in n.outputs))
    raise ModelError(
        f"session({graph.name!r}) output {unknown.name!r}",
        "has a shape that sums, products and floor divisions of the dynamic dims do not describe",
        got=f"{opaque.attrs['op_type']} ({opaque.name}): {opaque.attrs.get('reason', 'unknown')}",
        do="Fix the dims in that size, or compute it as an integer (a scale factor of 1.5 or 2, not 1.7).",
    )


def _digest(graph: Graph, weights: Mapping[str, Array]) -> str:
    """Return the sha256 of the graph without source locations, and of the digests of every weight's pieces, which are computed side by side."""
    bare = graph.replace(nodes=tuple(Node(n.op, n.inputs, n.attrs, n.outputs) for n in graph.nodes))
    digest = hashlib.sha256(bare.digest.encode())
    with ThreadPoolExecutor(cpu().usable_cores, "xpu-digest") as threads:
        pieces: list[tuple[bytes, Array]] = []
        for weight in graph.weights:
            pieces += _pieces(weight.name, weights[weight.name])
            if len(pieces) > _MOST_PIECES:  # arrays may be copies from a device
                digest.update(b"".join(threads.map(_sha256, pieces)))
                pieces.clear()
        digest.update(b"".join(threads.map(_sha256, pieces)))
    return digest.hexdigest()


def _pieces(name: str, array: Array) -> Iterator[tuple[bytes, Array]]:
    """Yield the bytes of a weight in pieces, each with its name and place."""
    elements = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    for start in range(0, max(1, elements.size), _PIECE):
        yield f"{name} {start} {elements.size}\n".encode(), elements[start : start + _PIECE]


def _sha256(piece: tuple[bytes, Array]) -> bytes:
    digest = hashlib.sha256(piece[0])
    digest.update(piece[1].data)  # releases the interpreter's lock
    return digest.digest()


def _nodes(graph: Graph) -> tuple[NodeRef, ...]:
    """Return the nodes of the exported program, each once."""
    refs: dict[str, NodeRef] = {}
    for node in graph.nodes:
        outputs = tuple(v.name for v in node.outputs)
        for source in node.sources:
            name = source.name or node.name
            refs.setdefault(name, NodeRef(name, source.op or node.op, "aten", node.values, outputs))
    return tuple(refs.values())


def _precision(graph: Graph) -> DType:
    """Return the float type of most weight elements, else of the widest input or output, else float32."""
    counts: Counter[DType] = Counter()
    for weight in graph.weights:
        if weight.spec.dtype.is_float:
            counts[weight.spec.dtype] += weight.spec.size_bytes or 0
    borders = [s.dtype for s in (*graph.input_specs, *graph.output_specs) if s.dtype.is_float]
    return (
        counts.most_common(1)[0][0] if counts else max(borders, key=lambda d: d.bits, default=DType.FLOAT32)
    )


def as_onnx(model: ModelSource) -> ModelSource:
    """Return a model from PyTorch as ONNX and any other unchanged. Raises ModelError if ONNX cannot express it."""
    if model.format == "program":
        raise ModelError(
            f"model {model.name!r}",
            "is a compiled program and cannot be converted to ONNX",
            got=f"program {model.name!r}",
            do="Use engine='native', or open the model that it was compiled from.",
        )
    return model if model.format != "graph" else _written(model)


@kept_by_digest
def _written(model: ModelSource) -> ModelSource:
    from ...frontends.onnx_writer import to_onnx

    graph, weights = model.graph
    if graph.states:
        opaque = any(n.op == "opaque" for n in graph.nodes)
        raise ModelError(
            f"model {model.name!r}",
            "keeps state from run to run, which ONNX cannot express",
            got=", ".join(s.name for s in graph.states),
            do=f"{LEFT_TO_PYTORCH}." if opaque else "Use engine='native'.",
        )
    # The graph stays with it, as the source of references that do not depend on how it was written.
    return replace(open_model(to_onnx(graph, weights), name=model.name), graph=model.graph)
