"""ReceiptFigures figures: every node is named by a step or has a reason, and the time is in named kernels or primitives."""

from __future__ import annotations

import json
from importlib import metadata

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import xpuruntime as xrt
from xpuruntime.engines.attribution import SourceGraph, explain_unnamed
from xpuruntime.evidence import Evidence
from xpuruntime.frontends.model_file import open_model
from xpuruntime.profiler.receipt import Receipt, ReceiptFigures
from xpuruntime.program.plan import Plan, PlanNode
from xpuruntime.protocols import EvidenceRow
from xpuruntime.workbench.inputs import Inputs

ENGINES = ("native", "onnxruntime", "openvino")


def model():
    """A convolution with all that engines remove, fold or fuse next to it."""
    random = np.random.default_rng(0)
    tensors = {
        "w": random.standard_normal((8, 4, 3, 3)).astype(np.float32),
        "b": random.standard_normal(8).astype(np.float32),
        "one": np.ones(8, np.float32),
        "v": random.standard_normal((8, 5)).astype(np.float32),
        "zero": np.zeros(1, np.int64),
        "tail": np.array([8], np.int64),
    }
    nodes = [
        helper.make_node("Add", ["b", "one"], ["bias"], name="folded"),
        helper.make_node("Identity", ["x"], ["same"], name="same"),
        helper.make_node("Conv", ["same", "w", "bias"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"], name="relu"),
        helper.make_node("Exp", ["r"], ["unused"], name="dead"),
        helper.make_node("GlobalAveragePool", ["r"], ["p"], name="pool"),
        helper.make_node("Shape", ["p"], ["s"], name="shape"),
        helper.make_node("Gather", ["s", "zero"], ["n"], name="first"),
        helper.make_node("Concat", ["n", "tail"], ["to"], name="sizes", axis=0),
        helper.make_node("Reshape", ["p", "to"], ["flat"], name="flat"),
        helper.make_node("MatMul", ["flat", "v"], ["y"], name="head"),
    ]  # fmt: skip
    info = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, s)
        for n, s in (("x", [1, 4, 16, 16]), ("y", [1, 5]))
    ]
    initializers = [numpy_helper.from_array(a, n) for n, a in tensors.items()]
    graph = helper.make_graph(nodes, "parts", info[:1], info[1:], initializers)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(made)
    return made


NAMED_TIME = 0.9
"""Smallest share of the time that is in named steps, on a busy machine; tests/gpu/attribution.py wants 0.99 of an idle one."""


def receipt_of(source, engine, store):
    if engine != "native":
        pytest.importorskip(engine)
    policy = xrt.ExecutionPolicy(self_check="off")
    with xrt.InferenceSession(
        source, engine=engine, device="cpu", threads=1, exec_policy=policy, cache_dir=store
    ) as session:
        session.run(Inputs().samples(session.model.inputs)[0])
        return session.receipt()


@pytest.mark.parametrize("engine", ENGINES)
def test_every_node_is_named_or_has_a_reason(engine, tmp_path):
    receipt = receipt_of(model(), engine, tmp_path)
    found = receipt.attribution
    assert found.unexplained == ()
    assert found.node_share == 1.0
    assert found.named + found.explained == found.nodes == 11
    assert found.time_share >= NAMED_TIME
    reasons = receipt.evidence["r0"].explained
    assert not any("unknown" in why for why in reasons.values())
    assert "depends on no input" in reasons["folded"]
    if engine != "onnxruntime":  # which may run it
        assert "no output depends on it" in reasons["dead"]
    if "same" in reasons:
        assert reasons["same"] == "Identity changes nothing, so it is removed"
    if engine == "native":
        assert "depends on shapes alone" in reasons["sizes"]
        assert "part of the step of" in reasons["flat"]
    text = str(receipt)
    assert f"100% of 11 model nodes are explained: {found.named} by a step that ran" in text
    assert "are in named kernels or primitives" in text
    data = json.loads(json.dumps(receipt.to_json()))
    assert data["attribution"]["node_share"] == 1.0
    assert Receipt.from_json(data).attribution == found


@pytest.mark.zoo
@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["ppocr-det", "ppocr-rec"])
@pytest.mark.parametrize("engine", ENGINES)
def test_the_models_of_the_demo_are_attributed(engine, name, tmp_path):
    from examples.zoo import MODELS

    for package in [*MODELS[name].packages, "onnxruntime", "onnx", "torch", "onnxscript", "pillow"]:
        try:
            metadata.version(package)
        except metadata.PackageNotFoundError:
            pytest.skip(f"{package} is not installed (examples/zoo/requirements.txt)")
    receipt = receipt_of(MODELS[name].onnx_path(), engine, tmp_path)
    assert receipt.attribution.unexplained == ()
    assert receipt.attribution.time_share >= NAMED_TIME
    assert not any("unknown" in why for e in receipt.evidence.values() for why in e.explained.values())


# ── the figures ──


def test_what_is_not_attributed_is_listed():
    nodes = tuple(PlanNode(n, "Relu", "activation", "r0") for n in ("a", "b", "c", "d"))
    plan = Plan({"name": "m"}, {}, (), (), (), nodes)
    rows = (
        EvidenceRow(("a",), "Relu", "cpu", "jit_relu", time_us=60.0),
        EvidenceRow((), "Reorder", "cpu", "jit_reorder", time_us=30.0),
        EvidenceRow(("b",), "Exp", "cpu", "unknown_f32", time_us=10.0),
    )
    found = ReceiptFigures.of(plan, {"r0": Evidence("e", "1", rows, "session", explained={"c": "removed"})})
    assert (found.nodes, found.named, found.explained, found.unexplained) == (4, 2, 1, ("d",))
    assert (found.node_share, found.time_share) == (0.75, 0.9)
    assert found.unattributed == (("Exp", 10.0),)
    assert found.inserted == (("Reorder", 30.0),)
    text = "\n".join(found.lines())
    assert "75% of 4 model nodes are explained: 2 by a step that ran, 1 by a reason" in text
    assert "not explained: d" in text
    assert "without a named kernel: Exp 10.0 us" in text
    empty = ReceiptFigures.of(Plan({"name": "m"}, {}, (), (), (), ()), {})
    assert (empty.node_share, empty.time_share) == (1.0, None)


def test_a_node_without_any_step_near_it_has_no_reason():
    source = SourceGraph(open_model(model()))
    reasons = explain_unnamed(source, ["y"], [], "loading")
    assert set(source.nodes) - set(reasons) == {"conv", "relu", "pool", "flat", "head"}
