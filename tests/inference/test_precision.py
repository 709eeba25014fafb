"""The precision int8: integer arithmetic of quantized models, confirmed by evidence; on float models an error, or a fallback with one warning."""

from __future__ import annotations

import logging

import numpy as np
import pytest

import xpuruntime as xrt
from xpuruntime.decisions import Reason
from xpuruntime.errors import PrecisionUnavailable, StrictError
from xpuruntime.frontends.model_file import open_model
from xpuruntime.protocols import Products
from xpuruntime.types import DType

onnx = pytest.importorskip("onnx", reason="the tests build models with onnx")
pytest.importorskip("onnxruntime", reason="an engine is needed")
pytest.importorskip("openvino", reason="two engines are needed")
INT8 = xrt.ExecutionPolicy(precision="int8")
VENDORS = ("onnxruntime", "openvino")


def quantized_model(*, activations: bool = True, wide: bool = False) -> bytes:
    """A convolution and a matrix product with int8 weights; with ``activations`` between QuantizeLinear and DequantizeLinear, too.

    wide: the activations of the matrix product have 16 bits.
    """
    make, array = onnx.helper.make_node, onnx.numpy_helper.from_array
    rng = np.random.default_rng(0)
    # Small weights: products on processors that saturate at 16 bits are exact, too.
    weights = [
        array(rng.integers(-40, 40, (16, 8, 3, 3)).astype(np.int8), "wq"),
        array(rng.integers(-40, 40, (16, 24)).astype(np.int8), "mq"),
        array(np.float32(0.02), "s"),
        array(np.uint8(128), "z"),
        array(np.int8(0), "z8"),
    ]
    if wide:
        weights += [array(np.float32(0.02 / 256), "s16"), array(np.uint16(1 << 15), "z16")]
    nodes = [make("DequantizeLinear", [f"{w}q", "s", "z8"], [w], name=f"{w}_dequantize") for w in ("w", "m")]

    def through(value: str, bits: str = "") -> str:
        if not activations:
            return value
        scale, codes = [f"s{bits}", f"z{bits}"], f"{value}_q"
        nodes.append(make("QuantizeLinear", [value, *scale], [codes], name=f"{value}_quantize"))
        nodes.append(make("DequantizeLinear", [codes, *scale], [f"{value}_d"], name=f"{value}_dequantize"))
        return f"{value}_d"

    nodes.append(make("Conv", [through("x"), "w"], ["c"], name="conv", pads=[1, 1, 1, 1]))
    nodes.append(make("GlobalAveragePool", [through("c")], ["p"], name="pool"))
    nodes.append(make("Flatten", [through("p")], ["f"], name="flatten"))
    nodes.append(make("MatMul", [through("f", "16" if wide else ""), "m"], ["h"], name="product"))
    nodes.append(make("Identity", [through("h")], ["y"], name="out"))
    info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        nodes, "quantized", [info("x", 1, [1, 8, 6, 6])], [info("y", 1, [1, 24])], weights
    )
    opset, ir_version = (21, 10) if wide else (17, 8)
    proto = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=ir_version
    )
    onnx.checker.check_model(proto, full_check=True)
    return proto.SerializeToString()


X = np.random.default_rng(1).normal(size=(1, 8, 6, 6)).astype(np.float32)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("engine", [*VENDORS, "native", None])
def test_int8_on_a_float_model_is_an_error_that_offers_kernels_by_their_words(engine, strict, path) -> None:
    with pytest.raises(PrecisionUnavailable, match="is not quantized") as caught:
        xrt.InferenceSession(path, device="cpu", engine=engine, exec_policy=INT8, strict=strict)
    assert "kernel: {weights: int8}" in caught.value.do
    assert "allow_fallback" in caught.value.do


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("engine", [*VENDORS, "native"])
def test_allow_fallback_falls_back_in_precision_too_with_one_warning(
    engine, strict, path, x, expected, caplog
) -> None:
    policy = xrt.ExecutionPolicy(precision="int8", allow_fallback="cpu")
    with (
        caplog.at_level(logging.WARNING),
        xrt.InferenceSession(path, device="cpu", engine=engine, exec_policy=policy, strict=strict) as sess,
    ):
        np.testing.assert_allclose(sess.run(input=x)["output"], expected, atol=1e-5)
        region, decision = sess.plan.regions[0], sess.plan.decision("precision")
        assert (region.engine, region.precision) == (engine, "float32")
        assert sess.receipt().confirmed
    assert decision.chosen.code is Reason.FALLBACK
    assert "is not quantized" in decision.rejected[0].reason
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    assert caplog.text.rstrip().endswith("in float32")


