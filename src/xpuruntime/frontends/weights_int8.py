"""Weight-only int8: what ``precision="int8"`` means for a float model that comes without calibration data.

Weights of convolutions and matrix products are stored as int8 with one symmetric scale per output channel
(``scale = max|w| / 127``) behind a DequantizeLinear; activations stay in the model's own precision. That needs no data,
changes a model's outputs little, and every engine that reads ONNX takes it. int8 activations need calibration: quantise
with data beforehand and hand in that model; it is taken as it is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import PrecisionUnavailable
from ..protocols import ModelSource

__all__ = ["quantise_weights"]

_MIN_ELEMENTS = 1024  # below this the scales and the extra node cost more than they save


def quantise_weights(model: ModelSource) -> tuple[ModelSource, int]:
    """The model with int8 weights, and how many weights were changed. Raises PrecisionUnavailable when none can be."""
    if model.quantized is not None:
        raise _cannot(model, f"the model is quantised already, to {model.quantized.value}")
    if model.format != "onnx":
        raise _cannot(model, f"weights can be made int8 in ONNX models only, this is {model.format}")
    if model.opsets.get("", 0) < 10:
        raise _cannot(model, f"DequantizeLinear needs opset 10, this model has {model.opsets.get('', 0)}")
    import onnx
    from onnx import numpy_helper

    from .model_file import open_model

    proto = onnx.load(str(model.path)) if model.path else onnx.load_from_string(model.data or b"")
    graph = proto.graph
    weights = {w.name: w for w in graph.initializer}
    wanted: dict[str, int | None] = {}
    for node in graph.node:
        axis = _channel_axis(node)
        name = node.input[1] if len(node.input) > 1 else ""
        if axis is None or name not in weights or weights[name].data_type != onnx.TensorProto.FLOAT:
            continue
        if len(weights[name].dims) >= 2 and int(np.prod(weights[name].dims)) >= _MIN_ELEMENTS:
            wanted[name] = axis % len(weights[name].dims) if wanted.get(name, axis) == axis else None

    per_channel = model.opsets.get("", 0) >= 13
    nodes = []
    for name, channel in wanted.items():
        array = numpy_helper.to_array(weights[name])
        values, scale, channel = _quantise(array, channel if per_channel else None)
        weights[name].CopyFrom(numpy_helper.from_array(values, name + "__int8"))
        graph.initializer.append(numpy_helper.from_array(scale, name + "__scale"))
        attributes = {} if channel is None else {"axis": channel}
        dequantise = onnx.helper.make_node(
            "DequantizeLinear",
            [name + "__int8", name + "__scale"],
            [name],
            f"{name}__dequantise",
            **attributes,
        )
        nodes.append(dequantise)
    if not nodes:
        raise _cannot(
            model, "no convolution or matrix product has a float32 weight of 1,024 elements or more"
        )
    everything = [*nodes, *graph.node]
    del graph.node[:]
    graph.node.extend(everything)
    # Models of IR version 3 list weights as inputs too; a weight that is now computed must leave that list.
    kept = [i for i in graph.input if i.name not in wanted]
    del graph.input[:]
    graph.input.extend(kept)
    return open_model(proto.SerializeToString(), name=model.name), len(nodes)


def _channel_axis(node: Any) -> int | None:
    """The axis of the weight (input 1) that runs over output channels, or None when the op's weight stays as it is."""
    match node.op_type if node.domain in ("", "ai.onnx") else "":
        case "Conv":
            return 0
        case "MatMul":
            return -1
        case "Gemm":
            return 0 if any(a.name == "transB" and a.i for a in node.attribute) else 1
        case _:
            return None


def _quantise(
    array: NDArray[Any], axis: int | None
) -> tuple[NDArray[np.int8], NDArray[np.float32], int | None]:
    """Symmetric int8 values and their scale: one per slice of ``axis``, or one for all."""
    others = None if axis is None else tuple(i for i in range(array.ndim) if i != axis)
    largest = np.abs(array).max(axis=others, keepdims=True)
    scale = np.where(largest > 0, largest / 127, 1).astype(np.float32)
    values = np.clip(np.rint(array / scale), -127, 127).astype(np.int8)
    return values, (scale.reshape(()) if axis is None else scale.reshape(-1)), axis


def _cannot(model: ModelSource, what: str) -> PrecisionUnavailable:
    return PrecisionUnavailable(
        f"model {model.name}",
        f"precision int8 cannot be had: {what}",
        do="Quantise the model with calibration data and hand that in, or drop precision='int8'.",
    )
