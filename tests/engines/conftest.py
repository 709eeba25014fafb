from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from xpuruntime.engines import lookup
from xpuruntime.frontends.model_file import open_model
from xpuruntime.protocols import EngineRequest, Executable, ModelSource
from xpuruntime.targets import DeviceId

KINDS = {
    "float32": TensorProto.FLOAT,
    "float64": TensorProto.DOUBLE,
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
    "int8": TensorProto.INT8,
    "uint8": TensorProto.UINT8,
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
    "bool": TensorProto.BOOL,
    "string": TensorProto.STRING,
}


@pytest.fixture(scope="session")
def make() -> Callable[..., onnx.ModelProto]:
    """``make(nodes, inputs={"x": ("float32", [4])}, outputs=..., weights={"w": array})`` -> ModelProto."""

    def proto(
        nodes: Sequence[onnx.NodeProto],
        inputs: dict[str, tuple[str, list[Any]]],
        outputs: dict[str, tuple[str, list[Any]]],
        weights: dict[str, Any] | None = None,
        opsets: Sequence[tuple[str, int]] = (("", 17),),
        functions: Sequence[onnx.FunctionProto] = (),
    ) -> onnx.ModelProto:
        values = [
            [helper.make_tensor_value_info(n, KINDS[k], s) for n, (k, s) in d.items()]
            for d in (inputs, outputs)
        ]
        kept = [numpy_helper.from_array(np.asarray(a), n) for n, a in (weights or {}).items()]
        graph = helper.make_graph(list(nodes), "graph", *values, kept)
        imports = [helper.make_opsetid(d, v) for d, v in opsets]
        return helper.make_model(graph, opset_imports=imports, ir_version=8, functions=list(functions))

    return proto


@pytest.fixture(scope="session")
def conv_net(make: Callable[..., onnx.ModelProto]) -> onnx.ModelProto:
    """Convolution, batch norm, residual, pooling, constants, SiLU: what optimizers fuse, fold and rename."""
    rng = np.random.default_rng(0)
    node = helper.make_node
    weights = {n: rng.standard_normal((16, 16, 3, 3), dtype=np.float32) / 12 for n in ("w1", "w2")}
    weights |= {n: np.ones(16, np.float32) for n in ("scale", "bias", "mean", "var")}
    return make(
        [
            node("Conv", ["x", "w1"], ["c1"], name="conv1", pads=[1, 1, 1, 1]),
            node("BatchNormalization", ["c1", "scale", "bias", "mean", "var"], ["bn"], name="norm1"),
            node("Relu", ["bn"], ["r1"], name="relu1"),
            node("Conv", ["r1", "w2"], ["c2"], name="conv2", pads=[1, 1, 1, 1]),
            node("Add", ["c2", "r1"], ["a2"], name="add2"),
            node("Relu", ["a2"], ["r2"], name="relu2"),
            node("Identity", ["r2"], ["id"], name="same"),
            node("MaxPool", ["id"], ["mp"], name="pool", kernel_shape=[2, 2], strides=[2, 2]),
            node("GlobalAveragePool", ["mp"], ["gap"], name="mean"),
            node(
                "Constant", [], ["shape"], name="shape", value=numpy_helper.from_array(np.array([0, -1]), "v")
            ),
            node("Reshape", ["gap", "shape"], ["flat"], name="flat"),
            node("Sqrt", ["four"], ["two"], name="root"),
            node("Mul", ["flat", "two"], ["m"], name="twice"),
            node("Sigmoid", ["m"], ["s"]),
            node("Mul", ["m", "s"], ["y"], name="silu"),
        ],
        {"x": ("float32", [1, 16, 8, 8])},
        {"y": ("float32", [1, 16])},
        weights | {"four": np.full(16, 4, np.float32)},
    )


@pytest.fixture(scope="session")
def opened() -> Callable[..., Executable]:
    """``opened("openvino", proto_or_source)`` -> Executable, through supports, build and load."""

    def load(engine: str, model: object, device: str = "cpu", **request: Any) -> Executable:
        module = lookup(engine).load()
        source = model if isinstance(model, ModelSource) else open_model(model)
        asked = EngineRequest(DeviceId.parse(device), **{"threads": 2, **request})
        support = module.supports(source, asked)
        assert support, support.reason
        executable: Executable = module.load(module.build(source, asked), source, asked)
        return executable

    return load
