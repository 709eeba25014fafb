"""Slices and pads of ONNX models whose bounds only a run knows, on the native engine, against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

ort = pytest.importorskip("onnxruntime")

import xpuruntime as xrt  # noqa: E402

FAR = 2**63 - 1


def model_of(nodes: list[Any], inputs: Mapping[str, Any], **constants: Any) -> ModelProto:
    """Return a model with the output ``y``; the sizes of inputs are open."""
    graph = helper.make_graph(
        nodes,
        "bounds",
        [
            helper.make_tensor_value_info(
                n, helper.np_dtype_to_tensor_dtype(a.dtype), [f"{n}{i}" for i in range(a.ndim)] if n == "x" else a.shape
            )
            for n, a in inputs.items()
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(v, np.int64), n) for n, v in constants.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def check(model: ModelProto, *runs: Mapping[str, Any]) -> None:
    data = model.SerializeToString()
    reference = ort.InferenceSession(data, providers=["CPUExecutionProvider"])
    with xrt.InferenceSession(data, engine="native") as session:
        for feeds in runs:
            (want,), (got,) = reference.run(None, feeds), session.run(feeds).values()
            np.testing.assert_allclose(got, want, rtol=1e-6)
            assert got.shape == want.shape


def draw(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


SLICES: tuple[tuple[list[int], list[int]], ...] = (
    ([1, 2], [3, 8]),
    ([-3, -100], [50, -1]),
    ([FAR, 9], [-FAR, -FAR]),
    ([-100, 4], [-1000, 3]),
    ([0, -1], [0, 0]),
    ([2, 3], [-1, -8]),
)


@pytest.mark.parametrize("steps", [(1, 1), (2, -1), (-1, 3), (-2, -3)])
@pytest.mark.parametrize("kind", [np.int64, np.int32])
def test_bounds_of_a_slice(steps: tuple[int, int], kind: Any) -> None:
    far = np.iinfo(kind).max
    runs = []
    for starts, ends in SLICES:
        low, high = (np.clip(np.array(v), -far, far).astype(kind) for v in (starts, ends))
        runs.append({"x": draw(3, 4, 10), "starts": low, "ends": high})
    node = helper.make_node("Slice", ["x", "starts", "ends", "axes", "steps"], ["y"])
    axes = np.array([1, -1], kind)
    model = model_of([node], runs[0])
    for name, value in (("axes", axes), ("steps", np.array(steps, kind))):
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    check(model, *runs)


def test_a_bound_that_the_model_computes() -> None:
    """A length that is data: the rows up to it go through layers with weights."""
    x, length = draw(6, 5), np.array([4.0], np.float32)
    nodes = [
        helper.make_node("Cast", ["length"], ["end"], to=TensorProto.INT64),
        helper.make_node("Slice", ["x", "zero", "end", "zero"], ["rows"]),
        helper.make_node("Relu", ["rows"], ["positive"]),
        helper.make_node("ReduceSum", ["positive", "zero"], ["y"]),
    ]
    runs = [{"x": x, "length": length * 0 + n} for n in (4, 0, 9, -2)]
    check(model_of(nodes, runs[0], zero=[0]), *runs)


PADS: tuple[list[int], ...] = ([1, 0, 2, 3], [0, 0, 0, 0], [-1, 2, 1, -3], [-2, -1, 4, -1])


@pytest.mark.parametrize("mode", ["constant", "edge"])
def test_pads(mode: str) -> None:
    runs = [{"x": draw(4, 10), "pads": np.array(p)} for p in PADS]
    check(model_of([helper.make_node("Pad", ["x", "pads"], ["y"], mode=mode)], runs[0]), *runs)


def test_pads_of_some_axes_with_a_value() -> None:
    value = np.array(2.5, np.float32)
    runs = [{"x": draw(2, 4, 5), "pads": np.array(p), "value": value} for p in PADS]
    node = helper.make_node("Pad", ["x", "pads", "value", "axes"], ["y"])
    check(model_of([node], runs[0], axes=[-1, 1]), *runs)


@pytest.mark.parametrize("mode", ["constant", "edge"])
def test_a_value_of_known_pads(mode: str) -> None:
    node = helper.make_node("Pad", ["x", "pads", "value"], ["y"], mode=mode)
    runs = [{"x": draw(4, 10), "value": np.array(v, np.float32)} for v in (2.5, np.nan)]
    model = model_of([node], runs[0], pads=[1, -2, 0, 3])
    check(model, *runs)
    with xrt.InferenceSession(model.SerializeToString(), engine="native") as session:
        assert {r.engine for r in session.plan.regions} == {"native"}  # no size is open


def test_pads_that_are_refused() -> None:
    feeds = {"x": draw(4, 10), "pads": np.array(PADS[0])}
    model = model_of([helper.make_node("Pad", ["x", "pads"], ["y"], mode="reflect")], feeds)
    with pytest.raises(
        xrt.EngineUnavailable, match=r"its pads are known only at run time, and its mode is reflect"
    ):
        xrt.InferenceSession(model.SerializeToString(), engine="native")


def test_a_start_before_the_first_element_of_a_backward_slice() -> None:
    """It is the first element, as ONNX says. NumPy has none there."""
    node = helper.make_node("Slice", ["x", "start", "end", "axis", "step"], ["y"])
    x = draw(5)
    model = model_of([node], {"x": x}, start=[-100], end=[-FAR], axis=[0], step=[-1])
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 5
    check(model, {"x": x})


def test_an_end_that_crops_more_than_the_axis_has() -> None:
    x, few = draw(4), draw(1)
    model = model_of([helper.make_node("Pad", ["x", "pads"], ["y"])], {"x": x, "pads": np.zeros(2, np.int64)})
    cases = ((x, (-6, 5)), (x, (5, -6)), (few, (-2, 3)), (draw(0), (1, -1)), (x, (-4, 0)))
    check(model, *({"x": v, "pads": np.array(pads)} for v, pads in cases))


@pytest.mark.parametrize(
    ("sizes", "constants", "said"),
    [
        ((2, 2), {"axes": [0, 3]}, "axes"),
        ((2, 2), {"axes": [1, 1]}, "axes"),
        ((2, 3), {"axes": [0, 1]}, "3 ends"),
        ((1, 1), {"axes": [0], "steps": [0]}, "steps"),
        ((2, 2), {"axes": [0, 1], "steps": [1]}, "steps"),
    ],
)
def test_bounds_that_do_not_fit_are_refused(
    sizes: tuple[int, int], constants: dict[str, list[int]], said: str
) -> None:
    starts, ends = (np.zeros(n, np.int64) for n in sizes)
    node = helper.make_node("Slice", ["x", "starts", "ends", *constants], ["y"])
    model = model_of([node], {"x": draw(4, 5), "starts": starts, "ends": ends}, **constants)
    with pytest.raises(xrt.XpuError, match=said):
        xrt.InferenceSession(model.SerializeToString(), engine="native")


def test_pads_of_another_rank_are_refused() -> None:
    node = helper.make_node("Pad", ["x", "pads"], ["y"])
    model = model_of([node], {"x": draw(4, 5), "pads": np.zeros(2, np.int64)})
    with pytest.raises(xrt.XpuError, match="2 pads of a value of rank 2"):
        xrt.InferenceSession(model.SerializeToString(), engine="native")