@pytest.mark.parametrize("demand", [None, INT8])
@pytest.mark.parametrize("engine", VENDORS)
def test_integer_kernels_of_a_vendor_are_confirmed_by_its_evidence(engine, demand) -> None:
    more = {} if demand is None else {"exec_policy": demand, "strict": True}
    with xrt.InferenceSession(quantized_model(), device="cpu", engine=engine, **more) as sess:
        sess.run(x=X)
        receipt = sess.receipt()
        assert sess.plan.regions[0].precision == "int8"
    assert receipt.confirmed
    products = [r for e in receipt.evidence.values() for r in e.rows if r.weights]
    assert [(r.activations, r.weights) for r in products] == [("uint8", "int8")] * 2
    assert "2 products of uint8 activations and int8 weights" in receipt.text()


def test_evidence_of_float_kernels_refutes_int8_and_is_an_error_if_strict() -> None:
    # Without its rewrites ONNX Runtime dequantizes and computes in floats.
    policy = xrt.ExecutionPolicy(precision="int8", optimization_level=0)
    with xrt.InferenceSession(
        quantized_model(), device="cpu", engine="onnxruntime", exec_policy=policy
    ) as sess:
        sess.run(x=X)
        receipt = sess.receipt()
    assert not receipt.confirmed
    assert "NOT r0: computed in int8: 2 products of float32 activations and float32 weights" in receipt.text()
    with pytest.raises(StrictError, match="2 products of float32 activations and float32 weights"):
        xrt.InferenceSession(
            quantized_model(), device="cpu", engine="onnxruntime", exec_policy=policy, strict=True
        )


def test_our_kernels_compute_quantized_products_in_integers_and_say_so() -> None:
    with xrt.InferenceSession(
        quantized_model(), device="cpu", engine="native", exec_policy=INT8, strict=True
    ) as sess:
        (got,) = sess.run(x=X).values()
        assert sess.plan.regions[0].precision == "int8"
        assert sess.receipt().confirmed
        assert "2 products of uint8 activations and int8 weights" in sess.receipt().text()
    with xrt.InferenceSession(quantized_model(), device="cpu", engine="onnxruntime") as sess:
        (want,) = sess.run(x=X).values()
    assert np.abs(got - want).max() <= 0.02 * 1.01  # one step of the output's scale


def test_without_the_pass_our_kernels_compute_in_floats_which_refutes_int8() -> None:
    policy = xrt.ExecutionPolicy(precision="int8", optimization_level=0)
    with xrt.InferenceSession(quantized_model(), device="cpu", engine="native", exec_policy=policy) as sess:
        sess.run(x=X)
        assert not sess.receipt().confirmed
        assert "2 products of float32 activations and float32 weights" in sess.receipt().text()


def test_compile_takes_int8_for_pairs_on_cpus_only() -> None:
    graph = xrt.load_onnx(quantized_model())
    program = xrt.compile(
        graph, target="cpu", policy=xrt.load_policy({"version": 1, "execution": {"precision": "int8"}})
    )
    assert {c.kernel for p in program.entries[0].plans for c in p.calls} >= {"conv/int8", "matmul/int8"}
    with pytest.raises(PrecisionUnavailable, match="is not quantized"):
        xrt.compile(
            graph,
            target="cuda:sm_90",
            policy=xrt.load_policy({"version": 1, "execution": {"precision": "int8"}}),
        )


def test_without_an_engine_the_first_that_computes_in_integers_is_taken() -> None:
    with xrt.InferenceSession(quantized_model(), device="cpu", exec_policy=INT8, strict=True) as sess:
        assert sess.plan.regions[0].engine in ("native", *VENDORS)


