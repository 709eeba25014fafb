"""Models for several engines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from xpuruntime.ir import GraphBuilder


@pytest.fixture
def vendor_op() -> Callable[..., Any]:
    """A model with an op of com.microsoft, on request with shape arithmetic around it."""
    return with_vendor_op


@pytest.fixture
def network() -> Any:
    """A convolutional network, and its weights."""
    return small_network()


def with_vendor_op(shape_arithmetic: bool = False) -> Any:
    """Linear layers around an op of com.microsoft; the Reshape in it reads sizes from the value before the region."""
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    arrays = {
        "w1": rng.standard_normal((16, 32)) / 4,
        "w2": rng.standard_normal((32, 8)) / 6,
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["h"], "first"),
        helper.make_node("SampleOp", ["h"], ["a"], "vendor", domain="com.microsoft"),
        helper.make_node("MatMul", ["a", "w2"], ["z"], "second"),
        helper.make_node("Relu", ["z"], ["y"], "last"),
    ]
    if shape_arithmetic:
        nodes[2:2] = [
            helper.make_node("Shape", ["x"], ["xs"], "sizes"),
            helper.make_node("Slice", ["xs", "zero", "one"], ["rows"], "rows"),
            helper.make_node("Concat", ["rows", "rest"], ["wanted"], "wanted", axis=0),
            helper.make_node("Reshape", ["a", "wanted"], ["r"], "reshape"),
        ]
        nodes[6].input[0] = "r"
    ints = {"zero": [0], "one": [1], "rest": [-1]} if shape_arithmetic else {}
    weights = [numpy_helper.from_array(a.astype(np.float32), n) for n, a in arrays.items()]
    weights += [numpy_helper.from_array(np.array(a, np.int64), n) for n, a in ints.items()]
    graph = helper.make_graph(
        nodes,
        "mixed",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 8])],
        weights,
        value_info=[helper.make_tensor_value_info("a", TensorProto.FLOAT, [4, 32])],  # nobody could infer it
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def small_network() -> Any:
    """Convolutions with residuals, a pool and a head."""
    rng = np.random.default_rng(3)
    b = GraphBuilder("cnn")
    weights: dict[str, np.ndarray] = {}

    def weight(*shape: int) -> str:
        name = f"w{len(weights)}"
        weights[name] = (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)
        return str(b.weight(name, f"float32{list(shape)}"))

    def conv(value: Any, channels: int) -> Any:
        return b.convolution(
            value, weight(16, channels, 3, 3), stride=[1, 1], padding=[1, 1], dilation=[1, 1]
        )

    h = b.relu(conv(b.input("x", "float32[2, 3, 16, 16]"), 3))
    for _ in range(3):
        h = b.relu(b.add(conv(b.relu(conv(h, 16)), 16), h))
    h = b.max_pool(h, kernel_size=[2, 2], stride=[2, 2], padding=[0, 0], dilation=[1, 1])
    b.output("y", b.softmax(b.linear(b.mean(h, dim=[2, 3]), weight(10, 16)), dim=-1))
    return b.build(), weights
