"""The description of a model: inputs, outputs, ops by family, parameters, and which engines support it, with reasons."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..decisions import Reason, Support
from ..engines import engine_names, lookup
from ..errors import PluginError, UnavailableError
from ..families import family_of_onnx
from ..frontends.model_file import open_model
from ..protocols import Engine, EngineRequest, ModelSource
from ..targets import DeviceId
from ..types import DType
from .devices import support_json

__all__ = ["EngineSupport", "Inspection", "Parameters", "inspect_model"]


@dataclass(frozen=True, slots=True)
class Parameters:
    """The constant tensors of a model: their number, total elements and bytes, and elements by dtype."""

    tensors: int
    elements: int
    bytes: int
    by_dtype: Mapping[str, int]

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "tensors": self.tensors,
            "elements": self.elements,
            "bytes": self.bytes,
            "by_dtype": dict(self.by_dtype),
        }


@dataclass(frozen=True, slots=True)
class EngineSupport:
    """An engine's support for the model on a device. Nothing is built to find out."""

    engine: str
    device: str
    support: Support

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {"engine": self.engine, "device": self.device, **support_json(self.support)}


@dataclass(frozen=True, slots=True)
class Inspection:
    """The content of ``xpu inspect``. ``parameters`` is None for formats other than ONNX."""

    model: ModelSource
    families: Mapping[str, Mapping[str, int]]
    parameters: Parameters | None
    engines: tuple[EngineSupport, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        m = self.model
        return {
            "name": m.name,
            "format": m.format,
            "digest": m.digest,
            "precision": m.precision.value,
            "opsets": dict(m.opsets),
            "inputs": [{"name": s.name, "spec": str(s)} for s in m.inputs],
            "outputs": [{"name": s.name, "spec": str(s)} for s in m.outputs],
            "nodes": len(m.nodes),
            "families": {family: dict(ops) for family, ops in self.families.items()},
            "parameters": None if self.parameters is None else self.parameters.to_json(),
            "engines": [e.to_json() for e in self.engines],
        }


def inspect_model(model: Any, device: str = "cpu") -> Inspection:
    """Open a model and ask every engine for its support on a device. Raise ModelError, or DeviceUnavailable for an invalid device name."""
    target = DeviceId.parse(device)
    source = open_model(model)
    ops: dict[str, Counter[str]] = {}
    for node in source.nodes:
        op = f"{node.domain}::{node.op}" if node.domain not in ("", "ai.onnx") else node.op
        ops.setdefault(family_of_onnx(node.op, node.domain), Counter())[op] += 1
    families = {f: dict(c.most_common()) for f, c in sorted(ops.items(), key=lambda item: -item[1].total())}
    engines = tuple(_engine_support(name, source, target) for name in engine_names())
    return Inspection(source, families, _parameters(source), engines)


def _engine_support(name: str, model: ModelSource, device: DeviceId) -> EngineSupport:
    try:
        plugin = lookup(name)
    except UnavailableError as error:
        return EngineSupport(name, str(device), Support.no(Reason.NOT_INSTALLED, error.what, do=error.do))
    installed = plugin.installed()
    if not installed:
        return EngineSupport(name, str(device), installed)
    if model.format not in plugin.formats:
        text = f"the engine reads {', '.join(plugin.formats)}, not {model.format}"
        return EngineSupport(name, str(device), Support.no(Reason.FORMAT_UNSUPPORTED, text))
    try:
        engine: Engine = plugin.load()
        return EngineSupport(name, str(device), engine.supports(model, EngineRequest(device)))
    except PluginError as error:
        text = f"{error.what}: {error.got}"
        return EngineSupport(name, str(device), Support.no(Reason.BUILD_FAILED, text, do=error.do))


def _parameters(model: ModelSource) -> Parameters | None:
    """Count the initializers and constants of an ONNX model and its subgraphs, without reading weights."""
    if model.format != "onnx":
        return None
    import onnx

    proto = (
        onnx.load(model.path, load_external_data=False) if model.path else onnx.load_from_string(model.data)
    )
    tensors, elements, size, by_dtype = 0, 0, 0, Counter[str]()
    for dims, data_type in _constants(proto.graph):
        count = math.prod(dims)
        dtype = _dtype(onnx, data_type)
        tensors += 1
        elements += count
        size += 0 if dtype is None else (count * dtype.bits + 7) // 8
        by_dtype["unknown" if dtype is None else dtype.value] += count
    return Parameters(tensors, elements, size, dict(by_dtype.most_common()))


def _constants(graph: Any) -> list[tuple[tuple[int, ...], int]]:
    constants = [(tuple(t.dims), t.data_type) for t in graph.initializer]
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.name == "value":
                constants.append((tuple(attribute.t.dims), attribute.t.data_type))
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                constants += _constants(inner)
    return constants


def _dtype(onnx: Any, data_type: int) -> DType | None:
    name = onnx.TensorProto.DataType.Name(data_type).lower()
    spellings = {
        "float": "float32",
        "double": "float64",
        "float8e4m3fn": "float8_e4m3fn",
        "float8e5m2": "float8_e5m2",
    }
    try:
        return DType(spellings.get(name, name))
    except ValueError:
        return None