@pytest.mark.parametrize("engine", VENDORS)
def test_quantized_weights_alone_are_no_integer_arithmetic(engine) -> None:
    model = quantized_model(activations=False)
    assert open_model(model).quantized is None
    assert open_model(model).products == Products(floats=2)
    with pytest.raises(PrecisionUnavailable, match="is not quantized"):
        xrt.InferenceSession(model, device="cpu", engine=engine, exec_policy=INT8)
    with xrt.InferenceSession(model, device="cpu", engine=engine) as sess:
        sess.run(x=X)
        assert sess.plan.regions[0].precision == "float32"
        assert sess.receipt().confirmed


def test_products_are_counted_by_the_arithmetic_that_the_model_describes() -> None:
    source = open_model(quantized_model())
    assert (source.quantized, source.products) == (DType.INT8, Products(qdq=2))


def test_products_of_16_bit_activations_are_counted() -> None:
    source = open_model(quantized_model(wide=True))
    assert (source.quantized, source.products) == (DType.INT8, Products(qdq=2, wide=1))
    assert (source.wide_pairs, open_model(quantized_model()).wide_pairs) == (1, 0)


@pytest.mark.parametrize("form", ["initializer", "constant", "output_dtype", "weights"])
def test_the_bits_of_codes_are_read_wherever_the_model_states_them(form: str) -> None:
    make, array = onnx.helper.make_node, onnx.numpy_helper.from_array
    weights = [array(np.float32(0.1), "s"), array(np.zeros((4, 4), np.int16), "wq"), array(np.uint16(7), "z")]
    zero = ["z"] if form in ("initializer", "constant") else []
    more = {"output_dtype": onnx.TensorProto.INT16} if form == "output_dtype" else {}
    nodes = [
        make("QuantizeLinear", ["x", "s", *zero], ["q"], **more),
        make("Reshape", ["q", "shape"], ["r"]),
        make("DequantizeLinear", ["r", "s", *zero], ["d"]),
        make("DequantizeLinear", ["wq", "s"], ["w"]),
        make("MatMul", ["d", "w"], ["y"]),
    ]
    if form != "weights":
        weights[1] = array(np.zeros((4, 4), np.int8), "wq")
    if form == "constant":
        nodes.insert(0, make("Constant", [], ["z"], value=weights.pop()))
    info = onnx.helper.make_tensor_value_info
    weights.append(array(np.array([1, 4]), "shape"))
    graph = onnx.helper.make_graph(nodes, "g", [info("x", 1, [4])], [info("y", 1, [1, 4])], weights)
    proto = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10)
    source = open_model(proto.SerializeToString())
    assert source.products == Products(qdq=1, wide=1)
    assert source.wide_pairs == (0 if form == "weights" else 1)


@pytest.mark.parametrize("fallback", [False, True])
def test_compile_says_which_products_have_16_bit_activations(
    fallback: bool, caplog: pytest.LogCaptureFixture
) -> None:
    graph = xrt.load_onnx(quantized_model(wide=True))
    execution = {"precision": "int8", **({"allow_fallback": "cpu"} if fallback else {})}
    policy = xrt.load_policy({"version": 1, "execution": execution})
    text = "no kernel multiplies operands of more than 8 bits in integers, and 1 of 2 products have one"
    if not fallback:
        with pytest.raises(PrecisionUnavailable, match=text):
            xrt.compile(graph, target="cpu", policy=policy)
        return
    program = xrt.compile(graph, target="cpu", policy=policy)
    assert text in caplog.text
    assert "conv/int8" in {c.kernel for p in program.entries[0].plans for c in p.calls}


def test_weights_in_few_bits_are_told_apart_from_activations() -> None:
    import torch

    module = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32)).eval()
    x = torch.zeros(1, 32)
    with xrt.InferenceSession(
        module,
        engine="native",
        device="cpu",
        example_inputs=(x,),
        kernel_policy=xrt.KernelPolicy(weights="int8"),
        exec_policy=xrt.ExecutionPolicy(self_check="off"),  # weights in few bits change results
    ) as sess:
        sess.run([x])
        assert "2 products of float32 activations and int8 weights" in sess.receipt().text()


def test_fp16_is_used_where_the_engine_has_it(path, x, expected) -> None:
    import openvino

    able = "FP16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    with xrt.InferenceSession(path, device="cpu", engine="openvino", fp16=True) as sess:
        out = sess.run(input=x)["output"]
        precision = sess.plan.regions[0].precision
        assert sess.receipt().confirmed
    assert precision == ("float16" if able else "float32")
    np.testing.assert_allclose(out, expected, atol=2e-2)
