"""What the native engine does not take, it refuses before anything is built, so that a fallback still has its turn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import xpuruntime as xrt
from xpuruntime.decisions import Reason

onnx = pytest.importorskip("onnx")
helper, FLOAT, INT64 = onnx.helper, onnx.TensorProto.FLOAT, onnx.TensorProto.INT64


def model_of(op: str, out: tuple[int, list[Any]], *, domain: str = "") -> Any:
    """A model of one node, ``find``, over ``x: float32[4]``."""
    node = helper.make_node(op, ["x"], ["y"], name="find", domain=domain)
    x = helper.make_tensor_value_info("x", FLOAT, [4])
    opsets = [helper.make_opsetid("", 17), *([helper.make_opsetid(domain, 1)] if domain else [])]
    graph = helper.make_graph([node], "finds", [x], [helper.make_tensor_value_info("y", *out)])
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize(
    ("model", "code", "text"),
    [
        (model_of("Strange", (FLOAT, [4]), domain="mine"), Reason.OP_UNSUPPORTED, "Strange (find) has no form in the IR"),
    ],
    ids=["op"],
)  # fmt: skip
def test_it_says_why(model: Any, code: Reason, text: str) -> None:
    with pytest.raises(xrt.EngineUnavailable) as caught:
        xrt.InferenceSession(model, engine="native", device="cpu")
    assert caught.value.decision is not None
    refused = caught.value.decision.rejected[0]
    assert refused.code is code
    assert text in refused.reason


def test_a_fallback_takes_over() -> None:
    pytest.importorskip("onnxruntime")
    policy = xrt.ExecutionPolicy(allow_fallback="cpu")
    model = model_of("NonZero", (INT64, [1, "n"]))
    with xrt.InferenceSession(model, engine="native", device="cpu", exec_policy=policy) as session:
        assert session.plan.regions[0].engine == "onnxruntime"
        assert session.run({"x": np.array([0, 1, 0, 2], np.float32)})["y"].tolist() == [[1, 3]]
