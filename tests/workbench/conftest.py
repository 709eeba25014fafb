from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")


@pytest.fixture(autouse=True)
def own_store(fresh_store: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test has a store of its own and none of the environment's wishes."""
    for name in ("XPU_POLICY", "XPU_ENGINE", "XPU_DEVICE", "XPU_NUM_THREADS", "XPU_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XPU_CACHE_DIR", str(fresh_store))
    return fresh_store


def network(seed: int = 0, *, scale: float = 1.0) -> onnx.ModelProto:
    """A small real network: conv 3x3, ReLU, global mean, matrix product. image f32[batch, 3, 8, 8] -> scores f32[batch, 10]."""
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(seed)
    weights = {
        "kernel": random.standard_normal((4, 3, 3, 3)).astype(np.float32),
        "bias": random.standard_normal(4).astype(np.float32),
        "head": (scale * random.standard_normal((4, 10))).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["image", "kernel", "bias"], ["features"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["features"], ["alive"], name="relu"),
        helper.make_node("GlobalAveragePool", ["alive"], ["pooled"], name="pool"),
        helper.make_node("Flatten", ["pooled"], ["flat"], name="flatten"),
        helper.make_node("MatMul", ["flat", "head"], ["scores"], name="head"),
    ]
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, 8, 8])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 10])],
        [numpy_helper.from_array(v, k) for k, v in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model


@pytest.fixture
def net() -> onnx.ModelProto:
    return network()


@pytest.fixture
def net_path(tmp_path: Path, net: onnx.ModelProto) -> Path:
    path = tmp_path / "network.onnx"
    onnx.save(net, path)
    return path


def with_weight(model: onnx.ModelProto, name: str, change) -> onnx.ModelProto:
    """A copy of the model with one initializer replaced by ``change(array)``."""
    from onnx import numpy_helper

    other = onnx.ModelProto.FromString(model.SerializeToString())
    tensor = next(t for t in other.graph.initializer if t.name == name)
    tensor.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(tensor).copy()), name))
    return other


@pytest.fixture
def change_weight():
    return with_weight


@pytest.fixture
def make_network():
    return network
