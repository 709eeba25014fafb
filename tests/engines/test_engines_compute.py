"""What every engine must do, each on real arrays and against the ONNX reference evaluator or plain NumPy."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from xpuruntime.engines import lookup
from xpuruntime.errors import RunError
from xpuruntime.frontends.model_file import open_model
from xpuruntime.protocols import EngineRequest, Executable
from xpuruntime.targets import DeviceId

Make = Callable[..., onnx.ModelProto]
Opened = Callable[..., Executable]

# Those that compute on the host. QNN and TensorRT have tests of their own.
pytestmark = pytest.mark.parametrize("engine", ["onnxruntime", "openvino", "native"])

ADD = [helper.make_node("Add", ["x", "x"], ["y"], name="add")]
ONNX_KINDS = {"float32": 1, "uint8": 2, "int8": 3, "bfloat16": 16}  # TensorProto.DataType
VALUES: dict[str, Any] = {
    "float32": np.array([1.5, -2.25, 0.0], np.float32),
    "float16": np.array([1.5, -2.25, 0.0], np.float16),
    "bfloat16": np.array([1.5, -2.25, 0.0], ml_dtypes.bfloat16),
    "int32": np.array([1, -2, 3], np.int32),
    "int64": np.array([1, -2, 3], np.int64),
    "int8": np.array([1, -2, 3], np.int8),
    "uint8": np.array([1, 2, 3], np.uint8),
}


@pytest.mark.parametrize("kind", [k for k in VALUES if k not in ("int8", "uint8", "bfloat16")])
def test_element_types(engine: str, kind: str, make: Make, opened: Opened) -> None:
    run = opened(engine, make(ADD, {"x": (kind, ["N"])}, {"y": (kind, ["N"])})).run
    (y,) = run({"x": VALUES[kind]})
    assert y.dtype == VALUES[kind].dtype
    np.testing.assert_array_equal(y, VALUES[kind] + VALUES[kind])


@pytest.mark.parametrize(
    ("kind", "to"),
    [
        ("bfloat16", "bfloat16"),
        ("bfloat16", "float32"),
        ("float32", "bfloat16"),
        ("int8", "int8"),
        ("uint8", "uint8"),
    ],
)
def test_element_types_that_only_cross(engine: str, kind: str, to: str, make: Make, opened: Opened) -> None:
    cast = helper.make_node("Cast", ["x"], ["y"], to=ONNX_KINDS[to])
    (y,) = opened(engine, make([cast], {"x": (kind, [1, 3])}, {"y": (to, [1, 3])})).run(
        {"x": VALUES[kind][None]}
    )
    assert y.dtype == VALUES[to].dtype
    np.testing.assert_array_equal(y, VALUES[kind][None].astype(VALUES[to].dtype))


def test_bool(engine: str, make: Make, opened: Opened) -> None:
    both = [helper.make_node("Not", ["x"], ["y"])]
    (y,) = opened(engine, make(both, {"x": ("bool", [2])}, {"y": ("bool", [2])})).run(
        {"x": np.array([True, False])}
    )
    assert y.dtype == np.bool_
    assert y.tolist() == [False, True]


@pytest.mark.parametrize("shape", [(), (1,), (0,), (0, 3), (3, 0, 2), (7, 1, 13), (2, 3, 5, 7, 2)])
def test_shapes(engine: str, shape: tuple[int, ...], make: Make, opened: Opened) -> None:
    dims = [f"d{i}" for i in range(len(shape))]
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    (y,) = opened(engine, make(ADD, {"x": ("float32", dims)}, {"y": ("float32", dims)})).run({"x": x})
    assert isinstance(y, np.ndarray)
    assert y.shape == shape
    np.testing.assert_array_equal(y, x + x)


def test_memory_layouts(engine: str, make: Make, opened: Opened) -> None:
    base = np.arange(48, dtype=np.float32).reshape(6, 8)
    readonly = base[:3, :4].copy()
    readonly.flags.writeable = False
    run = opened(engine, make(ADD, {"x": ("float32", ["a", "b"])}, {"y": ("float32", ["a", "b"])})).run
    for x in (
        base[::2, ::2],
        base[::-1],
        base.T,
        np.asfortranarray(base),
        readonly,
        np.broadcast_to(base[:1], (4, 8)),
    ):
        np.testing.assert_array_equal(run({"x": x})[0], x + x)
        np.testing.assert_array_equal(run({"x": base})[0], base + base)  # which is read where it is
    assert base.tolist() == np.arange(48).reshape(6, 8).tolist()


def test_nan_and_infinity_pass_through(engine: str, make: Make, opened: Opened) -> None:
    x = np.array([np.nan, np.inf, -np.inf, -0.0], np.float32)
    (y,) = opened(engine, make(ADD, {"x": ("float32", [4])}, {"y": ("float32", [4])})).run({"x": x})
    np.testing.assert_array_equal(y, x)


def test_outputs_are_nobody_elses(engine: str, make: Make, opened: Opened) -> None:
    same = [helper.make_node("Identity", ["x"], ["y"])]
    executable = opened(engine, make(same, {"x": ("float32", [4])}, {"y": ("float32", [4])}))
    x = np.arange(4, dtype=np.float32)
    (first,) = executable.run({"x": x})
    (second,) = executable.run({"x": x + 1})
    x[:] = 99
    assert first.tolist() == [0, 1, 2, 3]
    assert second.tolist() == [1, 2, 3, 4]
    executable.close()
    assert first.flags.writeable
    assert first.tolist() == [0, 1, 2, 3]


def test_outputs_come_in_the_models_order(engine: str, make: Make, opened: Opened) -> None:
    nodes = [helper.make_node("Neg", ["b"], ["z"]), helper.make_node("Abs", ["a"], ["y"])]
    kinds = ("float32", [2])
    executable = opened(engine, make(nodes, {"b": kinds, "a": kinds}, {"y": kinds, "z": kinds}))
    assert [s.name for s in executable.inputs] == ["b", "a"]
    y, z = executable.run({"a": np.array([-1, 2], np.float32), "b": np.array([3, 4], np.float32)})
    assert (y.tolist(), z.tolist()) == ([1, 2], [-3, -4])


def test_a_network_agrees_with_the_reference(engine: str, conv_net: onnx.ModelProto, opened: Opened) -> None:
    x = np.random.default_rng(1).standard_normal((1, 16, 8, 8), dtype=np.float32)
    (want,) = ReferenceEvaluator(conv_net).run(None, {"x": x})
    (have,) = opened(engine, conv_net).run({"x": x})
    np.testing.assert_allclose(have, want, rtol=0, atol=1e-5 * np.abs(want).max())


def test_threads_do_not_meet(engine: str, conv_net: onnx.ModelProto, opened: Opened) -> None:
    executable = opened(engine, conv_net)
    inputs = [np.full((1, 16, 8, 8), i, np.float32) for i in range(8)]
    want = [executable.run({"x": x})[0] for x in inputs]

    def many(i: int) -> bool:
        return all(np.array_equal(executable.run({"x": inputs[i]})[0], want[i]) for _ in range(25))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(many, range(8)))


def test_local_functions(engine: str, make: Make, opened: Opened) -> None:
    body = helper.make_function("mine", "Twice", ["a"], ["b"], ADD_BODY, [helper.make_opsetid("", 17)])
    node = helper.make_node("Twice", ["x"], ["y"], domain="mine", name="call")
    proto = make(
        [node],
        {"x": ("float32", [2])},
        {"y": ("float32", [2])},
        opsets=[("", 17), ("mine", 1)],
        functions=[body],
    )
    executable = opened(engine, proto)
    assert executable.run({"x": np.ones(2, np.float32)})[0].tolist() == [2, 2]
    rows = executable.evidence({"x": np.ones(2, np.float32)}).rows
    assert [r.nodes for r in rows] in ([("call",)], [()])


ADD_BODY = [helper.make_node("Add", ["a", "a"], ["b"])]


def test_a_run_that_fails_repeats_the_vendor(engine: str, make: Make, opened: Opened) -> None:
    node = [helper.make_node("Reshape", ["x", "shape"], ["y"], name="reshape")]
    proto = make(node, {"x": ("float32", [4]), "shape": ("int64", [2])}, {"y": ("float32", ["a", "b"])})
    if engine == "native":  # what a run alone can know it refuses before anything runs
        assert not lookup(engine).load().supports(open_model(proto), EngineRequest(DeviceId("cpu")))
        return
    executable = opened(engine, proto)
    x = np.ones(4, np.float32)
    with pytest.raises(RunError, match=rf"\[{engine}, model graph\] .* failed while running; got .*"):
        executable.run({"x": x, "shape": np.array([3, 3])})
    assert executable.run({"x": x, "shape": np.array([2, 2])})[0].shape == (2, 2)


def test_closed_is_closed(engine: str, make: Make, opened: Opened) -> None:
    executable = opened(engine, make(ADD, {"x": ("float32", [4])}, {"y": ("float32", [4])}))
    executable.close()
    executable.close()
    for call in (lambda: executable.run({"x": np.ones(4, np.float32)}), executable.evidence):
        with pytest.raises(
            RunError, match=rf"\[{engine}, model graph\] the session is closed. Make a new one."
        ):
            call()
