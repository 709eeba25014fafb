"""Receipts of models on several engines: every node of the model has a step or a reason, those that the import folds away included."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xpuruntime as xrt
from xpuruntime.profiler.receipt import ReceiptFigures

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


def shape_model(path: Path) -> Path:
    """Write a product, a reshape by computed sizes, a constant and a node that nothing reads; ``x`` float32[batch, 8]."""
    from onnx import helper, numpy_helper

    draw = np.random.default_rng(0)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="fc"),
        helper.make_node("Shape", ["a"], ["s"], name="shape"),
        helper.make_node("Gather", ["s", "zero"], ["b"], name="size"),
        helper.make_node("Unsqueeze", ["b", "axis"], ["u"], name="unsqueeze"),
        helper.make_node("Concat", ["u", "two", "minus"], ["d"], axis=0, name="concat"),
        helper.make_node("Reshape", ["a", "d"], ["r"], name="reshape"),
        helper.make_node("Relu", ["r"], ["y"], name="relu"),
        helper.make_node("Exp", ["a"], ["unread"], name="unread"),
    ]
    weights = [
        numpy_helper.from_array(draw.standard_normal((8, 6)).astype(np.float32), "w"),
        *(
            numpy_helper.from_array(np.array(v, np.int64), n)
            for n, v in (("zero", 0), ("axis", [0]), ("two", [2]), ("minus", [-1]))
        ),
    ]
    inputs = [helper.make_tensor_value_info("x", 1, ["batch", 8])]
    outputs = [helper.make_tensor_value_info("y", 1, ["batch", 2, 3])]
    graph = helper.make_graph(nodes, "shapes", inputs, outputs, weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.mark.parametrize(
    "place", [{"fc": "native"}, {"relu": "native"}, {"matmul": "native", "relu": "native"}]
)
def test_every_node_of_a_mixed_model_is_explained(tmp_path: Path, place: dict[str, Any]) -> None:
    model = shape_model(tmp_path / "m.onnx")
    policy = {"version": 1, "execution": {"place": place}}
    with xrt.InferenceSession(model, engine="onnxruntime", device="cpu", policy=policy) as session:
        session.run({"x": np.ones((3, 8), np.float32)})
        receipt = session.receipt()
        lock = session.lock()
    figures = ReceiptFigures.of(receipt.plan, receipt.evidence)
    assert (figures.unexplained, figures.node_share) == ((), 1.0)
    regions = {r.id for r in receipt.plan.regions}
    assert {n.region for n in receipt.plan.nodes} <= regions
    reasons = {n: why for e in receipt.evidence.values() for n, why in e.explained.items()}
    stepped = {n for e in receipt.evidence.values() for row in e.rows for n in row.nodes}
    assert "unread" in stepped or "no output depends on it" in reasons["unread"]
    assert "shapes alone" in reasons["size"]
    with xrt.InferenceSession(model, lock=lock) as session:
        assert session.run({"x": np.ones((3, 8), np.float32)})["y"].shape == (3, 2, 3)
