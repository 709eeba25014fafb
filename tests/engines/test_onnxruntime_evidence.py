"""What ONNX Runtime says ran: placement of the session itself, fusions and times of a profiled twin, providers that take nothing."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from xpuruntime.errors import BuildError
from xpuruntime.frontends.model_file import open_model
from xpuruntime.protocols import Executable
from xpuruntime.types import DType

Make = Callable[..., onnx.ModelProto]
Opened = Callable[..., Executable]
AZURE = "AzureExecutionProvider"
VEC = {"x": ("float32", [4])}
OUT = {"y": ("float32", [4])}


def relu(make: Make, **more: Any) -> onnx.ModelProto:
    return make([helper.make_node("Relu", ["x"], ["y"], name="r")], VEC, OUT, **more)


def test_placement_comes_from_the_session(conv_net: onnx.ModelProto, opened: Opened) -> None:
    e = opened("onnxruntime", conv_net).evidence()
    assert (e.placement_source, e.time_source, e.fallbacks) == ("session", "", ())
    assert {r.device for r in e.rows} == {"cpu"}
    assert {"conv1", "conv2", "pool", "flat"} <= {n for r in e.rows for n in r.nodes}
    assert {r.kernel.split()[0] for r in e.rows} == {"CPUExecutionProvider"}
    assert all(r.time_us is None for r in e.rows)


def test_a_profiled_twin_tells_fusions_and_times(conv_net: onnx.ModelProto, opened: Opened) -> None:
    x = np.ones((1, 16, 8, 8), np.float32)
    e = opened("onnxruntime", conv_net).evidence({"x": x})
    by_first = {r.nodes[0]: r for r in e.rows if r.nodes}
    assert by_first["conv1"].nodes == ("conv1", "norm1", "relu1")
    assert by_first["conv2"].nodes == ("conv2", "add2", "relu2")
    assert {n for r in e.rows for n in r.nodes} == {n.name for n in open_model(conv_net).nodes} - {
        "shape",
        "root",
    }
    assert any("computed once when loading" in n and "shape, root" in n for n in e.notes)
    assert all(r.time_us is not None and r.time_us >= 0 for r in e.rows)
    assert sum(r.time_us or 0 for r in e.rows) > 0
    assert e.time_source == "profiled twin, median of 10 runs"
    assert by_first["conv1"].precision == "float32"


def test_no_node_is_told_twice(conv_net: onnx.ModelProto, opened: Opened) -> None:
    rows = opened("onnxruntime", conv_net).evidence({"x": np.ones((1, 16, 8, 8), np.float32)}).rows
    told = [n for r in rows for n in r.nodes]
    assert len(told) == len(set(told))


def test_the_twin_leaves_no_file(
    conv_net: onnx.ModelProto, opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    opened("onnxruntime", conv_net).evidence({"x": np.ones((1, 16, 8, 8), np.float32)})
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_without_optimizers_every_node_has_its_own_row(conv_net: onnx.ModelProto, opened: Opened) -> None:
    options = {"graph_optimization_level": "ORT_DISABLE_ALL"}
    e = opened("onnxruntime", conv_net, options=options).evidence({"x": np.ones((1, 16, 8, 8), np.float32)})
    assert all(len(r.nodes) == 1 for r in e.rows)
    assert ("conv1",) in [r.nodes for r in e.rows]


def test_a_loop_body_counts_for_the_loop(make: Make, opened: Opened) -> None:
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["c"], ["c2"]),
            helper.make_node("Add", ["a", "a"], ["b"], name="inner"),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", onnx.TensorProto.INT64, []),
            helper.make_tensor_value_info("c", onnx.TensorProto.BOOL, []),
            helper.make_tensor_value_info("a", onnx.TensorProto.FLOAT, [4]),
        ],
        [
            helper.make_tensor_value_info("c2", onnx.TensorProto.BOOL, []),
            helper.make_tensor_value_info("b", onnx.TensorProto.FLOAT, [4]),
        ],
    )
    nodes = [
        helper.make_node("Loop", ["n", "t", "x"], ["l"], name="loop", body=body),
        helper.make_node("Relu", ["l"], ["y"], name="r"),
    ]
    proto = make(nodes, VEC, OUT, {"n": np.array(3), "t": np.array(True)})
    executable = opened("onnxruntime", proto)
    x = np.ones(4, np.float32)
    assert executable.run({"x": x})[0].tolist() == [8, 8, 8, 8]
    assert [r.nodes for r in executable.evidence({"x": x}).rows] == [("loop",), ("r",)]


def test_nodes_without_names_are_told_apart(make: Make, opened: Opened, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Exp", ["x"], ["a"]),
        helper.make_node("Sqrt", ["a"], ["b"]),
        helper.make_node("Exp", ["b"], ["y"]),
    ]
    path = tmp_path / "m.onnx"
    onnx.save(make(nodes, VEC, OUT), path)
    e = opened("onnxruntime", path).evidence()
    assert sorted(r.nodes for r in e.rows) == [("Exp_0",), ("Exp_2",), ("Sqrt_1",)]


def test_names_are_filled_in_beside_external_data_too(make: Make, opened: Opened, tmp_path: Path) -> None:
    weight = numpy_helper.from_array(np.full(4, 3, np.float32), "w")
    proto = make([helper.make_node("Mul", ["x", "w"], ["y"])], VEC, OUT)
    proto.graph.initializer.append(weight)
    path = tmp_path / "m.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    executable = opened("onnxruntime", path)
    assert executable.run({"x": np.ones(4, np.float32)})[0].tolist() == [3, 3, 3, 3]
    assert [r.nodes for r in executable.evidence({"x": np.ones(4, np.float32)}).rows] == [("Mul_0",)]


def test_a_quantized_model_computes_in_integers(make: Make, opened: Opened) -> None:
    rng = np.random.default_rng(0)
    node = helper.make_node
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["xq"], name="qx"),
        node("DequantizeLinear", ["xq", "s", "z"], ["xd"], name="dx"),
        node("DequantizeLinear", ["wq", "s", "zw"], ["wd"], name="dw"),
        node("MatMul", ["xd", "wd"], ["m"], name="mm"),
        node("QuantizeLinear", ["m", "s", "z"], ["yq"], name="qy"),
        node("DequantizeLinear", ["yq", "s", "z"], ["y"], name="dy"),
    ]
    weights = {
        "s": np.float32(0.05),
        "z": np.uint8(128),
        "zw": np.int8(0),
        "wq": rng.integers(-9, 9, (8, 8)).astype(np.int8),
    }
    proto = make(nodes, {"x": ("float32", [2, 8])}, {"y": ("float32", [2, 8])}, weights)
    assert open_model(proto).quantized is DType.INT8
    rows = opened("onnxruntime", proto).evidence({"x": np.ones((2, 8), np.float32)}).rows
    integer = next(r for r in rows if "mm" in r.nodes)
    assert integer.op == "QLinearMatMul"
    assert integer.precision == "uint8"


@pytest.mark.skipif(
    AZURE not in onnxruntime.get_available_providers(), reason="this build has no Azure provider"
)
def test_a_provider_that_takes_no_node_is_a_fallback(make: Make, opened: Opened) -> None:
    e = opened("onnxruntime", relu(make), options={"providers": AZURE}).evidence()
    assert e.fallbacks == (f"CPUExecutionProvider ran nodes that {AZURE} does not support: 1 nodes: r",)
    assert e.options["providers"] == f"{AZURE}, CPUExecutionProvider"


@pytest.mark.skipif(
    AZURE not in onnxruntime.get_available_providers(), reason="this build has no Azure provider"
)
def test_forbidding_the_cpu_makes_that_an_error(make: Make, opened: Opened) -> None:
    options = {"providers": AZURE, "session.disable_cpu_ep_fallback": "1"}
    with pytest.raises(
        BuildError, match=r"cannot build this model; got .*assigned to the default CPU EP, but fallback"
    ):
        opened("onnxruntime", relu(make), options=options)
