"""Convolutions of groups with few channels, each with as many filters, on CPUs (``templates/conv_grouped.h``).

A product per group would fill a part of a vector. Here vectors run over the channels of several groups, as in a depthwise convolution.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ....codegen.c_types import C_TYPES
from ....codegen.target import CodegenTarget
from ....program.program import RecipeStep
from ....types import DType, TensorSpec
from ...kernel import LoweredCall, NodeCall, Packed
from ...spec.conv import GRAIN_FLOPS, act_of
from ...spec.conv_shape import ConvShape
from ..abi import isa_of
from ..matmul.gemm_tiling import registers
from .depthwise import channels_stage, rows_are_known

__all__ = ["GroupedTiling", "grouped_tiling", "lower_grouped"]

_MAX_PIXELS = 8
"""Maximum pixels of a register block: limit of the unrolled loops."""
_MAX_CHANNELS = 8
"""Maximum channels of a group. A product per group fills vectors with more."""


@dataclass(frozen=True, slots=True)
class GroupedTiling:
    """Lanes of a vector, and pixels of a register block."""

    lanes: int
    pixels: int


def grouped_tiling(
    call: NodeCall, shape: ConvShape, dtype: DType, target: CodegenTarget
) -> GroupedTiling | None:
    """Return the tiling of groups that share a vector; None for other convolutions."""
    isa = isa_of(target)
    lanes, channels = isa.lanes(8 if dtype is DType.FLOAT64 else 4), shape.channels
    few = 1 < channels <= _MAX_CHANNELS and channels == shape.filters and lanes % channels == 0
    if not few or shape.groups == 1 or shape.transposed or not call.tensor(1).is_weight:
        return None
    if not shape.pixels or not rows_are_known(call, shape):
        return None
    most = min(_MAX_PIXELS, (registers(isa) - 3) // 2)  # an input and a sum for each
    pixels = min(range(most, 1, -1), key=lambda p: -(-shape.out[2] // p) * (p + 0.5))
    return GroupedTiling(lanes, pixels)


def lower_grouped(
    call: NodeCall, shape: ConvShape, tile: GroupedTiling, target: CodegenTarget
) -> LoweredCall:
    """Return the stage of a tiling."""
    dtype = call.outputs[0].dtype
    sums = DType.FLOAT64 if dtype is DType.FLOAT64 else DType.FLOAT32
    wide = replace(shape, groups=shape.groups * shape.channels, channels=1, filters=1)
    kind = f"{C_TYPES[dtype]}, act::{act_of(call)}, {tile.lanes}, 1, {tile.pixels}, {shape.kernel[2]}, {shape.stride[2]}"
    stage = channels_stage(
        call, wide, f"run_rows<{kind}, depthwise::ByGroups<{shape.channels}>>", tile.lanes, target,
        stem="conv", part="conv_grouped", grain_flops=GRAIN_FLOPS,
    )  # fmt: skip
    steps = (
        RecipeStep("cast", ("%in",), {"dtype": sums.value}),
        RecipeStep("reshape", ("%0",), {"shape": [wide.groups, shape.channels, shape.taps]}),
        RecipeStep("permute", ("%1",), {"order": [2, 1, 0]}),
    )
    packed = Packed(steps, TensorSpec((shape.taps, shape.channels, wide.groups), sums))
    return LoweredCall((stage,), weights={1: packed}, accumulates=sums.value)
