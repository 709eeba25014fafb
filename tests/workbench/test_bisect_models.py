"""Bisection of models that nobody chose: old files, subgraphs, external data, open shapes, quantized values, several engines, masks."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from xpuruntime.workbench.bisect import bisect
from xpuruntime.workbench.compare import compare_nodes
from xpuruntime.workbench.inputs import Inputs
from xpuruntime.workbench.values.side import Side, open_source

pytest.importorskip("onnxruntime")


@pytest.fixture(autouse=True)
def own_store(monkeypatch, fresh_store):
    monkeypatch.setenv("XPU_CACHE_DIR", str(fresh_store))
    monkeypatch.delenv("XPU_TEST_WRONG_KERNEL", raising=False)


def info(name, shape, kind=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def tensors(scale=1.0):
    random = np.random.default_rng(3)
    return {
        "w1": random.standard_normal((8, 8)).astype(np.float32),
        "w2": (random.standard_normal((8, 8)) * scale).astype(np.float32),
    }


def mlp(weights, batch=2, ir=9, names_in_inputs=False):
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["a"], name="first"),
        helper.make_node("Tanh", ["a"], ["b"], name="act"),
        helper.make_node("MatMul", ["b", "w2"], ["c"], name="second"),
        helper.make_node("Softmax", ["c"], ["y"], name="out", axis=-1),
    ]
    inputs = [info("x", [batch, 8])]
    if names_in_inputs:
        inputs += [info(n, list(w.shape)) for n, w in weights.items()]
    graph = helper.make_graph(
        nodes,
        "mlp",
        inputs,
        [info("y", [batch, 8])],
        [numpy_helper.from_array(w, n) for n, w in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=ir)


def branching(weights):
    """An If whose branches read values and weights of the graph around them."""
    then = helper.make_graph(
        [helper.make_node("MatMul", ["a", "w2"], ["t"], name="inner")], "then", [], [info("t", [2, 8])]
    )
    other = helper.make_graph(
        [helper.make_node("Neg", ["a"], ["o"], name="negate")], "else", [], [info("o", [2, 8])]
    )
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["a"], name="first"),
        helper.make_node("ReduceSum", ["x"], ["s"], name="sum", keepdims=0),
        helper.make_node("Less", ["s", "limit"], ["small"], name="less"),
        helper.make_node("If", ["small"], ["c"], name="second", then_branch=then, else_branch=other),
        helper.make_node("Softmax", ["c"], ["y"], name="out", axis=-1),
    ]
    initializers = [numpy_helper.from_array(w, n) for n, w in weights.items()]
    initializers.append(numpy_helper.from_array(np.float32(1e6), "limit"))
    graph = helper.make_graph(nodes, "branching", [info("x", [2, 8])], [info("y", [2, 8])], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=9)


def external(weights, path):
    model = mlp(weights)
    onnx.save_model(
        model,
        path,
        save_as_external_data=True,
        all_tensors_to_one_file=True,
        location=f"{path.stem}.bin",
        size_threshold=0,
    )


FORMS = {
    "plain": mlp,
    "old": lambda w: mlp(w, ir=3, names_in_inputs=True),
    "open": lambda w: mlp(w, batch="n"),
    "branching": branching,
    "external": None,
}


def files(form, tmp_path):
    paths = []
    for name, scale in (("changed", 1.02), ("right", 1.0)):
        path = tmp_path / f"{name}.onnx"
        if FORMS[form] is None:
            external(tensors(scale), path)
        else:
            onnx.save(FORMS[form](tensors(scale)), path)
        paths.append(path)
    return paths


@pytest.mark.sampled(1)
@pytest.mark.parametrize("form", FORMS)
def test_the_changed_node_is_named_on_a_vendors_engine(form, tmp_path):
    changed, right = (
        Side(open_source(p), engine="onnxruntime", device="cpu", threads=1) for p in files(form, tmp_path)
    )
    feeds = Inputs().samples(right.model.inputs)[0]
    assert not bisect(right, right, feeds).differs
    found = bisect(changed, right, feeds)
    assert found.node.nodes == ("second",)
    assert found.runs <= found.bound
    native = Side(
        right.model, engine="reference" if form == "branching" else "native", device="cpu", threads=1
    )
    if form != "branching":  # compared on the vendor alone
        assert not bisect(right, native, feeds).differs
        mixed = bisect(changed, native, feeds)
        assert "second" in mixed.node.nodes


def test_the_reproduction_of_external_data_holds_it(tmp_path):
    changed, right = (
        Side(open_source(p), engine="onnxruntime", device="cpu", threads=1)
        for p in files("external", tmp_path)
    )
    found = bisect(changed, right, Inputs().samples(right.model.inputs)[0], save=tmp_path / "saved")
    assert (found.reproduction.scope, found.reproduction.fails) == ("node", True)
    assert {p.name for p in found.reproduction.folder.iterdir()} == {
        "README.md", "difference.json", "inputs.npz", "model.onnx", "reference.onnx",
    }  # fmt: skip


def quantized():
    """Products between DequantizeLinear and QuantizeLinear, whose values an engine may hold as codes."""
    random = np.random.default_rng(0)
    weight = random.integers(-100, 100, (8, 8)).astype(np.int8)
    initializers = {
        "xs": np.float32(0.05), "xz": np.uint8(128), "ws": np.float32(0.01), "wz": np.int8(0), "ys": np.float32(0.1), "yz": np.uint8(120), "w": weight,
    }  # fmt: skip
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["xq"], name="q0"),
        helper.make_node("DequantizeLinear", ["xq", "xs", "xz"], ["xd"], name="d0"),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wd"], name="dw"),
        helper.make_node("MatMul", ["xd", "wd"], ["m"], name="product"),
        helper.make_node("QuantizeLinear", ["m", "ys", "yz"], ["mq"], name="q1"),
        helper.make_node("DequantizeLinear", ["mq", "ys", "yz"], ["y"], name="d1"),
    ]
    graph = helper.make_graph(
        nodes,
        "qdq",
        [info("x", [4, 8])],
        [info("y", [4, 8])],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in initializers.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=9)


@pytest.mark.parametrize("engine", ["native", "onnxruntime"])
def test_a_quantized_model_differs_from_the_interpreter_by_no_code(engine, tmp_path):
    onnx.save(quantized(), tmp_path / "q.onnx")
    side = Side(open_source(tmp_path / "q.onnx"), engine=engine, device="cpu", threads=1)
    other = Side(side.model, engine="reference")
    feeds = Inputs().samples(side.model.inputs)[0]
    report = compare_nodes(side, other, feeds)
    assert report.ok, report.sentence
    assert not bisect(side, other, feeds).differs


def test_a_side_on_several_engines_is_cut_like_an_engine(tmp_path):
    changed, right = files("plain", tmp_path)
    policy = {"version": 1, "execution": {"place": {"second": "onnxruntime", "first": "native"}}}
    placed = Side(open_source(changed), device="cpu", policy=policy, threads=1)
    other = Side(open_source(right), engine="onnxruntime", device="cpu", threads=1)
    found = bisect(placed, other, Inputs().samples(other.model.inputs)[0], by="node")
    assert found.node.nodes == ("second",)


def test_lower_precision_agrees_within_its_tolerance_and_not_within_a_smaller_one(tmp_path):
    _, right = files("plain", tmp_path)
    low = Side(open_source(right), engine="native", device="cpu", precision="bfloat16", threads=1)
    high = Side(low.model, engine="native", device="cpu", threads=1)
    feeds = Inputs().samples(low.model.inputs)[0]
    assert not bisect(low, high, feeds).differs
    found = bisect(low, high, feeds, tolerance=1e-6)
    assert found.node.value == "a" or "first" in found.node.nodes


def test_empty_tensors_and_nan_are_compared(tmp_path):
    onnx.save(mlp(tensors(), batch="n"), tmp_path / "open.onnx")
    side = Side(open_source(tmp_path / "open.onnx"), engine="onnxruntime", device="cpu", threads=1)
    other = Side(side.model, engine="reference")
    assert not bisect(side, other, {"x": np.zeros((0, 8), np.float32)}).differs
    feeds = {"x": np.full((2, 8), np.nan, np.float32)}
    report = compare_nodes(side, other, feeds)
    assert report.ok, report.sentence
    assert report.nodes[0].statistics.nans == (16, 16)
