"""Rules that look at shapes and dtypes inside a vendor's region, and what the plan says of each node."""

from __future__ import annotations

import numpy as np
import pytest
from support.onnx_models import small_classifier

import xpuruntime as xrt
from xpuruntime.decisions import Reason
from xpuruntime.errors import KernelUnavailable
from xpuruntime.frontends.model_file import open_model
from xpuruntime.inference.models.node_facts import node_details

pytest.importorskip("onnxruntime", reason="an engine is needed")
CPU = {"device": "cpu", "engine": "onnxruntime"}


def session(batch: int | str = 2, **rule: object) -> xrt.InferenceSession:
    policy = xrt.KernelPolicy(rules=[xrt.Rule(op="matmul", **rule)])
    return xrt.InferenceSession(small_classifier(batch=batch), kernel_policy=policy, **CPU)


def test_the_plan_names_type_and_ir_ops_of_each_node(path) -> None:
    with xrt.InferenceSession(path, **CPU) as sess:
        nodes = {n.name: n for n in sess.plan.nodes}
        text = sess.plan.explain(nodes=True)
    assert nodes["conv"].spec == "float32[batch, 40, 8, 8]"
    assert nodes["conv"].lowered == "convolution"
    assert nodes["fc2"].spec == "float32[batch, 10]"
    assert all(n.spec and n.lowered for n in nodes.values())
    assert "float32[batch, 40, 8, 8]  = convolution" in text


def test_dims_of_each_family() -> None:
    details = node_details(open_model(small_classifier(batch=2)))
    assert details["fc1"].dims["matmul"] | {"rank": 2} == {
        "M": 2, "N": 64, "K": 40, "batch": 1, "rank": 2, "elements": 80,
    }  # fmt: skip
    assert {k: details["conv"].dims["conv"][k] for k in "CHWKRS"} == {
        "C": 3,
        "H": 8,
        "W": 8,
        "K": 40,
        "R": 3,
        "S": 3,
    }
    assert {k: details["softmax"].dims["softmax"][k] for k in ("rows", "cols")} == {"rows": 2, "cols": 10}


def test_a_use_rule_is_an_error_only_where_its_shapes_match() -> None:
    with session(shape="N > 1000", use="gemv") as sess:
        assert sess.plan.decision("kernel matmul") is None
    with pytest.raises(KernelUnavailable, match=r"N == 64.*forces 'cublas'"):
        session(shape="N == 64", use="cublas")


def test_a_prefer_rule_is_recorded_for_the_nodes_that_match() -> None:
    with session(shape="N == 10", prefer="gemv") as sess:
        decision = sess.plan.decision("kernel matmul")
    assert decision.subject == "fc2"
    assert [c.code for c in decision.rejected] == [Reason.NOT_APPLICABLE]


def test_a_condition_on_a_symbolic_dim_is_said_to_be_open() -> None:
    with session(batch="batch", shape="M <= 16", use="gemv") as sess:
        (decision,) = [d for d in sess.plan.decisions if d.question.startswith("kernel rule")]
    assert "cannot be evaluated before a run for 2 nodes" in decision.rejected[0].reason
    with pytest.raises(KernelUnavailable):
        session(batch=2, shape="M <= 16", use="cublas")


def test_a_rule_that_matches_no_node_is_said() -> None:
    with session(node="/no/such/node", use="gemv") as sess:
        (decision,) = [d for d in sess.plan.decisions if d.question.startswith("kernel rule")]
    assert "matches none of the 8 nodes" in decision.rejected[0].reason


def test_what_comes_out_of_an_opaque_node_stops_nothing() -> None:
    from onnx import TensorProto, helper

    nodes = [
        helper.make_node("SampleOp", ["x"], ["g"], name="sample", domain="com.microsoft"),
        helper.make_node("Add", ["g", "x"], ["y"], name="add"),
    ]
    values = [[helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 3])] for n in "xy"]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph(nodes, "g", *values), opset_imports=opsets, ir_version=9)
    policy = xrt.KernelPolicy(matmul="cublasLt")
    with xrt.InferenceSession(model, kernel_policy=policy, **CPU) as sess:
        x = np.ones((2, 3), np.float32)
        np.testing.assert_array_equal(sess.run(x=x)["y"], x + x)
        assert sess.receipt().confirmed
        lowered = {n.name: n.lowered for n in sess.plan.nodes}
    assert lowered["sample"].startswith("opaque: ")


def test_a_dtype_condition_looks_at_the_node() -> None:
    with session(dtype="float16", use="gemv") as sess:
        assert sess.plan.decision("kernel matmul") is None
    with pytest.raises(KernelUnavailable):
        session(dtype="float32", use="cublas")
