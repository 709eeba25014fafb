"""Models of opsets before 9, as published networks of those years are: legacy broadcasting, test mode, attributes that became operands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import xpuruntime as xrt
from xpuruntime.frontends.onnx import import_onnx
from xpuruntime.ir import interp

Array = np.ndarray[Any, Any]
F, node = TensorProto.FLOAT, helper.make_node
X = np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype(np.float32)
C3 = np.array([0.5, -1.5, 2.0], np.float32)
PAIRS = np.array([[1.0, -2.0], [3.0, 0.25]], np.float32)


def model(opset: int, op: str, arrays: list[Array], outputs: int = 1, **attributes: Any) -> onnx.ModelProto:
    """Return a model of one node: the first array is the input, the others are weights."""
    names = [f"i{i}" for i in range(len(arrays))]
    made = node(op, names, [f"y{i}" for i in range(outputs)], **attributes)
    dtype = helper.np_dtype_to_tensor_dtype
    graph = helper.make_graph(
        [made],
        "g",
        [helper.make_tensor_value_info("i0", dtype(arrays[0].dtype), arrays[0].shape)],
        [helper.make_tensor_value_info(f"y{i}", F, None) for i in range(outputs)],
        [numpy_helper.from_array(a, n) for n, a in zip(names[1:], arrays[1:], strict=True)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=3)


def lowered(proto: onnx.ModelProto, x: Array) -> Array:
    graph, weights = import_onnx(proto)
    assert [n.attrs["reason"] for n in graph.nodes if n.op == "opaque"] == []
    (y,) = interp.run(graph, {"i0": x}, weights=weights).values()
    return y


def reason(proto: onnx.ModelProto) -> str:
    graph, _ = import_onnx(proto)
    (text,) = [str(n.attrs["reason"]) for n in graph.nodes if n.op == "opaque"]
    return text


NORMAL = (X - C3[:, None, None]) / np.sqrt(np.float32(4.0) + np.float32(1e-5)) * C3[:, None, None] + 1
STATISTICS = [X, C3, np.ones(3, np.float32), C3, np.full(3, 4, np.float32)]
CASES: list[tuple[int, str, list[Array], dict[str, Any], Array]] = [
    (6, "Add", [X, C3], {"broadcast": 1, "axis": 1}, X + C3[:, None, None]),
    (6, "Sub", [X, C3], {"broadcast": 1, "axis": -3}, X - C3[:, None, None]),
    (6, "Mul", [X, X[0, 0, 0]], {"broadcast": 1}, X * X[0, 0, 0]),
    (6, "Div", [X, np.float32(3)], {"broadcast": 1}, X / np.float32(3)),
    (1, "Pow", [X, X[0, :, :, :1] ** 0], {"broadcast": 1, "axis": 1}, X),
    (6, "PRelu", [X, C3], {}, np.where(X < 0, X * C3[:, None, None], X)),
    (6, "BatchNormalization", STATISTICS, {"is_test": 1}, NORMAL),
    (7, "BatchNormalization", STATISTICS, {"spatial": 1}, NORMAL),
    (8, "BatchNormalization", STATISTICS, {}, NORMAL),
    (6, "Dropout", [X], {"is_test": 1, "ratio": 0.5}, X),
    (7, "Upsample", [X], {"scales": [1.0, 1.0, 2.0, 3.0]}, X.repeat(2, 2).repeat(3, 3)),
    (1, "Upsample", [X], {"height_scale": 2.0, "width_scale": 3.0}, X.repeat(2, 2).repeat(3, 3)),
    (10, "Resize", [X, np.array([1, 1, 1, 0.6], np.float32)], {}, X[..., [0, 2, 4]]),
    (10, "Resize", [X, np.array([1, 1, 2, 0.6], np.float32)], {}, X.repeat(2, 2)[..., [0, 2, 4]]),
    (6, "Gemm", [PAIRS, PAIRS, C3[:2]], {"broadcast": 1, "transB": 1}, PAIRS @ PAIRS.T + C3[:2]),
    (8, "MatMul", [PAIRS, PAIRS], {}, PAIRS @ PAIRS),
    (8, "Flatten", [X], {"axis": 2}, X.reshape(6, 20)),
    (7, "Max", [X, X * -1], {}, np.abs(X)),
    (5, "Relu", [X], {"consumed_inputs": [0]}, np.maximum(X, 0)),
    (5, "Cast", [np.arange(4)], {"to": "FLOAT"}, np.arange(4, dtype=np.float32)),
    (4, "Reshape", [X], {"shape": [0, -1]}, X.reshape(2, 60)),
    (1, "Pad", [PAIRS], {"paddings": [0, 1, 0, 1], "value": 2.0}, np.pad(PAIRS, ((0, 0), (1, 1)), constant_values=2)),
]  # fmt: skip


@pytest.mark.parametrize(("opset", "op", "arrays", "attributes", "want"), CASES, ids=lambda v: str(v)[:18])
def test_a_node_of_an_earlier_opset_computes_what_it_meant(
    opset: int, op: str, arrays: list[Array], attributes: dict[str, Any], want: Array
) -> None:
    y = lowered(model(opset, op, arrays, **attributes), arrays[0])
    assert y.dtype == want.dtype
    np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("proto", "text"),
    [
        (model(6, "Add", [X, C3], axis=1), "broadcast only with broadcast=1"),
        (model(6, "Add", [X, C3], axis=4, broadcast=1), "axis 4 does not align"),
        (model(6, "BatchNormalization", STATISTICS), "is_test is not 1"),
        (model(6, "Dropout", [X], ratio=0.5), "is_test is not 1"),
        (model(7, "BatchNormalization", STATISTICS, spatial=0), "spatial=0"),
        (
            model(1, "Tile", [X, np.int64(2), np.int64(1)]),
            "opset 1 defines the op differently from opset 9",
        ),
    ],
)
def test_what_it_cannot_mean_now_is_refused(proto: onnx.ModelProto, text: str) -> None:
    assert text in reason(proto)


def test_networks_of_earlier_opsets_run_natively() -> None:
    """Models that the onnx package publishes with inputs and outputs of the time; every eighth."""
    folder = Path(onnx.__file__).parent / "backend/test/data"
    files = sorted(
        [*folder.glob("pytorch-operator/*/model.onnx"), *folder.glob("pytorch-converted/*/model.onnx")]
    )
    if not files:
        pytest.skip("this onnx package has no test data")
    earlier = [f for f in files if onnx.load(f).opset_import[0].version < 9]
    assert earlier
    for file in earlier[::8]:
        session = xrt.InferenceSession(str(file), engine="native")
        data_sets = list(file.parent.glob("test_data_set_*"))
        assert data_sets, file
        for data in data_sets:
            names = [i.name for i in session.get_inputs()]
            read = {
                kind: [numpy_helper.to_array(onnx.load_tensor(p)) for p in sorted(data.glob(f"{kind}_*.pb"))]
                for kind in ("input", "output")
            }
            outputs = session.run(None, dict(zip(names, read["input"], strict=True)))
            for mine, theirs in zip(outputs, read["output"], strict=True):
                np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-4, err_msg=file.parent.name)
