"""Convolutions on CPUs: any rank to 3, stride, padding, dilation, grouping and layout, plain, transposed and fused.

``conv/generated`` is a product of gathered pixels with packed filters (``templates/conv.h``); filters that are known are packed
when they are loaded. Transposed ones with known filters are several ordinary ones (``conv_phases``). ``conv_plain`` has the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ....codegen.target import CodegenTarget
from ....decisions import Support
from ....program.program import RecipeStep
from ....types import DType, TensorSpec
from ...kernel import Kernel, LoweredCall, NodeCall, Operand, Packed, Stage
from ...portable.text import braces, shape_text
from ...portable.windows.conv import DeformedConv, NaiveConv, operands
from ...spec.conv import FLOATS, GRAIN_FLOPS, OPS, act_of, stem_of, strides_of_weight, supported
from ...spec.conv_shape import C_TYPES, ConvShape, sizes
from ..abi import function
from ..matmul.gemm import lower_product
from ..tasks import LoopedTasks
from .depthwise import CpuDepthwise
from .phases import Phase, phases, repeated_bias
from .pointwise import pixels_apart, pointwise
from .tiling import ConvTiling, tiling

__all__ = ["KERNELS"]


_DTYPES = {
    "F32": DType.FLOAT32,
    "F64": DType.FLOAT64,
    "Bf16Pairs": DType.BFLOAT16,
    "Bf16Tiles": DType.BFLOAT16,
}
"""What packed filters are stored in."""


def _filters(shape: ConvShape, dtype: DType, weight: TensorSpec) -> list[RecipeStep]:
    """Return steps from a node's filters to [groups, filters, channels, taps], but for the last reshape."""
    steps = [] if weight.dtype is dtype else [RecipeStep("cast", ("%in",), {"dtype": dtype.value})]
    if shape.transposed:  # [in, out / groups, taps] counts groups along its inputs
        counted = [shape.groups, shape.channels, shape.filters, shape.taps]
        steps.append(RecipeStep("reshape", (_last(steps),), {"shape": counted}))
        steps.append(RecipeStep("permute", (_last(steps),), {"order": [0, 2, 1, 3]}))
    return steps


def _last(steps: Sequence[RecipeStep]) -> str:
    return f"%{len(steps) - 1}" if steps else "%in"


