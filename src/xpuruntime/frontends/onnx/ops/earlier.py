"""Nodes of opsets before 9, rewritten to what the same op means in opset 9: legacy broadcasting, test mode, attributes that are operands now."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from ...not_lowered import NotLowered
from .context import OnnxLoweringContext, may_equal

__all__ = ["CURRENT_OPSET", "EARLIER"]

CURRENT_OPSET = 9
"""The oldest opset whose definitions the table of ops lowers as they are. Older ones need an entry in ``EARLIER``."""
Rewrite: TypeAlias = "Callable[[OnnxLoweringContext], OnnxLoweringContext]"

_CHANNELS = 1  # the axis of channels in NCHW


def _same(n: OnnxLoweringContext) -> OnnxLoweringContext:
    """Return the node as it is: the later version has more types, or lost an attribute that changes nothing."""
    return n


def _aligned(n: OnnxLoweringContext, position: int, axis: int) -> OnnxLoweringContext:
    """Return the node with an operand whose first dim is placed at this axis of the first operand."""
    after = n.spec().rank - axis - n.spec(position).rank
    if axis < 0 or after < 0:
        raise NotLowered(f"axis {axis} does not align {n.spec(position)} with {n.spec()}", n.input(position))
    if not after:
        return n
    rank = n.spec(position).rank
    return n.with_operand(
        position, str(n.b.unsqueeze(n.input(position), dims=list(range(rank, rank + after))))
    )


def _binary(n: OnnxLoweringContext) -> OnnxLoweringContext:
    """Rewrite broadcasting before opset 7: only the second operand broadcasts, only if asked to, from ``axis`` on."""
    if n.opset >= 7:
        return n
    if not n.attr("broadcast", 0):
        if not may_equal(n.spec().shape, n.spec(1).shape):
            raise NotLowered(
                f"its operands {n.spec()} and {n.spec(1)} differ, and before opset 7 they broadcast only with broadcast=1"
            )
        return n
    axis = n.attr("axis")
    if axis is None or not n.spec(1).rank:
        return n
    return _aligned(n, 1, axis + n.spec().rank if axis < 0 else axis)


def _prelu(n: OnnxLoweringContext) -> OnnxLoweringContext:
    """Rewrite a slope per channel: since opset 7 it broadcasts from the right."""
    if n.opset >= 7 or n.spec(1).shape == (1,):
        return n
    return _aligned(n, 1, _CHANNELS)


def _inference(n: OnnxLoweringContext) -> OnnxLoweringContext:
    """Return the node if it is in test mode; before opset 7, training mode is the default."""
    if n.opset < 7 and not n.attr("is_test", 0):
        raise NotLowered("is_test is not 1, so before opset 7 the op is in training mode")
    return n


def _cast(n: OnnxLoweringContext) -> OnnxLoweringContext:
    """Rewrite the name of a type, which ``to`` is before opset 6, to its number."""
    from onnx import TensorProto

    to = n.attr("to")
    return (
        n
        if isinstance(to, int)
        else n.with_attributes(to=dict(TensorProto.DataType.items()).get(str(to).upper(), 0))
    )


def _pad(n: OnnxLoweringContext) -> OnnxLoweringContext:
    return n.with_attributes(pads=n.attr("paddings")) if "paddings" in n.attrs else n


def _upsample(n: OnnxLoweringContext) -> OnnxLoweringContext:
    """Rewrite the scales of height and width, which opset 1 has."""
    if "height_scale" not in n.attrs:
        return n
    return n.with_attributes(scales=[1.0, 1.0, n.attr("height_scale"), n.attr("width_scale")])


_UNCHANGED = [
    "Abs",
    "AveragePool",
    "Ceil",
    "Clip",
    "Concat",
    "Elu",
    "Exp",
    "Flatten",
    "Floor",
    "GRU",
    "Gemm",
    "GlobalLpPool",
    "HardSigmoid",
    "InstanceNormalization",
    "LSTM",
    "LeakyRelu",
    "Log",
    "LpPool",
    "MatMul",
    "Max",
    "MaxPool",
    "Mean",
    "Min",
    "Neg",
    "RNN",
    "Reciprocal",
    "Relu",
    "Reshape",
    "Selu",
    "Sigmoid",
    "Sqrt",
    "Sum",
    "Tanh",
]
_BINARY = ["Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Pow", "Sub", "Xor"]

EARLIER: Mapping[str, Rewrite] = {
    **dict.fromkeys(_UNCHANGED, _same),
    **dict.fromkeys(_BINARY, _binary),
    "BatchNormalization": _inference,
    "Cast": _cast,
    "Dropout": _inference,
    "PRelu": _prelu,
    "Pad": _pad,
    "Upsample": _upsample,
}
"""Op whose definition before opset 9 differs from the one in opset 9 -> the rewrite to that one. Others are not lowered."""
