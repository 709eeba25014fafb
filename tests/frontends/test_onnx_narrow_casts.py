"""Casts from float32 to narrow types on native, against ONNX's reference evaluator.

ONNX Runtime differs from both: it rounds to int4 and int2 where ONNX truncates (also 7.5 to -8), and without ``saturate`` it gives 448 for 480 in
float8e4m3fn and NaN for 61440 in float8e5m2.
"""

from __future__ import annotations

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

import xpuruntime as xrt  # noqa: E402

IN_RANGE = [0.0, -0.0, 0.5, 0.9, 1.5, 2.5, 6.5, 7.0, 7.9]
SIGNED = [-0.5, -0.9, -1.5, -2.5, -7.5, -8.0, -8.9]
INTEGERS = {
    "INT4": IN_RANGE + SIGNED,
    "UINT4": [*IN_RANGE, 8.5, 15.0, 15.9],
    "INT8": [*IN_RANGE, -127.9, 127.9],
}
EDGES = [0.0, -0.0, 1e-3, 2.0**-10, 240.0, 248.0, 449.0, 464.0, 480.0, 57344.0, 61440.0, 65536.0, 1e9]
FLOATS = ["FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ"]


def agree(name: str, values: list[float], **attributes: int) -> None:
    x = np.array(values, np.float32)
    nodes = [
        helper.make_node("Cast", ["x"], ["narrow"], to=getattr(TensorProto, name), **attributes),
        helper.make_node("Cast", ["narrow"], ["y"], to=TensorProto.FLOAT),
    ]
    ends = [[helper.make_tensor_value_info(n, TensorProto.FLOAT, [x.size])] for n in "xy"]
    model = helper.make_model(
        helper.make_graph(nodes, "casts", *ends), opset_imports=[helper.make_opsetid("", 21)], ir_version=10
    )
    with xrt.InferenceSession(model, engine="native", device="cpu") as session:
        got = session.run({"x": x})["y"]
    with np.errstate(all="ignore"):
        (want,) = ReferenceEvaluator(model).run(None, {"x": x})
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_truncate(name: str) -> None:
    agree(name, INTEGERS[name])


@pytest.mark.parametrize("saturate", [0, 1])
@pytest.mark.parametrize("name", FLOATS)
def test_float8_overflows_as_onnx_says(name: str, saturate: int) -> None:
    values = [*EDGES, *(-v for v in EDGES), np.inf, -np.inf, np.nan]
    agree(name, values, saturate=saturate)
