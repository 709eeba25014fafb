"""The graphs that the provider hands to QNN, from its JSON dump: op types and element types as the vendor names them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["dtype_name", "ops_of", "source_name"]

# High byte of a Qnn_DataType_t -> kind. The low byte holds the bits as decimal digits: 0x0408 is an unsigned fixed-point number of 8 bits.
_KINDS = {0x00: "int", 0x01: "uint", 0x02: "float", 0x03: "int", 0x04: "uint"}
_BOOL = 0x0508
_LAYOUT_SUFFIX = re.compile(r"_token_\d+$")


def dtype_name(code: int) -> str:
    """Return the DType name of a Qnn_DataType_t; fixed-point types are the integers that store them. Empty for an unknown code."""
    if code == _BOOL:
        return "bool"
    kind, bits = _KINDS.get(code >> 8, ""), f"{code & 0xFF:x}"
    return f"{kind}{bits}" if kind and bits in ("4", "8", "16", "32", "64") else ""


def source_name(name: str) -> str:
    """Return a node's name without the suffix that ONNX Runtime adds when it changes the layout: ``conv_token_1`` -> ``conv``."""
    return _LAYOUT_SUFFIX.sub("", name)


def ops_of(graphs: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return each op of the graphs: ``name``, ``op``, and the element types and names of its ``inputs`` and ``outputs``."""
    ops = []
    for dump in graphs:
        graph = dump.get("graph")
        if not graph:  # the other file of a graph, which logs its tensors
            continue
        types = {n: dtype_name(int(t.get("data_type", -1))) for n, t in graph["tensors"].items()}
        for name, node in graph["nodes"].items():
            inputs, outputs = node["input_names"], node["output_names"]
            ops.append(
                {
                    "name": name,
                    "op": node["type"],
                    "inputs": [(i, types.get(i, "")) for i in inputs],
                    "outputs": [(o, types.get(o, "")) for o in outputs],
                }
            )
    return ops
