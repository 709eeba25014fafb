"""Depthwise convolutions of 8-bit codes: vectors of channels, with one product per tap (``templates/int8_depthwise.h``)."""

from __future__ import annotations

from ....codegen.target import CodegenTarget
from ....program.program import RecipeStep
from ....types import DType, TensorSpec
from ...kernel import LoweredCall, NodeCall, Packed, Stage
from ...portable.text import shape_text
from ...spec.conv import stem_of
from ...spec.conv_shape import ConvShape
from ..abi import function, isa_of
from ..matmul.gemm_tiling import registers
from .text import Int8Arguments, config
from .tiling import Int8Tiling

__all__ = ["depthwise_stage", "is_depthwise"]

_MAX_TAPS, _MAX_STRIDE = 7, 2


def is_depthwise(call: NodeCall, shape: ConvShape) -> bool:
    """Return whether each group has one channel and one filter, with contiguous channels on both sides."""
    return (
        shape.channels == shape.filters == 1
        and shape.groups > 1
        and shape.x[1] == shape.y[1] == 1
        and shape.size[0] == shape.kernel[0] == 1
        and shape.dilation[2] == 1
        and shape.kernel[2] <= _MAX_TAPS
        and shape.stride[2] <= _MAX_STRIDE
    )


def depthwise_stage(call: NodeCall, shape: ConvShape, target: CodegenTarget) -> LoweredCall:
    """Return the stage. A task is some rows of pixels by a range of channels."""
    isa = isa_of(target)
    lanes = isa.lanes(4)
    taps, stride = shape.kernel[2], shape.stride[2]
    free_registers = registers(isa) - taps - 3
    pixels = max(1, min(6, free_registers, shape.out[2]))
    rows, channels, tasks = shape.cut(target.config.max_threadgroup_3d_z, shape.groups, 4 * lanes)
    t = Int8Tiling("Pairs", 1, 1, lanes, 1, 1)
    a = Int8Arguments(call, isa, t)
    struct, parts = config(call, t)
    lines = [
        f"static const conv::Shape shape = {shape_text(shape)};",
        *a.lines,
        f"const int8::Tasks tasks = {{{rows}, {channels}, {-(-shape.groups // channels)}}};",
        f"int8::depthwise<KERNEL_product, {pixels}, {taps}, {stride}>(shape, tasks, s, zero, x, b, y, begin, end);",
    ]
    operations = shape.flops(2)
    stage = Stage(
        stem=stem_of("depthwise_int8_", shape),
        source="\n".join(struct)
        + "\n"
        + function("\n".join(f"  {line}" for line in lines), shape.about(call)),
        args=tuple(a.args),
        tasks=tasks,
        grain=max(1, (1 << 19) * tasks // max(operations, 1)),
        parts=frozenset({"int8_depthwise"}) | parts,
        flops=operations,
        bytes=shape.bytes(call),
    )
    # [channel, 1, taps] -> [taps, channel], padded to whole vectors; a word has the tap in its low half
    whole = -(-shape.groups // lanes) * lanes
    steps = (
        RecipeStep("reshape", ("%in",), {"shape": [shape.groups, shape.taps]}),
        RecipeStep("permute", ("%0",), {"order": [1, 0]}),
        RecipeStep("cast", ("%1",), {"dtype": "int16"}),
        RecipeStep("reshape", ("%2",), {"shape": [shape.taps, shape.groups, 1]}),
        RecipeStep("pad", ("%3",), {"begin": [0, 0, 0], "end": [0, whole - shape.groups, 1]}),
    )
    packed = Packed(steps, TensorSpec((shape.taps, whole, 2), DType.INT16))
    return LoweredCall((stage,), weights={1: packed}, accumulates="int32")
