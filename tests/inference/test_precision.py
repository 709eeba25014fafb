"""precision="int8" without calibration data: weights only, close to the model, said in the plan."""

from __future__ import annotations

import numpy as np
import pytest

import xpuruntime as xrt
from xpuruntime.errors import PrecisionUnavailable
from xpuruntime.frontends.model_file import open_model
from xpuruntime.frontends.weights_int8 import quantise_weights
from xpuruntime.testing.onnx_models import build_model
from xpuruntime.types import DType

onnx = pytest.importorskip("onnx", reason="the tests build models with onnx")
pytest.importorskip("onnxruntime", reason="an engine is needed")
pytest.importorskip("openvino", reason="two engines are needed")
INT8 = xrt.ExecutionPolicy(precision="int8")


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_weights_become_int8_and_the_plan_says_so(engine, path, x, expected) -> None:
    with xrt.InferenceSession(path, device="cpu", engine=engine, exec_policy=INT8) as sess:
        out = sess.run(input=x)["output"]
        assert sess.plan.regions[0].precision == "int8"
        reason = sess.plan.decision("precision").chosen.reason
    assert "2 weights are int8" in reason
    assert "activations stay float32" in reason
    error = np.abs(out - expected).max()
    assert 0 < error < 0.02  # different numbers, the same model


def test_the_int8_values_are_within_half_a_step_of_the_weights(path, proto) -> None:
    import onnx
    from onnx import numpy_helper

    source, count = quantise_weights(open_model(path))
    assert count == 2
    assert source.quantized is DType.INT8
    made = {w.name: numpy_helper.to_array(w) for w in onnx.load_from_string(source.data).graph.initializer}
    own = {w.name: numpy_helper.to_array(w) for w in proto.graph.initializer}
    for name in ("w2",):
        values, scale = made[f"{name}__int8"], made[f"{name}__scale"]
        assert values.dtype == np.int8
        assert scale.shape == (own[name].shape[1],)
        assert np.abs(values * scale - own[name]).max() <= scale.max() / 2 * 1.0001
    assert made["w3"].dtype == np.float32  # 640 elements: too small to gain


def test_a_model_without_large_weights_says_why_not() -> None:
    node = onnx.helper.make_node("Relu", ["x"], ["y"], name="relu")
    proto = build_model([node], [("x", onnx.TensorProto.FLOAT, [2])], [("y", onnx.TensorProto.FLOAT, [2])])
    with pytest.raises(PrecisionUnavailable, match="no convolution or matrix product"):
        xrt.InferenceSession(proto, device="cpu", engine="onnxruntime", exec_policy=INT8)


def test_a_quantised_model_is_taken_as_it_is(path) -> None:
    source, _ = quantise_weights(open_model(path))
    with xrt.InferenceSession(source.data, device="cpu", engine="onnxruntime", exec_policy=INT8) as sess:
        assert sess.plan.regions[0].precision == "int8"
        assert "weights are int8" not in sess.plan.decision("precision").chosen.reason
    with xrt.InferenceSession(source.data, device="cpu", engine="onnxruntime") as sess:
        assert sess.plan.regions[0].precision == "int8"  # the model's own


def test_fp16_is_used_where_the_engine_has_it(path, x, expected) -> None:
    import openvino

    able = "FP16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    with xrt.InferenceSession(path, device="cpu", engine="openvino", fp16=True) as sess:
        out = sess.run(input=x)["output"]
        precision = sess.plan.regions[0].precision
        assert sess.receipt().confirmed
    assert precision == ("float16" if able else "float32")
    np.testing.assert_allclose(out, expected, atol=2e-2)
