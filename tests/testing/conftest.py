from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from xpuruntime.protocols import Array

Runner = Callable[[Any, dict[str, Array]], Array]


def one_by_one(run: Callable[[dict[str, Array]], Array], feeds: dict[str, Array]) -> Array:
    """Scores of each example, run with batch 1."""
    count = len(next(iter(feeds.values())))
    return np.concatenate([run({k: v[i : i + 1] for k, v in feeds.items()}) for i in range(count)])


def on_onnxruntime(model: Any, feeds: dict[str, Array]) -> Array:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return one_by_one(lambda x: session.run(None, x)[0], feeds)


def on_openvino(model: Any, feeds: dict[str, Array]) -> Array:
    import openvino

    core = openvino.Core()
    read = core.read_model(model.SerializeToString())
    compiled = core.compile_model(read, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return one_by_one(lambda x: np.array(compiled(x)[0]), feeds)


def on_native(model: Any, feeds: dict[str, Array]) -> Array:
    import xpuruntime as xrt

    with xrt.InferenceSession(model, engine="native", device="cpu", threads=1) as session:
        return one_by_one(lambda x: session.run(x)["scores"], feeds)


def interpreted(model: Any, feeds: dict[str, Array]) -> Array:
    from xpuruntime.ir import interp

    graph, weights = model
    return one_by_one(lambda x: interp.run(graph, x, weights=weights)["scores"], feeds)


def in_torch(module: Any, feeds: dict[str, Array]) -> Array:
    import torch

    with torch.no_grad():
        return np.asarray(module(*(torch.from_numpy(a) for a in feeds.values())).numpy())


@pytest.fixture
def run() -> dict[str, Runner]:
    """Each way to run a model: a model of its form and feeds by name to scores."""
    return {
        "onnxruntime": on_onnxruntime,
        "openvino": on_openvino,
        "native": on_native,
        "interpreter": interpreted,
        "torch": in_torch,
    }
