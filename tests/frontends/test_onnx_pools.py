"""Pools of ONNX models with ``auto_pad`` and ``ceil_mode`` on the native engine, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

ort = pytest.importorskip("onnxruntime")

import xpuruntime as xrt  # noqa: E402

WINDOWS: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((11, 6), {"kernel_shape": [2, 4], "strides": [1, 3]}),
    ((5, 10), {"kernel_shape": [3, 3], "strides": [3, 2]}),
    ((8,), {"kernel_shape": [3], "strides": [2]}),
    ((9, 10, 5), {"kernel_shape": [3, 3, 4], "strides": [3, 2, 1]}),
    ((7,), {"kernel_shape": [1], "strides": [2]}),
]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize("op", ["LpPool", "AveragePool", "MaxPool"])
@pytest.mark.parametrize(("size", "window"), WINDOWS)
def test_ceil_mode_with_auto_pad(
    op: str, auto_pad: str, size: tuple[int, ...], window: dict[str, Any]
) -> None:
    attrs = {"auto_pad": auto_pad, "ceil_mode": 1, **window, **({"p": 3} if op == "LpPool" else {})}
    node = helper.make_node(op, ["x"], ["y"], **attrs)
    x = np.random.default_rng(0).standard_normal((2, 3, *size)).astype(np.float32)
    graph = helper.make_graph(
        [node],
        "pool",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    data = model.SerializeToString()
    (want,) = ort.InferenceSession(data, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    with xrt.InferenceSession(data, engine="native") as session:
        (got,) = session.run({"x": x}).values()
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-6)
