"""ONNX Runtime's own ops: what the importer makes of them, beside ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

pytest.importorskip("onnxruntime")

from support.contrib import attention, packed
from support.contrib.case import GPU_ONLY, U8, Case, codes, differences, floats, model_of, ours, scale, theirs
from support.contrib.fused import CASES

from xpuruntime import InferenceSession
from xpuruntime.compiler.partition.cost import flops_of
from xpuruntime.errors import UnavailableError
from xpuruntime.frontends.onnx.importer import import_onnx
from xpuruntime.frontends.onnx.ops import DOMAINS

LIMITS = {"DynamicQuantizeLSTM": 5e-2}
"""Ops whose activations ONNX Runtime rounds to bytes."""


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.op)
def test_an_op_is_lowered_and_equals_onnx_runtime(case: Case) -> None:
    model, feeds = model_of(case)
    limit = LIMITS.get(case.op, 2e-5)
    for got, want in zip(ours(model, feeds), theirs(model, feeds), strict=True):
        quantized = want.dtype.kind in "iu" and want.dtype.itemsize < 4
        assert differences(got, want) <= (1.0 if quantized else limit)


def test_every_op_of_the_table_is_compared() -> None:
    compared = {c.op for c in (*CASES, *attention.CASES, *packed.CASES)}
    assert compared | GPU_ONLY == DOMAINS["com.microsoft"].keys() | {"SimplifiedLayerNormalization"}
    assert not compared & GPU_ONLY


@pytest.mark.parametrize("axis", [-1, 1])
def test_layer_normalization_in_opsets_that_lack_it(axis: int) -> None:
    """ONNX Runtime's optimizer writes it into models of any opset."""
    case = Case(
        "LayerNormalization",
        (floats(2, 3, 4), floats(*(3, 4)[axis - 1 if axis > 0 else 1 :]), None),
        {"axis": axis},
        domain="",
    )
    model, feeds = model_of(case)
    proto = onnx.ModelProto.FromString(model)
    proto.opset_import[0].version = 12
    (want,) = theirs(proto.SerializeToString(), feeds)
    with InferenceSession(proto, engine="native", device="cpu") as sess:
        (got,) = sess.run(feeds).values()
    assert differences(got, want) <= 1e-5


def test_a_quantized_convolution_has_a_cost() -> None:
    """Its filter is the fourth operand; the second, a scale, has no dims."""
    operands = (
        codes(1, 3, 8, 8),
        scale(0.02),
        U8,
        codes(4, 3, 3, 3, dtype=np.int8),
        scale(0.03),
        np.asarray(0, np.int8),
        scale(0.2),
        U8,
    )
    model, feeds = model_of(Case("QLinearConv", operands, domain=""))
    graph, _ = import_onnx(onnx.ModelProto.FromString(model))
    (node,) = (n for n in graph.nodes if n.op == "qlinear_convolution")
    assert flops_of(graph, node) == 2 * (4 * 6 * 6) * (3 * 3 * 3)
    (want,) = theirs(model, feeds)
    with InferenceSession(model, engine="native", device="cpu") as sess:
        sess.run(feeds)
        assert differences(next(iter(sess.run(feeds).values())), want) <= 1.0
        assert sess.receipt().runs == 2


def test_a_bias_of_a_product_of_two_inputs_is_added() -> None:
    """Integer kernels add a bias to products with constants only, so it stays an addition."""
    operands = (codes(5, 3), codes(3, 7, dtype=np.int8), scale(0.02), scale(0.03), None, None, floats(7))
    model, feeds = model_of(Case("MatMulIntegerToFloat", operands, {}, (0, 1)))
    with InferenceSession(model, engine="native", device="cpu") as sess:
        assert differences(next(iter(sess.run(feeds).values())), theirs(model, feeds)[0]) <= 1e-5


def test_unidirectional_attention_over_more_keys_is_not_lowered() -> None:
    operands = (floats(2, 3, 8), floats(2, 5, 8), floats(2, 5, 8))
    model, _ = model_of(
        Case("MultiHeadAttention", operands, {"num_heads": 2, "unidirectional": 1}, (0, 1, 2))
    )
    with pytest.raises(UnavailableError, match="needs as many keys as queries"):
        InferenceSession(model, engine="native", device="cpu")


def test_an_activation_without_its_numbers_is_not_lowered() -> None:
    case = next(c for c in CASES if c.op == "FusedConv" and "activation_params" in c.attributes)
    proto = onnx.ModelProto.FromString(model_of(case)[0])
    (node,) = proto.graph.node
    node.attribute.remove(next(a for a in node.attribute if a.name == "activation_params"))
    with pytest.raises(UnavailableError, match="the activation 'Clip' needs 2 numbers and has 0"):
        InferenceSession(proto, engine="native", device="cpu")


ENGINE_OPS = [
    "QGemm",
    "QLinearAdd",
    "QLinearConv",
    "NhwcMaxPool",
    "DynamicQuantizeLSTM",
    "SkipLayerNormalization",
]


@pytest.mark.parametrize("op", ENGINE_OPS)
def test_a_session_of_the_native_engine_runs_it(op: str) -> None:
    case = next(c for c in CASES if c.op == op)
    model, feeds = model_of(case)
    with InferenceSession(model, engine="native", device="cpu") as sess:
        got = list(sess.run(feeds).values())
    for value, want in zip(got, theirs(model, feeds), strict=True):
        assert differences(value, want) <= (1.0 if want.dtype.kind in "iu" else LIMITS.get(op, 1e-4))


def test_an_op_that_is_not_lowered_is_cut_to_an_engine_that_knows_it() -> None:
    """Without a fallback, the error names the node and the reason."""
    operands = (floats(3, 5), scale(1.5))
    base, feeds = model_of(Case("ScaledSiLU", operands))
    proto = onnx.ModelProto.FromString(base)
    graph = proto.graph
    graph.node[0].output[0] = "inner"
    graph.node.append(helper.make_node("MatMul", ["inner", "w"], ["o0"], name="product"))
    graph.initializer.append(numpy_helper.from_array(floats(5, 5), "w"))
    model = proto.SerializeToString()
    with pytest.raises(UnavailableError, match=r"ScaledSiLU \(the_node\) has no form in the IR"):
        InferenceSession(model, engine="native", device="cpu")
    policy = {"version": 1, "execution": {"allow_fallback": "cpu"}}
    with InferenceSession(model, engine="native", device="cpu", exec_policy=policy) as sess:
        (got,) = sess.run(feeds).values()
        homes = {n.name: r.engine for r in sess.plan.regions for n in sess.plan.nodes if n.region == r.id}
    assert homes["the_node"] == "onnxruntime"
    assert differences(got, theirs(model, feeds)[0]) <= 1e-5
