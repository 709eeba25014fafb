"""Helpers that all convolution kernels share: supported nodes, strides, names."""

from __future__ import annotations

from collections.abc import Sequence

from ...decisions import Reason, Support
from ...types import DType, TensorSpec
from ..kernel import NodeCall
from .conv_shape import ConvShape

__all__ = ["FLOATS", "GRAIN_FLOPS", "OPS", "act_of", "stem_of", "strides_of_weight", "supported"]

OPS = ("convolution", "fused_convolution")
FLOATS = (DType.FLOAT32, DType.FLOAT64, DType.FLOAT16, DType.BFLOAT16)

GRAIN_FLOPS = 1 << 21
"""Minimum operations per thread: about ten microseconds."""


def strides_of_weight(shape: ConvShape, weight: TensorSpec) -> tuple[int, ...]:
    """Return the strides of filter, channel, the three kernel dims, and group."""
    steps = weight.physical.strides
    space = (0,) * (5 - len(steps)) + steps[2:]
    if shape.transposed:
        return (steps[1], steps[0], *space, shape.channels * steps[0])
    return (steps[0], steps[1], *space, shape.filters * steps[0])


def supported(call: NodeCall, dtypes: Sequence[DType]) -> Support:
    """Return whether the dtype is one of these, and there are at most three spatial dims."""
    spec = call.tensor(0).spec
    if spec.dtype not in dtypes:
        return Support.no(Reason.DTYPE_UNSUPPORTED, f"{spec.dtype.value} is not supported")
    if spec.rank > 5:
        return Support.no(Reason.SHAPE_UNSUPPORTED, f"{spec.rank - 2} spatial dims; at most 3 are supported")
    return Support.yes()


def stem_of(prefix: str, shape: ConvShape) -> str:
    """Return the name of a convolution kernel: ``conv3x3_64x128``."""
    kernel = "x".join(str(k) for k in shape.kernel[-min(shape.rank, 3) :])
    return f"{prefix}{kernel}_{shape.channels * shape.groups}x{shape.filters * shape.groups}"


def act_of(call: NodeCall) -> str:
    """Return the fused activation; ``none`` for a plain convolution."""
    return str(call.attrs["act"]) if call.op == "fused_convolution" else "none"
