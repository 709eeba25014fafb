"""Writing of graphs as versioned JSON; ``json_reader`` reads it.

Attribute values that JSON lacks are objects with one key: ``{"dtype": "float32"}``, ``{"dim": "2*n"}``, ``{"float": "nan"}``,
``{"const": [spec, hex or list of texts]}``, ``{"map": {...}}``, ``{"graph": {...}}``.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ...storage.files import write_atomic
from ...types import Dim, DType
from ..attributes import Attrs, Body, Const

if TYPE_CHECKING:
    from ..graph import Graph, Node, Value

__all__ = ["FORMAT", "SOURCE_FIELDS", "VERSION", "WEIGHT_FIELDS", "save", "to_bytes", "to_json"]

FORMAT = "xpuruntime.ir"
VERSION = 1

SOURCE_FIELDS = ("name", "op", "module", "file", "line")
WEIGHT_FIELDS = ("file", "format", "key", "offset", "digest", "data")


def to_json(graph: Graph) -> dict[str, Any]:
    """Return the graph as plain data."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "name": graph.name,
        "inputs": [_value_out(v) for v in graph.inputs],
        "weights": [
            {"value": _value_out(w.value)} | {k: getattr(w, k) for k in WEIGHT_FIELDS if getattr(w, k)}
            for w in graph.weights
        ],
        "states": [{"value": _value_out(s.value), "init": s.init, "next": s.next} for s in graph.states],
        "nodes": [_node_out(n) for n in graph.nodes],
        "outputs": [[o.name, o.value] for o in graph.outputs],
        "metadata": {k: _attr_out(v) for k, v in graph.metadata.items()},
    }


def to_bytes(graph: Graph) -> bytes:
    """Return canonical JSON: equal graphs have equal bytes."""
    data = to_json(graph)
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def save(graph: Graph, path: str | os.PathLike[str]) -> None:
    """Write JSON atomically, one node per line. Raises StoreError."""
    data = to_json(graph)
    parts = []
    for key, value in data.items():
        if isinstance(value, list) and value:
            items = ",\n  ".join(json.dumps(v, allow_nan=False, separators=(", ", ": ")) for v in value)
            parts.append(f"{json.dumps(key)}: [\n  {items}\n ]")
        else:
            parts.append(f"{json.dumps(key)}: {json.dumps(value, allow_nan=False)}")
    write_atomic(Path(path), ("{" + ",\n ".join(parts) + "}\n").encode())


def _value_out(value: Value) -> list[Any]:
    return [value.name, None if value.spec is None else str(value.spec)]


def _node_out(node: Node) -> dict[str, Any]:
    data: dict[str, Any] = {"op": node.op, "out": [_value_out(v) for v in node.outputs]}
    if node.inputs:
        data["in"] = [_attr_out(i) for i in node.inputs]
    if node.attrs:
        data["attrs"] = {k: _attr_out(v) for k, v in node.attrs.items()}
    if node.sources:
        data["from"] = [{k: getattr(s, k) for k in SOURCE_FIELDS if getattr(s, k)} for s in node.sources]
    return data


def _attr_out(value: Any) -> Any:
    match value:
        case DType():
            return {"dtype": value.value}
        case Dim():
            return {"dim": str(value)}
        case float() if not math.isfinite(value):
            return {"float": "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"}
        case Const():
            array = value.numpy()
            data = array.ravel().tolist() if value.dtype is DType.STRING else array.tobytes().hex()
            return {"const": [str(value.spec), data]}
        case tuple():
            return [_attr_out(v) for v in value]
        case Body():
            return {"graph": to_json(cast("Graph", value))}
        case Attrs():
            return {"map": {k: _attr_out(v) for k, v in value.items()}}
        case _:
            return value
