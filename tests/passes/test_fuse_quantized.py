"""fuse_quantized and expand_quantize against ONNX Runtime: products between DequantizeLinear and QuantizeLinear, and ONNX's integer products.

Codes of weights are small, because ONNX Runtime's kernels saturate in 16 bits on processors without VNNI.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from xpuruntime.frontends.onnx.importer import import_onnx
from xpuruntime.ir import Graph, interp
from xpuruntime.passes import PassContext, run_passes

onnx = pytest.importorskip("onnx", reason="the tests build models with onnx")
ort = pytest.importorskip("onnxruntime", reason="the reference")
F = np.float32
QUANTIZED = ["fuse_quantized", "expand_quantize"]


class Model:
    """A model under construction. Every value is between QuantizeLinear and DequantizeLinear."""

    def __init__(self, seed: int, codes: Any = np.uint8) -> None:
        self.rng, self.codes = np.random.default_rng(seed), codes
        self.nodes: list[Any] = []
        self.weights: dict[str, Any] = {}
        self.inputs: dict[str, Any] = {}

    def weight(self, array: Any) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = np.asarray(array)
        return name

    def node(self, op: str, *inputs: str, **attrs: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(onnx.helper.make_node(op, list(inputs), [name], name=name, **attrs))
        return name

    def input(self, *shape: int) -> str:
        name = f"x{len(self.inputs)}"
        self.inputs[name] = self.rng.standard_normal(shape).astype(F)
        return name

    def quantize(self, value: str, scale: float = 0.05, zero: int = 3) -> str:
        """Return codes."""
        return self.node("QuantizeLinear", value, self.weight(F(scale)), self.weight(self.codes(zero)))

    def through(self, value: str, scale: float = 0.05, zero: int = 3) -> str:
        """Return the value after a pair."""
        q = self.quantize(value, scale, zero)
        node = self.nodes[-1]
        return self.node("DequantizeLinear", q, *node.input[1:])

    def constant(self, axis: int, *shape: int, kind: Any = np.int8, zero: int = 0) -> tuple[str, Any]:
        """Return a dequantized weight with a scale per channel, and the scales."""
        w = self.rng.integers(-40, 40, shape) + zero
        scale = (0.002 + 0.01 * self.rng.random(shape[axis])).astype(F)
        names = [self.weight(a) for a in (w.astype(kind), scale, np.full(shape[axis], zero, kind))]
        return self.node("DequantizeLinear", *names, axis=axis), scale

    def bias(self, scale: Any) -> str:
        codes = self.rng.integers(-500, 500, scale.shape).astype(np.int32)
        names = [self.weight(codes), self.weight(scale), self.weight(np.zeros(scale.shape, np.int32))]
        return self.node("DequantizeLinear", *names, axis=0)

    def run(self, *outputs: str) -> tuple[Graph, list[Any], list[Any]]:
        """Return the graph after the passes, its outputs by the interpreter, and those of ONNX Runtime."""
        make = onnx.helper
        graph = make.make_graph(
            self.nodes, "quantized",
            [make.make_tensor_value_info(n, 1, a.shape) for n, a in self.inputs.items()],
            [onnx.ValueInfoProto(name=n) for n in outputs],
            [onnx.numpy_helper.from_array(a, n) for n, a in self.weights.items()],
        )  # fmt: skip
        proto = make.make_model(
            graph,
            opset_imports=[make.make_opsetid("", 17), make.make_opsetid("com.microsoft", 1)],
            ir_version=8,
        )
        proto = onnx.shape_inference.infer_shapes(proto)
        want = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"]).run(
            None, self.inputs
        )
        imported, weights = import_onnx(proto)
        context = PassContext(peek=lambda weight: weights.get(weight.name))
        better = run_passes(imported, QUANTIZED, context=context, check=True)
        values = interp.run(better, self.inputs, weights=dict(weights))
        return better, [values[n] for n in outputs], want


def ops(graph: Graph) -> list[str]:
    return [n.op for n in graph.nodes if n.op not in ("constant", "cast", "sub", "view", "permute")]


def products(graph: Graph) -> list[str]:
    return [
        n.op
        for n in graph.nodes
        if n.op in ("convolution", "linear", "matmul", "quantized_matmul", "quantized_convolution")
    ]


CONV = {"pads": [1, 1, 1, 1], "strides": [2, 2]}


@pytest.mark.parametrize("codes", [np.uint8, np.int8])
@pytest.mark.parametrize("act", ["", "Relu", "Clip"])
def test_a_convolution_with_bias_and_activation_is_onnxruntime_s_bit_by_bit(codes: Any, act: str) -> None:
    m = Model(0, codes)
    w, scale = m.constant(0, 7, 4, 3, 3)
    y = m.node("Conv", m.through(m.input(2, 4, 9, 9)), w, m.bias(F(0.05) * scale), **CONV)
    if act:
        y = m.node(act, y, *([m.weight(F(0)), m.weight(F(6))] if act == "Clip" else []))
    graph, (got,), (want,) = m.run(m.quantize(y, 0.03, 5))
    assert products(graph) == ["quantized_convolution"]
    (node,) = (n for n in graph.nodes if n.op == "quantized_convolution")
    assert node.attrs["act"] == {"": "none", "Relu": "relu", "Clip": "relu6"}[act]
    assert graph.spec(str(node.inputs[6])).dtype.value == "int32"
    assert got.dtype == codes
    # Clip is a node of its own there, and the convolution before it in floats.
    assert np.abs(got.astype(int) - want).max() <= (1 if act == "Clip" else 0)


@pytest.mark.parametrize("kind", ["gemm", "matmul", "per_tensor", "unsigned", "unsigned_moved"])
def test_matrix_products_are_onnxruntime_s(kind: str) -> None:
    m = Model(1)
    x = m.through(m.input(5, 16))
    if kind == "gemm":
        w, scale = m.constant(0, 9, 16)
        y = m.node("Gemm", x, w, m.bias(F(0.05) * scale), transB=1)
    elif kind == "per_tensor":
        names = [m.weight(a) for a in (m.rng.integers(-40, 40, (16, 9)).astype(np.int8), F(0.01), np.int8(0))]
        y = m.node("MatMul", x, m.node("DequantizeLinear", *names))
    else:
        zero = {"matmul": 0, "unsigned": 128, "unsigned_moved": 117}[kind]
        w, _ = m.constant(1, 16, 9, kind=np.int8 if kind == "matmul" else np.uint8, zero=zero)
        y = m.node("MatMul", x, w)
    graph, (got,), (want,) = m.run(m.quantize(y, 0.03, 100))
    assert products(graph) == ["quantized_matmul"]
    assert np.abs(got.astype(int) - want).max() <= (1 if kind.startswith("unsigned") else 0)


def test_products_of_two_activations_are_integers() -> None:
    m = Model(2)
    a, b = m.through(m.input(2, 3, 5, 8)), m.through(m.input(2, 3, 6, 8), 0.04, 128)
    b = m.node("Transpose", b, perm=[0, 1, 3, 2])
    graph, (got,), (want,) = m.run(m.quantize(m.node("MatMul", a, b), 0.1, 120))
    assert products(graph) == ["quantized_matmul"]
    assert "dequantize_linear" not in ops(graph)
    assert np.abs(got.astype(int) - want).max() <= 1


def test_a_float_bias_and_a_float_result_are_fused() -> None:
    m = Model(3)
    w, _ = m.constant(1, 16, 9)
    y = m.node("MatMul", m.through(m.input(5, 16)), w)
    y = m.node("Relu", m.node("Add", y, m.weight(m.rng.standard_normal(9).astype(F))))
    graph, (got,), (want,) = m.run(y)
    assert ops(graph) == ["div", "round", "add", "clamp", "quantized_matmul"]
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_a_bias_in_other_units_than_the_sums_is_added_as_a_float() -> None:
    m = Model(4)
    w, scale = m.constant(0, 7, 4, 3, 3)
    y = m.node("Conv", m.through(m.input(1, 4, 9, 9)), w, m.bias(F(0.1) * scale))
    make = m.weights
    graph, (got,), _ = m.run(y)
    (node,) = (n for n in graph.nodes if n.op == "quantized_convolution")
    assert graph.spec(str(node.inputs[6])).dtype.value == "float32"
    x = m.inputs["x0"]
    codes = np.clip(np.rint(x / F(0.05)) + 3, 0, 255)
    sums = interp.apply(
        "convolution", (codes.astype(float) - 3) * 0.05, make["w0"] * make["w1"].astype(float).reshape(-1, 1, 1, 1), None,
        stride=[1, 1], padding=[0, 0], dilation=[1, 1],
    )[0]  # fmt: skip
    bias = next(n for n in make.values() if n.dtype == np.int32 and n.any()) * (0.1 * scale.astype(float))
    np.testing.assert_allclose(got, sums + bias.reshape(1, -1, 1, 1), rtol=1e-4, atol=1e-4)


def test_movement_pools_and_concatenation_move_codes() -> None:
    m = Model(5)
    a, b = m.through(m.input(1, 4, 8, 8)), m.through(m.input(1, 4, 8, 8), 0.02, 9)
    pooled = [m.node("MaxPool", v, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2]) for v in (a, b)]
    y = m.through(m.node("Concat", *pooled, axis=1))
    y = m.through(m.node("Transpose", y, perm=[0, 2, 3, 1]))
    graph, (got,), (want,) = m.run(m.quantize(m.node("Reshape", y, m.weight(np.array([1, -1])))))
    pools = [n for n in graph.nodes if n.op == "max_pool"]
    assert [graph.spec(n.name).dtype.value for n in pools] == ["uint8", "uint8"]
    assert graph.spec(next(n.name for n in graph.nodes if n.op == "cat")).dtype.value == "uint8"
    assert np.abs(got.astype(int) - want).max() <= 1


def test_a_residual_addition_is_elementwise_and_exact_to_a_step() -> None:
    m = Model(6)
    w, scale = m.constant(0, 4, 4, 3, 3)
    x = m.through(m.input(1, 4, 6, 6))
    y = m.through(m.node("Conv", x, w, m.bias(F(0.05) * scale), pads=[1, 1, 1, 1]), 0.06, 130)
    y = m.node("Relu", m.node("Add", y, x))
    graph, (got,), (want,) = m.run(m.quantize(y, 0.07, 0))
    assert not any("quantize_linear" in op for op in ops(graph))
    assert np.abs(got.astype(int) - want).max() <= 1


def test_integer_products_of_onnx_become_the_same_ops() -> None:
    m = Model(7)
    x = m.quantize(m.input(1, 4, 6, 6))
    scale, zero = m.nodes[-1].input[1:]
    w = m.weight(m.rng.integers(-40, 40, (5, 4, 3, 3)).astype(np.int8))
    more = [
        m.weight(np.full(5, 0.01, F)),
        m.weight(np.zeros(5, np.int8)),
        m.weight(F(0.05)),
        m.weight(np.uint8(9)),
    ]
    conv = m.node(
        "QLinearConv", x, scale, zero, w, *more, m.weight(m.rng.integers(-90, 90, 5).astype(np.int32))
    )
    rows = m.quantize(m.input(3, 16))
    v = m.weight(m.rng.integers(-40, 40, (16, 8)).astype(np.int8))
    linear = m.node(
        "QLinearMatMul",
        rows,
        *m.nodes[-1].input[1:],
        v,
        m.weight(F(0.01)),
        m.weight(np.int8(0)),
        m.weight(F(0.1)),
        m.weight(np.uint8(100)),
    )
    sums = m.node("MatMulInteger", rows, v, m.nodes[-2].input[2])
    loose = m.node("ConvInteger", x, w, zero)
    graph, got, want = m.run(conv, linear, sums, loose)
    assert sorted(products(graph)) == ["quantized_convolution"] * 2 + ["quantized_matmul"] * 2
    for a, b in zip(got, want, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


def test_dynamic_quantization_multiplies_in_integers() -> None:
    m = Model(8)
    x = m.input(5, 16)
    m.nodes.append(onnx.helper.make_node("DynamicQuantizeLinear", [x], ["q", "s", "z"], name="d"))
    w = m.weight(m.rng.integers(-40, 40, (16, 9)).astype(np.int8))
    sums = m.node("Cast", m.node("MatMulInteger", "q", w, "z"), to=1)
    graph, (got,), (want,) = m.run(m.node("Mul", sums, m.node("Mul", "s", m.weight(F(0.01)))))
    assert products(graph) == ["quantized_matmul"]
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_without_kernels_for_it_the_graph_stays_in_floats() -> None:
    m = Model(9)
    w, _ = m.constant(1, 16, 9)
    m.node("MatMul", m.through(m.input(5, 16)), w)
    graph, _, _ = m.run(m.nodes[-1].output[0])
    assert products(graph) == ["quantized_matmul"]
    imported = import_onnx(onnx.helper.make_model(onnx.helper.make_graph(
        m.nodes, "g", [onnx.helper.make_tensor_value_info("x0", 1, [5, 16])],
        [onnx.helper.make_tensor_value_info(m.nodes[-1].output[0], 1, [5, 9])],
        [onnx.numpy_helper.from_array(a, n) for n, a in m.weights.items()],
    ), opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8))[0]  # fmt: skip
    context = PassContext(has_kernel=lambda op: not op.startswith("quantized_"))
    assert products(run_passes(imported, QUANTIZED, context=context)) == ["matmul"]
    assert [n.op for n in imported.nodes].count("dequantize_linear") == 2
