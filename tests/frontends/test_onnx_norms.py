"""Normalizations of ONNX models on the native engine, against NumPy in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import xpuruntime as xrt

TYPES = {TensorProto.FLOAT: np.float32, TensorProto.FLOAT16: np.float16}


def computed(op: str, x: Any, kind: int, **attrs: Any) -> Any:
    graph = helper.make_graph(
        [helper.make_node(op, ["x"], ["y"], **attrs)],
        "norm",
        [helper.make_tensor_value_info("x", kind, x.shape)],
        [helper.make_tensor_value_info("y", kind, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    with xrt.InferenceSession(model.SerializeToString(), engine="native") as session:
        (y,) = session.run({"x": x}).values()
    return y


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("axes", [(0, 2, 3), (1,), (-1, 1)])
def test_small_variances_around_a_large_mean(kind: int, axes: tuple[int, ...]) -> None:
    """ONNX's function subtracts the squared mean from the mean of squares: NaN here, or few right digits."""
    x = (100 + np.random.default_rng(0).standard_normal((2, 3, 5, 4))).astype(TYPES[kind])
    x[:, 1] = 0.3  # a constant plane
    x[0, :, 2] = 0.3
    wide = x.astype(np.float64)
    std = wide.std(axis=axes, keepdims=True)
    want = (wide - wide.mean(axis=axes, keepdims=True)) / np.where(std < 1e-9, 1, std)
    options = {} if axes == (0, 2, 3) else {"axes": axes}
    y = computed("MeanVarianceNormalization", x, kind, **options)
    np.testing.assert_allclose(y.astype(np.float64), want, atol=2e-3 if kind == TensorProto.FLOAT16 else 1e-4)
