"""ONNX models of a node or two, for tests of reading files."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import TensorProto, helper

Value = onnx.ValueInfoProto


def value(name: str, shape: list[object] | None = (4,), kind: int = TensorProto.FLOAT) -> Value:  # type: ignore[assignment]
    return helper.make_tensor_value_info(name, kind, shape)


def model(
    nodes: list[onnx.NodeProto],
    *,
    inputs: list[Value] | None = None,
    outputs: list[Value] | None = None,
    **more: object,
):
    weights = more.pop("weights", [])
    opsets = more.pop("opsets", [("", 17)])
    functions = more.pop("functions", [])
    graph = helper.make_graph(nodes, "graph", inputs or [value("x")], outputs or [value("y")], weights)
    imports = [helper.make_opsetid(d, v) for d, v in opsets]
    return helper.make_model(graph, opset_imports=imports, ir_version=8, functions=functions)


def external(folder: Path, *, size: int = 16, **entries: object) -> Path:
    """A model in the folder whose weight is stored in ``w.bin``, of ``size`` bytes; entries change what it says of that."""
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, text in ({"location": "w.bin"} | entries).items():
        weight.external_data.add(key=key, value=str(text))
    path = folder / "m.onnx"
    onnx.save(model([helper.make_node("Add", ["x", "w"], ["y"])], weights=[weight]), path)
    if size:
        (folder / "w.bin").write_bytes(bytes(range(size)))
    return path


RELU = helper.make_node("Relu", ["x"], ["y"], name="r")
