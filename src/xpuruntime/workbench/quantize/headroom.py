"""Room around calibrated ranges. Values beyond a range saturate: two saturated logits are equal, whichever was larger.

Activations in 16 bits have bits to spare, so each range is doubled. In 8 bits only the model's outputs get room, a quarter: their extremes differ
more from photograph to photograph than those of other values, by up to a fifth on the calibration data of ``benchmarks/quantized_agreement.py``.
Outputs behind ops that keep the order (Softmax, Resize, ArgMax) saturate where the operands of these ops do, so the room is there, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

__all__ = ["with_headroom"]

_OF_16_BITS, _OF_OUTPUTS = 2.0, 1.25

_KEEP_ORDER = frozenset(
    [
        "ArgMax",
        "ArgMin",
        "AveragePool",
        "Cast",
        "Clip",
        "Concat",
        "DepthToSpace",
        "Expand",
        "Flatten",
        "Gather",
        "GatherElements",
        "GatherND",
        "GlobalAveragePool",
        "GlobalMaxPool",
        "HardSigmoid",
        "Identity",
        "LeakyRelu",
        "LogSoftmax",
        "MaxPool",
        "Pad",
        "ReduceMax",
        "ReduceMean",
        "ReduceMin",
        "ReduceSum",
        "Relu",
        "Reshape",
        "Resize",
        "Sigmoid",
        "Slice",
        "Softmax",
        "SpaceToDepth",
        "Split",
        "Squeeze",
        "Tanh",
        "Tile",
        "TopK",
        "Transpose",
        "Unsqueeze",
        "Upsample",
    ]
)
"""Ops with equal results where their first operand (each operand of Concat) has saturated."""
_WITH_CONSTANT = frozenset({"Add", "Div", "Mul", "Sub"})
"""Ops that do so if their other operand is a constant."""
_BOUNDS = {
    "HardSigmoid": (0.0, 1.0),
    "Sigmoid": (0.0, 1.0),
    "LogSoftmax": (-np.inf, 0.0),
    "Softmax": (0.0, 1.0),
    "Tanh": (-1.0, 1.0),
}


def with_headroom(model: Any, ranges: Any, *, wide: bool) -> Any:
    """Return the calibrator's ranges with room, within the bounds that activation functions have.

    The quantizer removes a Clip whose result is quantized, so a range never exceeds the Clip's bounds.
    wide: for all values, which are in 16 bits; otherwise only for the model's outputs.
    """
    producers = {v: n for n in model.graph.node for v in n.output}
    factor = _OF_16_BITS if wide else _OF_OUTPUTS
    for name in list(ranges.keys()) if wide else _outputs(model, producers):
        if name not in ranges:
            continue
        low, high = (np.asarray(v) for v in ranges[name].range_value)
        bounds = _bounds(model, producers.get(name))
        if bounds is None or not (np.isfinite(low).all() and np.isfinite(high).all()):
            continue
        lower, upper = bounds
        wider = (
            np.minimum(low, np.maximum(low * factor, lower)),
            np.maximum(high, np.minimum(high * factor, upper)),
        )
        ranges[name] = type(ranges[name])(
            lowest=wider[0].astype(low.dtype), highest=wider[1].astype(high.dtype)
        )
    return ranges


def _outputs(model: Any, producers: dict[str, Any]) -> Iterable[str]:
    """Return the model's outputs, and the computed values whose saturation makes outputs equal."""
    contents = {t.name for t in model.graph.initializer}
    names = list(dict.fromkeys(o.name for o in model.graph.output))
    for name in names:
        node = producers.get(name)
        if node is None:
            continue
        operands: list[str] = []
        if node.op_type in _KEEP_ORDER:
            operands = list(node.input) if node.op_type == "Concat" else [node.input[0]]
        elif node.op_type in _WITH_CONSTANT and any(v in contents for v in node.input):
            operands = [v for v in node.input if v not in contents]
        names += [v for v in operands if v in producers and v not in names]
    return names


def _bounds(model: Any, producer: Any) -> tuple[float, float] | None:
    """Return the smallest and the largest result of a node; None for a Clip whose bounds are computed."""
    unbounded = (-np.inf, np.inf)
    if producer is None or producer.op_type != "Clip":
        return unbounded if producer is None else _BOUNDS.get(producer.op_type, unbounded)
    from onnx import numpy_helper

    contents = {t.name: t for t in model.graph.initializer}
    limits = []
    for at, default in enumerate(unbounded, 1):
        operand = producer.input[at] if len(producer.input) > at else ""
        if operand and operand not in contents:
            return None
        limits.append(float(numpy_helper.to_array(contents[operand]).reshape(-1)[0]) if operand else default)
    return limits[0], limits[1]
