"""``conv/depthwise`` on CPUs: one input channel per group, with one filter or several (``templates/conv_depthwise.h``).

Filters are packed at load as [filter, taps, channel], so vectors run along contiguous channels. A register block computes a few adjacent output
pixels, whose windows share the loaded input. It is bandwidth-bound unless the filters are large. With AVX-512 BF16, bfloat16 taps of two rows are
multiplied at once; subnormal numbers count as zeros there.
"""

from __future__ import annotations

from ....codegen.c_types import C_TYPES
from ....codegen.cpp.isa import IsaLevel
from ....codegen.target import CodegenTarget
from ....decisions import Reason, Support
from ....program.program import RecipeStep
from ....types import DType, TensorSpec
from ...kernel import Kernel, LoweredCall, NodeCall, Packed, Stage
from ...portable.text import shape_text
from ...portable.windows.conv import operands
from ...spec.conv import FLOATS, GRAIN_FLOPS, OPS, act_of, stem_of, supported
from ...spec.conv_shape import ConvShape
from ..abi import function, isa_of
from ..matmul.gemm_tiling import registers

__all__ = ["CpuDepthwise", "channels_stage", "rows_are_known"]


class CpuDepthwise(Kernel):
    """Depthwise convolution, with one filter per channel or several."""

    name: str = "conv/depthwise"
    ops: tuple[str, ...] = OPS

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return yes for floats, one channel per group, and constant filters; not transposed."""
        answer = supported(call, FLOATS)
        if not answer.ok:
            return answer
        shape = ConvShape.of(call)
        if shape.channels != 1 or shape.groups == 1 or shape.transposed:
            return Support.no(
                Reason.SHAPE_UNSUPPORTED, "only non-transposed depthwise convolutions are supported"
            )
        if not call.tensor(1).is_weight:
            return Support.no(Reason.SHAPE_UNSUPPORTED, "the filters must be constant")
        return Support.yes()

    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Return one stage."""
        shape, dtype = ConvShape.of(call), call.outputs[0].dtype
        sums = DType.FLOAT64 if dtype is DType.FLOAT64 else DType.FLOAT32
        lanes = isa_of(target).lanes(sums.bits // 8)
        kind = f"{C_TYPES[dtype]}, act::{act_of(call)}, {lanes if shape.x[1] == 1 else 1}"
        block = _block(call, shape, registers(isa_of(target)))
        run = "run" if block is None else "run_rows"
        kind += "" if block is None else f", {block[0]}, {block[1]}, {shape.kernel[2]}, {shape.stride[2]}"
        pairs = block is not None and _takes_pairs(dtype, shape, isa_of(target))
        kind += ", depthwise::ByPairs" if pairs else ""
        stage = channels_stage(
            call, shape, f"{run}<{kind}>", lanes, target, stem="depthwise", part="conv_depthwise", grain_flops=GRAIN_FLOPS // 8
        )  # fmt: skip
        packed = _pairs(shape) if pairs else _taps(shape, sums)
        return LoweredCall((stage,), weights={1: packed}, accumulates=sums.value)


def channels_stage(
    call: NodeCall,
    shape: ConvShape,
    call_text: str,
    lanes: int,
    target: CodegenTarget,
    *,
    stem: str,
    part: str,
    grain_flops: int,
) -> Stage:
    """Return the stage that calls ``call_text``, a function of ``namespace depthwise``. Its tasks are some rows of some channels.

    shape: that of the convolution as a depthwise one, with a group for each channel. grain_flops: work that is worth a thread.
    """
    rows, channels, tasks = shape.cut(target.config.max_threadgroup_3d_z, shape.groups, 4 * lanes)
    args, c = operands(call, "in1")
    body = (
        f"  static const conv::Shape shape = {shape_text(shape)};\n"
        f"  static const depthwise::Tasks tasks = {{{rows}, {channels}, {-(-shape.groups // channels)}}};\n"
        f"  depthwise::{call_text}(shape, tasks, {c['x']}, {c['filters']}, {c['bias']}, {c['residual']}, {c['y']}, begin, end);"
    )
    own = ConvShape.of(call)
    return Stage(
        stem=stem_of(stem, own),
        source=function(body, own.about(call)),
        args=args,
        tasks=tasks,
        grain=max(1, grain_flops * tasks // max(own.flops(2), 1)),
        parts=frozenset({part}),
        flops=own.flops(2),
        bytes=own.bytes(call),
    )


def _taps(shape: ConvShape, sums: DType) -> Packed:
    """Return the filters as [filter, taps, channel], in the type of the sums."""
    steps = (
        RecipeStep("cast", ("%in",), {"dtype": sums.value}),
        RecipeStep("reshape", ("%0",), {"shape": [shape.groups, shape.filters, shape.taps]}),
        RecipeStep("permute", ("%1",), {"order": [1, 2, 0]}),
    )
    return Packed(steps, TensorSpec((shape.filters, shape.taps, shape.groups), sums))


def _takes_pairs(dtype: DType, shape: ConvShape, isa: IsaLevel) -> bool:
    """Return whether the taps of two rows are multiplied at once, by ``vdpbf16ps``."""
    return dtype is DType.BFLOAT16 and "avx512bf16" in isa.features and shape.kernel[1] > 1


def _pairs(shape: ConvShape) -> Packed:
    """Return the filters as [pair of rows, column, channel, 2]. An odd row is paired with zeros."""
    rows, columns = shape.kernel[1:]
    pairs = -(-rows // 2)
    steps = (
        RecipeStep("reshape", ("%in",), {"shape": [shape.groups, rows, columns]}),
        RecipeStep("pad", ("%0",), {"begin": [0, 0, 0], "end": [0, rows % 2, 0]}),
        RecipeStep("reshape", ("%1",), {"shape": [shape.groups, pairs, 2, columns]}),
        RecipeStep("permute", ("%2",), {"order": [1, 3, 0, 2]}),
    )
    return Packed(steps, TensorSpec((pairs, columns, shape.groups, 2), DType.BFLOAT16))


_MAX_TAPS, _MAX_STRIDE, _MAX_PIXELS = 7, 2, 8
"""Limits of the unrolled loops: taps of a kernel row, stride, and pixels of a register block."""


def rows_are_known(call: NodeCall, shape: ConvShape) -> bool:
    """Return whether ``run_rows`` supports the shape: planes without padding, contiguous channels, and a kernel row within its limits."""
    residual = call.op == "fused_convolution" and call.optional(3) is not None
    contiguous = shape.x[1] == shape.y[1] == 1 and (not residual or shape.r[1] == 1)
    flat = (
        shape.size[0] == shape.out[0] == shape.kernel[0] == 1 and shape.begin[0] == 0
    )  # padding adds planes
    short = shape.kernel[2] <= _MAX_TAPS and shape.stride[2] <= _MAX_STRIDE and shape.dilation[2] == 1
    return flat and contiguous and short


def _block(call: NodeCall, shape: ConvShape, registers: int) -> tuple[int, int] | None:
    """Return the vectors of channels and the pixels of a register block of ``run_rows``; None if that does not support the shape.

    Accumulators and one row of taps stay in registers. Of the pixel counts that fit, the one with the fewest loads and FMAs per output row wins.
    """
    taps, stride = shape.kernel[2], shape.stride[2]
    if shape.filters != 1 or not rows_are_known(call, shape):
        return None
    available = registers - taps - 2

    def cost(pixels: int) -> float:
        columns = (pixels - 1) * stride + taps
        return -(-shape.out[2] // pixels) * (pixels * taps + 0.7 * columns + 2)

    pixels = min(range(min(_MAX_PIXELS, available), 1, -1), key=cost)
    return (2 if 2 * pixels <= available else 1), pixels
