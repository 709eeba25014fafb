"""Small real models that the session tests run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="the tests build models with onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402


def build(nodes, inputs, outputs, weights=(), opset: int = 17):
    """A checked ModelProto. inputs and outputs: (name, TensorProto type, shape); weights: name -> array."""
    values = [[helper.make_tensor_value_info(*v) for v in group] for group in (inputs, outputs)]
    initialisers = [numpy_helper.from_array(a, n) for n, a in dict(weights).items()]
    graph = helper.make_graph(nodes, "g", *values, initialisers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    onnx.checker.check_model(model, full_check=True)
    return model


def classifier(seed: int = 0, batch: object = "batch"):
    """Convolution, bias, activation, pooling, product, softmax: [batch, 3, 8, 8] -> [batch, 10]."""
    r = np.random.default_rng(seed)
    weights = {
        "w1": r.standard_normal((32, 3, 3, 3)).astype(np.float32) * 0.3,
        "b1": r.standard_normal(32).astype(np.float32),
        "w2": r.standard_normal((32, 64)).astype(np.float32) * 0.2,
        "w3": r.standard_normal((64, 10)).astype(np.float32) * 0.2,
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
    return build(
        nodes,
        [("input", TensorProto.FLOAT, [batch, 3, 8, 8])],
        [("output", TensorProto.FLOAT, [batch, 10])],
        weights,
    )


@pytest.fixture(scope="session")
def proto():
    """The classifier as a ModelProto."""
    return classifier()


@pytest.fixture(scope="session")
def path(proto, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The classifier as a file."""
    file = tmp_path_factory.mktemp("models") / "classifier.onnx"
    onnx.save(proto, file)
    return file


@pytest.fixture(scope="session")
def x() -> np.ndarray:
    """One batch of two inputs."""
    return np.random.default_rng(7).standard_normal((2, 3, 8, 8)).astype(np.float32)


@pytest.fixture(scope="session")
def expected(proto, x) -> np.ndarray:
    """What the ONNX reference evaluator says for ``x``."""
    from onnx.reference import ReferenceEvaluator

    return ReferenceEvaluator(proto).run(None, {"input": x})[0]
