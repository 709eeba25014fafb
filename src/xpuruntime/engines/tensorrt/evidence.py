"""Evidence of what TensorRT runs: the layers of the engine from the vendor's inspector, with tactics and formats, and the profiler's times."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ...protocols import Evidence, EvidenceRow, ModelSource
from ..attribution import SourceGraph

__all__ = ["collect"]

_NODE = re.compile(r"\[ONNX Layer: ([^\]]+)\]")
_TYPE = re.compile(
    r"\b(FP32|FP16|BF16|FP8|INT8|INT32|INT64|UINT8|BOOL|Float|Half|BFloat16|Int8|Int32|Int64|Bool)\b",
    re.IGNORECASE,
)
_TYPES = {
    "fp32": "float32", "float": "float32", "fp16": "float16", "half": "float16", "bf16": "bfloat16", "bfloat16": "bfloat16",
    "fp8": "float8_e4m3fn", "int8": "int8", "int32": "int32", "int64": "int64", "uint8": "uint8", "bool": "bool",
}  # fmt: skip
_MOVERS = frozenset({"Reformat", "NoOp", "Shuffle", "Copy"})


def collect(
    model: ModelSource, report: str, version: str, device: str, times: Mapping[str, float] | None, runs: int
) -> Evidence:
    """Return the evidence of an engine. report: the inspector's JSON. times: microseconds by layer."""
    layers = json.loads(report, strict=False).get("Layers", [])  # names have control characters as they are
    source = SourceGraph(model)
    nodes = [_nodes(layer, source) for layer in layers]
    source.absorb(nodes, lambda _, i: _kind(layers[i]) not in _MOVERS)
    rows = []
    for layer, names in zip(layers, nodes, strict=True):
        name = layer if isinstance(layer, str) else str(layer.get("Name", ""))
        activations, weights = _operands(layer)
        rows.append(
            EvidenceRow(
                source.ordered(names),
                _kind(layer),
                device,
                name if isinstance(layer, str) else str(layer.get("TacticName") or _kind(layer)),
                _type_of(_tensors(layer, "Outputs")),
                None if times is None else times.get(name),
                activations=activations,
                weights=weights,
            )
        )
    covered = {n for r in rows for n in r.nodes}
    missing = [n for n in source.nodes if n not in covered]
    notes = []
    if any(isinstance(layer, str) for layer in layers):
        notes.append(
            "the engine was built without detailed information, so only the names of its layers are known"
        )
    if missing:
        listed = ", ".join(missing[:8]) + (", ..." if len(missing) > 8 else "")
        notes.append(f"not reported separately (fused, folded or removed): {len(missing)} nodes: {listed}")
    return Evidence(
        engine="tensorrt",
        version=version,
        rows=tuple(rows),
        placement_source="session",
        time_source=f"profiled context, median of {runs} runs" if times else "",
        notes=tuple(notes),
    )


def _kind(layer: Any) -> str:
    return "layer" if isinstance(layer, str) else str(layer.get("LayerType", "layer"))


def _nodes(layer: Any, source: SourceGraph) -> set[str]:
    """Return the model's nodes that a layer's metadata names, else those in its own name (``conv1 + relu1``)."""
    if isinstance(layer, str):
        names = layer.split(" + ")
    else:
        names = _NODE.findall(str(layer.get("Metadata", ""))) or str(layer.get("Name", "")).split(" + ")
    return {n.strip() for n in names} & source.nodes.keys()


def _tensors(layer: Any, key: str) -> Sequence[Mapping[str, Any]]:
    return () if isinstance(layer, str) else [t for t in layer.get(key) or () if isinstance(t, Mapping)]


def _type_of(tensors: Sequence[Mapping[str, Any]]) -> str:
    """Return the element type of the first tensor (``Row major linear FP16``); empty without one."""
    text = str(tensors[0].get("Format/Datatype", "")) if tensors else ""
    names = _TYPE.findall(text)
    return _TYPES[names[-1].lower()] if names else ""


def _operands(layer: Any) -> tuple[str, str]:
    """Return element types of the activations and weights of a product; empty for other layers."""
    if isinstance(layer, str):
        return "", ""
    inputs = _tensors(layer, "Inputs")
    weights = layer.get("Weights")
    if isinstance(weights, Mapping) and inputs and (names := _TYPE.findall(str(weights.get("Type", "")))):
        return _type_of(inputs), _TYPES[names[0].lower()]
    if "gemm" in _kind(layer).lower() or "matmul" in _kind(layer).lower():
        return (_type_of(inputs), _type_of(inputs[1:])) if len(inputs) > 1 else ("", "")
    return "", ""
