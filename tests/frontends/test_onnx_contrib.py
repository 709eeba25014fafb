"""ONNX Runtime's own ops: what the importer makes of them, beside ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

pytest.importorskip("onnxruntime")

import onnxruntime as ort

from xpuruntime import InferenceSession
from xpuruntime.compiler.partition.cost import flops_of
from xpuruntime.errors import UnavailableError
from xpuruntime.frontends.onnx.importer import import_onnx
from xpuruntime.frontends.onnx.ops import DOMAINS
from xpuruntime.ir import interp

RANDOM = np.random.default_rng(7)


def floats(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def codes(*shape: int, dtype: Any = np.uint8) -> np.ndarray:
    info = np.iinfo(dtype)
    return RANDOM.integers(info.min, info.max + 1, shape).astype(dtype)


def scale(value: float) -> np.ndarray:
    return np.asarray(value, np.float32)


U8, S8 = np.asarray(121, np.uint8), np.asarray(3, np.int8)


class Case(NamedTuple):
    """Operands: ``inputs`` are fed, by position; the others are weights. ``None`` is an absent operand."""

    op: str
    operands: tuple[Any, ...]
    attributes: Mapping[str, Any] = {}
    inputs: tuple[int, ...] = (0,)
    outputs: tuple[int, ...] = (0,)
    domain: str = "com.microsoft"
    name: str = ""


def four_bits(rows: int, size: int, block: int, *, zeros: bool) -> tuple[Any, ...]:
    blocks = -(-size // block)
    points = (codes(rows * ((blocks + 1) // 2)),) if zeros else ()
    return (floats(2, 3, size), codes(rows, blocks, block // 2), np.abs(floats(rows * blocks)), *points)


def pair(dtype: Any = np.uint8, zero: Any = U8) -> tuple[Any, ...]:
    return codes(2, 3, 4, 5, dtype=dtype), scale(0.02), zero


CASES = [
    Case("QLinearAdd", (*pair(), codes(5), scale(0.03), U8, scale(0.05), U8), {}, (0, 3)),
    Case("QLinearAdd", (*pair(np.int8, S8), codes(4, 1, dtype=np.int8), scale(0.03), S8, scale(0.05), S8), {}, (0, 3)),
    Case("QLinearMul", (*pair(), codes(3, 1, 1), scale(0.03), U8, scale(0.05), U8), {}, (0, 3)),
    Case("QLinearSigmoid", (*pair(), scale(1 / 256), np.asarray(0, np.uint8))),
    Case("QLinearLeakyRelu", (*pair(np.int8, S8), scale(0.02), S8), {"alpha": 0.2}),
    Case("QLinearSoftmax", (*pair(), scale(1 / 256), np.asarray(0, np.uint8)), {"axis": -1, "opset": 13}),
    Case("QLinearAveragePool", (*pair(), scale(0.02), U8), {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 1]}),
    Case("QLinearAveragePool", (*pair(), scale(0.02), U8), {"kernel_shape": [2, 2], "channels_last": 1}),
    Case("QLinearAveragePool", (*pair(), scale(0.02), U8), {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1}),
    Case("QLinearGlobalAveragePool", (*pair(), scale(0.01), U8)),
    Case("QLinearGlobalAveragePool", (*pair(np.int8, S8), scale(0.01), S8), {"channels_last": 1}),
    Case("QLinearConcat", (scale(0.05), U8, codes(2, 3), scale(0.02), U8, codes(2, 4), scale(0.04), np.asarray(7, np.uint8)), {"axis": 1}, (2, 5)),
    Case("QLinearWhere", (RANDOM.random((3, 4)) > 0.5, codes(3, 4), scale(0.02), U8, codes(4), scale(0.04), U8, scale(0.05), U8), {}, (0, 1, 4)),
    Case("QGemm", (codes(4, 8), scale(0.02), U8, codes(8, 6, dtype=np.int8), scale(0.03), S8, codes(6, dtype=np.int16).astype(np.int32), scale(0.4), U8)),
    Case("QGemm", (codes(4, 8), scale(0.02), U8, codes(6, 8, dtype=np.int8), np.abs(floats(6)) / 50, np.zeros(6, np.int8), None, scale(0.4), U8), {"transB": 1}),
    Case("QGemm", (codes(8, 4), scale(0.02), U8, codes(6, 8), scale(0.03), U8, codes(6, dtype=np.int16).astype(np.int32)), {"transA": 1, "transB": 1, "alpha": 0.5}),
    Case("MatMulIntegerToFloat", (codes(2, 4, 8), codes(8, 6, dtype=np.int8), scale(0.02), np.abs(floats(6)), np.asarray(7, np.uint8), np.zeros(6, np.int8), floats(6))),
    Case("DynamicQuantizeMatMul", (floats(2, 4, 8), codes(8, 6), np.abs(floats(1)), np.asarray([128], np.uint8), floats(6))),
    Case("QuantizeLinear", (floats(3, 4), scale(0.01), np.asarray(77, np.uint16))),
    Case("DequantizeLinear", (codes(3, 4, dtype=np.int16), scale(0.01), np.asarray(5, np.int16))),
    Case("MatMulNBits", four_bits(6, 64, 16, zeros=False), {"K": 64, "N": 6, "bits": 4, "block_size": 16}),
    Case("MatMulNBits", four_bits(5, 96, 32, zeros=True), {"K": 96, "N": 5, "bits": 4, "block_size": 32}),
    Case("Gelu", (floats(3, 5),)),
    Case("BiasGelu", (floats(2, 3, 5), floats(5))),
    Case("FastGelu", (floats(2, 3, 5), floats(5))),
    Case("QuickGelu", (floats(3, 5),), {"alpha": 1.702}),
    Case("FusedMatMul", (floats(2, 4, 3), floats(2, 5, 4)), {"transA": 1, "transB": 1, "alpha": 0.3}, (0, 1)),
    Case("FusedGemm", (floats(4, 3), floats(3, 5), floats(5)), {"activation": "LeakyRelu", "activation_alpha": 0.2}),
    Case("FusedConv", (floats(1, 3, 8, 8), floats(4, 3, 3, 3), floats(4), floats(1, 4, 6, 6)), {"activation": "Relu"}, (0, 3)),
    Case("FusedConv", (floats(1, 3, 8, 8), floats(4, 3, 3, 3)), {"activation": "Clip", "activation_params": [0.0, 1.0]}),
    Case("SkipLayerNormalization", (floats(2, 3, 8), floats(2, 3, 8), floats(8), floats(8), floats(8)), {"epsilon": 1e-5}, (0, 1), (0, 3)),
    Case("SkipSimplifiedLayerNormalization", (floats(2, 3, 8), floats(2, 3, 8), floats(8)), {"epsilon": 1e-5}, (0, 1), (0, 3)),
    Case("SkipLayerNormalization", (floats(2, 3, 8) / 9999, floats(1, 3, 8) / 9999, floats(8)), {}, (0, 1)),
    Case("SkipSimplifiedLayerNormalization", (floats(2, 3, 8) / 9999, floats(3, 8) / 9999, floats(8)), {}, (0, 1)),
    Case("SimplifiedLayerNormalization", (floats(2, 3, 8), floats(8)), {"epsilon": 1e-5, "axis": -1}, domain=""),
    Case("EmbedLayerNormalization", (RANDOM.integers(0, 9, (2, 4)).astype(np.int32), RANDOM.integers(0, 2, (2, 4)).astype(np.int32), floats(9, 8), floats(6, 8), floats(2, 8), floats(8), floats(8), np.array([[1, 1, 1, 0], [1, 1, 0, 0]], np.int32)), {"epsilon": 1e-5}, (0, 1, 7), (0, 1)),
    Case("Attention", (floats(2, 4, 8), floats(8, 24), floats(24)), {"num_heads": 2}),
    Case("Attention", (floats(2, 4, 8), floats(8, 24), floats(24), np.array([[1, 1, 1, 0], [1, 1, 0, 0]], np.int32)), {"num_heads": 2}, (0, 3)),
    Case("Attention", (floats(2, 4, 8), floats(8, 24), floats(24), np.array([3, 2], np.int32)), {"num_heads": 2}, (0, 3)),
    Case("Attention", (floats(2, 4, 8), floats(8, 24), floats(24)), {"num_heads": 4, "unidirectional": 1, "scale": 0.3}),
    Case("MultiHeadAttention", (floats(2, 4, 8), floats(2, 5, 8), floats(2, 5, 8), floats(24), np.array([[1, 1, 1, 0, 1], [1, 1, 0, 0, 0]], np.int32)), {"num_heads": 2}, (0, 1, 2, 4)),
    Case("MultiHeadAttention", (floats(2, 4, 8), floats(2, 5, 8), floats(2, 5, 8), None, None, floats(1, 2, 4, 5)), {"num_heads": 2}, (0, 1, 2, 5)),
    Case("RotaryEmbedding", (floats(2, 3, 4, 8), np.array([[0, 1, 2, 3], [4, 5, 6, 7]], np.int64), floats(16, 4), floats(16, 4)), {"interleaved": 1}, (0, 1)),
    Case("RotaryEmbedding", (floats(2, 4, 24), np.array([[0, 1, 2, 3], [4, 5, 6, 7]], np.int64), floats(16, 4), floats(16, 4)), {}, (0, 1)),
]  # fmt: skip


def model_of(case: Case) -> tuple[bytes, dict[str, np.ndarray]]:
    names = ["" if a is None else f"i{i}" for i, a in enumerate(case.operands)]
    while names and not names[-1]:
        names.pop()
    count = max(case.outputs) + 1
    outputs = [f"o{i}" if i in case.outputs else "" for i in range(count)]
    arrays = {f"i{i}": a for i, a in enumerate(case.operands) if a is not None}
    feeds = {f"i{i}": np.asarray(case.operands[i]) for i in case.inputs}
    given = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in feeds.items()
    ]
    weights = [numpy_helper.from_array(np.asarray(a), n) for n, a in arrays.items() if n not in feeds]
    node = helper.make_node(
        case.op, names, outputs, name="the_node", domain=case.domain, **dict(case.attributes)
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]

    def model(results: list[onnx.ValueInfoProto]) -> bytes:
        graph = helper.make_graph([node], "contrib", given, results, weights)
        return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()

    untyped = model([onnx.ValueInfoProto(name=o) for o in outputs if o])
    found = ort.InferenceSession(untyped, providers=["CPUExecutionProvider"]).run(None, feeds)
    typed = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in zip((o for o in outputs if o), found, strict=True)
    ]
    return model(typed), feeds


def differences(case: Case, ours: np.ndarray, theirs: np.ndarray) -> float:
    """Return the largest difference: in codes for quantized outputs, else relative to the largest value."""
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    distance = np.abs(ours.astype(np.float64) - theirs).max()
    return float(distance if theirs.dtype.kind in "iu" else distance / max(np.abs(theirs).max(), 1e-9))


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.op)
def test_an_op_is_lowered_and_equals_onnx_runtime(case: Case) -> None:
    model, feeds = model_of(case)
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    theirs = session.run(None, feeds)
    graph, weights = import_onnx(onnx.ModelProto.FromString(model))
    assert not [n for n in graph.nodes if n.op == "opaque"], graph
    ours = interp.run(graph, feeds, weights=weights)
    limit = {"QLinearSoftmax": 1.0, "QLinearAveragePool": 1.0, "QLinearGlobalAveragePool": 1.0}.get(
        case.op, 0.0
    )
    for o, want in zip(graph.outputs, theirs, strict=True):
        quantized = want.dtype.kind in "iu" and want.dtype.itemsize < 4
        difference = differences(case, np.asarray(ours[o.value]), want)
        assert difference <= (max(limit, 1.0) if quantized else 2e-5 if "MatMulN" not in case.op else 1e-3)


def test_the_table_is_covered() -> None:
    assert {c.op for c in CASES} >= DOMAINS["com.microsoft"].keys() - {"BiasAdd", "TransposeMatMul"}


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
    theirs = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"]).run(
        None, feeds
    )
    with InferenceSession(proto, engine="native", device="cpu") as sess:
        (ours,) = sess.run(feeds).values()
    assert differences(case, ours, theirs[0]) <= 1e-5


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
    theirs = ort.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, feeds)
    with InferenceSession(model, engine="native", device="cpu") as sess:
        sess.run(feeds)
        assert differences(Case("", ()), next(iter(sess.run(feeds).values())), theirs[0]) <= 1.0
        assert sess.receipt().runs == 2


def test_a_form_that_is_not_lowered_says_why() -> None:
    case = next(c for c in CASES if c.op == "MatMulNBits")
    model, _ = model_of(
        case._replace(
            attributes={**case.attributes, "bits": 4},
            operands=(*case.operands[:3], None, np.zeros(64, np.int32)),
        )
    )
    with pytest.raises(UnavailableError, match="4 bits and without g_idx"):
        InferenceSession(model, engine="native", device="cpu")


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
    with pytest.raises(UnavailableError, match="the activation 'Clip' lacks its numbers"):
        InferenceSession(proto, engine="native", device="cpu")


@pytest.mark.parametrize("op", ["QGemm", "QLinearAdd", "SkipLayerNormalization", "Attention", "MatMulNBits"])
def test_a_session_of_the_native_engine_runs_it(op: str) -> None:
    case = next(c for c in CASES if c.op == op)
    model, feeds = model_of(case)
    theirs = ort.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, feeds)
    with InferenceSession(model, engine="native", device="cpu") as sess:
        ours = list(sess.run(feeds).values())
    for value, want in zip(ours, theirs, strict=True):
        assert differences(case, value, want) <= (1.0 if want.dtype.kind in "iu" else 1e-3)
