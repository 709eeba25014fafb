"""Small ONNX models for tests: built in memory, seeded, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from xpuruntime.protocols import Array

__all__ = ["build_model", "save_small_mlp", "small_classifier"]


def build_model(
    nodes: Sequence[Any],
    inputs: Sequence[tuple[str, int, Sequence[int | str]]],
    outputs: Sequence[tuple[str, int, Sequence[int | str]]],
    weights: Mapping[str, Array] | None = None,
    opset: int = 17,
) -> Any:
    """Return a checked ``onnx.ModelProto``. inputs, outputs: (name, TensorProto element type, shape)."""
    import onnx
    from onnx import helper, numpy_helper

    values = [[helper.make_tensor_value_info(*v) for v in group] for group in (inputs, outputs)]
    initializers = [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()]
    graph = helper.make_graph(nodes, "g", *values, initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    onnx.checker.check_model(model, full_check=True)
    return model


def small_classifier(seed: int = 0, batch: int | str = "batch") -> Any:
    """Convolution, bias, ReLU, pooling, two products, softmax: ``input`` [batch, 3, 8, 8] -> ``output`` [batch, 10], float32.

    Every bias and weight is random, so that dropping one changes the answer.
    """
    from onnx import TensorProto, helper

    r = np.random.default_rng(seed)
    weights = {
        "w1": r.standard_normal((40, 3, 3, 3)) * 0.3,
        "b1": r.standard_normal(40),
        "w2": r.standard_normal((40, 64)) * 0.2,
        "w3": r.standard_normal((64, 10)) * 0.2,
    }
    nodes = [
        helper.make_node("Conv", ["input", "w1", "b1"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"], name="relu"),
        helper.make_node("GlobalAveragePool", ["r"], ["p"], name="pool"),
        helper.make_node("Flatten", ["p"], ["f"], name="flatten"),
        helper.make_node("MatMul", ["f", "w2"], ["h"], name="fc1"),
        helper.make_node("Tanh", ["h"], ["t"], name="tanh"),
        helper.make_node("MatMul", ["t", "w3"], ["l"], name="fc2"),
        helper.make_node("Softmax", ["l"], ["output"], name="softmax", axis=1),
    ]
    return build_model(
        nodes,
        [("input", TensorProto.FLOAT, [batch, 3, 8, 8])],
        [("output", TensorProto.FLOAT, [batch, 10])],
        {name: w.astype(np.float32) for name, w in weights.items()},
    )


def save_small_mlp(path: Path, rng: np.random.Generator) -> None:
    """Write two products, a ReLU and a softmax (nodes fc1, relu, fc2, top): ``x`` [batch, 16] -> ``y`` [batch, 8], float32."""
    import onnx
    from onnx import TensorProto, helper

    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["a"], name="fc1"),
        helper.make_node("Relu", ["a"], ["r"], name="relu"),
        helper.make_node("MatMul", ["r", "w2"], ["c"], name="fc2"),
        helper.make_node("Softmax", ["c"], ["y"], name="top"),
    ]
    weights = {n: rng.standard_normal(s).astype(np.float32) for n, s in (("w1", (16, 32)), ("w2", (32, 8)))}
    x, y = ((n, TensorProto.FLOAT, ["batch", d]) for n, d in (("x", 16), ("y", 8)))
    onnx.save(build_model(nodes, [x], [y], weights), path)