def _packed(shape: ConvShape, cut: ConvTiling, given: Sequence[RecipeStep]) -> Packed:
    """Return a ``Packed`` that reorders the [groups, filters, channels, taps] made by ``given`` to [group, tile, depth, filter of the tile].

    Pairs of the depth are innermost for VDPBF16PS.
    """
    g, o, c, taps, tile = shape.groups, shape.filters, shape.channels, shape.taps, cut.tile
    dtype = _DTYPES[cut.math]
    steps = list(given)

    def step(op: str, **attrs: object) -> None:
        steps.append(RecipeStep(op, (_last(steps),), attrs))

    step("reshape", shape=[g, o, c, taps])
    step("permute", order=[0, 1, 3, 2])
    step("reshape", shape=[g, o, taps * c])
    step("pad", begin=[0, 0, 0], end=[0, cut.tiles * tile - o, cut.depth - taps * c])
    word = 2 if dtype is DType.BFLOAT16 else 1
    step("reshape", shape=[g, cut.tiles, tile, cut.depth // word, word])
    step("permute", order=[0, 1, 3, 2, 4])
    return Packed(tuple(steps), TensorSpec((g, cut.tiles, cut.depth // word, tile, word), dtype))


class GeneratedConv(Kernel):
    """Implicit GEMM for floats in every layout; contiguous channels are the fast case."""

    name: str = "conv/generated"
    ops: tuple[str, ...] = OPS

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return yes for floats of up to three space dims."""
        return supported(call, FLOATS)

    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Return one stage; one before it where weights are computed."""
        shape = ConvShape.of(call)
        dtype = call.outputs[0].dtype
        product = pointwise(call, shape, target)
        if product is not None:
            return lower_product(call, product, target, stem=stem_of("conv", shape))
        weight = call.tensor(1)
        split = phases(call, shape) if weight.is_weight else None
        if split is not None:
            return _lower_phases(call, shape, split, target)
        cut = tiling(shape, dtype, target)
        temps, stages, filters = [], [], "in1"
        if not weight.is_weight:
            filters = "temp0"
            temps.append(shape.groups * cut.tiles * cut.depth * cut.tile * cut.row_bytes)
            stages.append(_pack_stage(shape, weight, cut, dtype))
        stages.append(_product_stage(call, shape, cut, filters))
        given = _filters(shape, _DTYPES[cut.math], weight.spec)
        weights = {1: _packed(shape, cut, given)} if weight.is_weight else {}
        return LoweredCall(tuple(stages), tuple(temps), weights=weights, accumulates=_sums(dtype))


def _sums(dtype: DType) -> str:
    return "float64" if dtype is DType.FLOAT64 else "float32"


def _lower_phases(
    call: NodeCall, shape: ConvShape, split: Sequence[Phase], target: CodegenTarget
) -> LoweredCall:
    """Return one stage per phase, each with its own filters; the first phase's filters replace the node's weight operand."""
    dtype, weight = call.outputs[0].dtype, call.tensor(1).spec
    stages, weights, beside = [], dict[int, Packed](), dict[str, tuple[int, Packed]]()
    for at, phase in enumerate(split):
        cut = tiling(phase.shape, dtype, target)
        packed = _packed(phase.shape, cut, phase.filters(shape, _DTYPES[cut.math], weight))
        filters = f"beside{at - 1}" if at else "in1"
        if at:
            beside[filters] = (1, packed)
        else:
            weights[1] = packed
        stages.append(_product_stage(call, phase.shape, cut, filters, phase))
    bias = repeated_bias(call, split[0])
    if bias is not None:
        weights[2] = bias
    return LoweredCall(tuple(stages), weights=weights, beside=beside, accumulates=_sums(dtype))


def _product_stage(
    call: NodeCall, shape: ConvShape, cut: ConvTiling, filters: str, phase: Phase | None = None
) -> Stage:
    """Return the stage of one convolution, or of one phase of a transposed one, whose results are strided."""
    args, c = operands(call, filters)
    if phase is not None:
        c["y"] += f" + {phase.y}" if phase.y else ""
        c["residual"] += f" + {phase.r}" if phase.r and c["residual"] != "nullptr" else ""
    kind = f"conv::{cut.math}, {C_TYPES[call.outputs[0].dtype]}, act::{act_of(call)}, {cut.pixels}, {cut.vectors}"
    apart = pixels_apart(shape, cut, call.outputs[0].dtype)
    run = f"run<{kind}{f', {apart}' if apart else ''}>(shape, blocks"
    if cut.math == "Bf16Tiles":
        run = f"run_tiles<act::{act_of(call)}>(shape, blocks"
    elif cut.lines[0]:
        step = shape.stride[2] * shape.channels * cut.row_bytes
        run = f"run_lines<{kind}, {step}>(shape, blocks, {cut.lines[0]}, {cut.lines[1]}"
    body = (
        f"  static const conv::Shape shape = {shape_text(shape)};\n"
        f"  static const conv::Blocks blocks = {cut.text()};\n"
        f"  conv::{run}, {c['x']}, {c['filters']}, {c['bias']}, {c['residual']}, {c['y']},\n"
        f"      begin, end, scratch);"
    )
    tasks = shape.groups * cut.blocks * cut.tiles
    flops = shape.flops(2)
    word = "conv" if phase is None and not shape.transposed else "transposed_conv"
    return Stage(
        stem=stem_of(word, shape),
        source=function(body, shape.about(call)),
        args=args,
        tasks=tasks if shape.pixels and shape.filters else 1,
        grain=max(1, GRAIN_FLOPS * tasks // max(flops, 1)),
        scratch_bytes=cut.scratch_bytes,
        parts=_parts(cut),
        flops=flops,
        bytes=shape.bytes(call),
    )


def _parts(cut: ConvTiling) -> frozenset[str]:
    return frozenset({"conv_amx" if cut.math == "Bf16Tiles" else "conv"})


def _pack_stage(shape: ConvShape, weight: Operand, cut: ConvTiling, dtype: DType) -> Stage:
    body = (
        f"  static const conv::Shape shape = {shape_text(shape)};\n"
        f"  static const conv::Blocks blocks = {cut.text()};\n"
        f"  static const int64_t strides[6] = {braces(strides_of_weight(shape, weight.spec))};\n"
        f"  conv::pack<conv::{cut.math}, {C_TYPES[dtype]}, {cut.vectors}>(shape, blocks, (const {C_TYPES[dtype]} *)args[0],\n"
        f"      strides, (conv::{cut.math}::row *)args[1], begin, end);"
    )
    size = math.prod(sizes(weight.spec))
    return Stage(
        stem="pack_filters",
        source=function(body, "filters that are computed, as the product reads them"),
        args=("in1", "temp0"),
        tasks=shape.groups * cut.tiles,
        parts=_parts(cut),
        bytes=2 * size * dtype.bits // 8,
    )


KERNELS: tuple[Kernel, ...] = (
    CpuDepthwise(),
    GeneratedConv(),
    LoopedTasks(NaiveConv()),
    LoopedTasks(DeformedConv()),
)
