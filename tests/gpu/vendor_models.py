"""Models for the checks of vendor engines on a GPU, and their outputs by ONNX Runtime's CPU provider. Needs onnx and onnxruntime, but no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["light_resnet50", "opened_batch", "reference", "relative_error", "small_net"]


def small_net(batch: int | str = 1, hidden: int = 64) -> onnx.ModelProto:
    """Return a network with convolutions, a residual, pooling and products. ``batch`` may be a symbol."""
    rng, node = np.random.default_rng(0), helper.make_node
    weights = {
        "w1": rng.standard_normal((hidden, 3, 3, 3), dtype=np.float32) / 5,
        "w2": rng.standard_normal((hidden, hidden, 3, 3), dtype=np.float32) / (3 * hidden**0.5),
        "m": rng.standard_normal((hidden, 10), dtype=np.float32) / hidden**0.5,
    }
    nodes = [
        node("Conv", ["x", "w1"], ["c1"], name="conv1", pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Relu", ["c1"], ["r1"], name="relu1"),
        node("Conv", ["r1", "w2"], ["c2"], name="conv2", pads=[1, 1, 1, 1]),
        node("Add", ["c2", "r1"], ["a"], name="add"),
        node("Relu", ["a"], ["r2"], name="relu2"),
        node("GlobalAveragePool", ["r2"], ["p"], name="pool"),
        node("Flatten", ["p"], ["f"], name="flat"),
        node("MatMul", ["f", "m"], ["y"], name="product"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 3, 32, 32])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 10])
    graph = helper.make_graph(
        nodes, "small", [x], [y], [numpy_helper.from_array(a, n) for n, a in weights.items()]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def opened_batch(count: int, seed: int = 1) -> dict[str, np.ndarray]:
    """Return inputs of ``small_net``."""
    return {"x": np.random.default_rng(seed).standard_normal((count, 3, 32, 32), dtype=np.float32)}


def light_resnet50() -> tuple[bytes, dict[str, np.ndarray]]:
    """Return the ResNet-50 with random weights that the onnx package carries, and an input."""
    path = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light" / "light_resnet50.onnx"
    model = onnx.load(path)
    weights = {t.name for t in model.graph.initializer}
    (value,) = [v for v in model.graph.input if v.name not in weights]
    shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
    return model.SerializeToString(), {value.name: np.random.default_rng(2).random(shape, dtype=np.float32)}


def reference(model: bytes, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Return the outputs of ONNX Runtime's CPU provider."""
    import onnxruntime

    session: Any = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)  # type: ignore[no-any-return]


def relative_error(value: Any, want: np.ndarray) -> float:
    """Return the largest difference, relative to the largest reference value."""
    return float(np.abs(np.asarray(value, np.float64) - want).max() / np.abs(want).max())
