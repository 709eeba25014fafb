"""A model with small scores: what a detector's head computes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest


def scores(path: Path, bias: float, after: str = "") -> Path:
    """A detector's head: small scores, of which ONNX Runtime's sigmoid has an error of some last places of 1."""
    onnx = pytest.importorskip("onnx")
    h, kind = onnx.helper, onnx.TensorProto.FLOAT
    weights = {
        "w": np.random.default_rng(0).standard_normal((40, 30)).astype(np.float32) * 0.05,
        "b": np.full(30, bias, np.float32),
        "thousand": np.float32(1000.0),
    }
    nodes = [
        h.make_node("Gemm", ["x", "w", "b"], ["z"]),
        h.make_node("Sigmoid", ["z"], ["s"]),
        h.make_node("Transpose", ["s"], ["t"]),
    ]
    nodes.append(
        h.make_node(after, ["t", "thousand"], ["y"]) if after else h.make_node("Identity", ["t"], ["y"])
    )
    graph = h.make_graph(
        nodes, "scores", [h.make_tensor_value_info("x", kind, [3, 40])], [h.make_tensor_value_info("y", kind, [30, 3])],
        [onnx.numpy_helper.from_array(a, n) for n, a in weights.items()],
    )  # fmt: skip
    path.write_bytes(
        h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8).SerializeToString()
    )
    return path
