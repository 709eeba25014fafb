"""``conv/generated`` on CPUs: implicit GEMM of any rank to 3, stride, padding, dilation, grouping and layout (``templates/conv.h``).

A task gathers the input windows of a block of pixels into its scratch and multiplies them by packed filters; a register tile of pixels by
vectors of filters accumulates. Constant filters are packed at load. A 1x1 convolution is a plain GEMM that reads its input in place
(``pointwise``), and so is one of one channel along one dim, whose windows overlap (``windows``). A transposed convolution is several
ordinary ones (``phases``). With few filters, vectors run along output positions instead (``pixels``), and over several
groups where each has few channels (``grouped``). ``NaiveConv`` supports the remaining nodes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ....codegen.c_types import C_TYPES
from ....codegen.target import CodegenTarget
from ....decisions import Support
from ....program.program import RecipeStep
from ....types import DType, TensorSpec
from ...kernel import Kernel, LoweredCall, NodeCall, Operand, Packed, Stage
from ...portable.text import braces, shape_text
from ...portable.windows.conv import DeformedConv, NaiveConv, operands
from ...spec.conv import FLOATS, GRAIN_FLOPS, OPS, act_of, stem_of, strides_of_weight, supported
from ...spec.conv_shape import ConvShape, sizes
from ..abi import function
from ..matmul.gemm import lower_product
from ..tasks import LoopedTasks
from .depthwise import CpuDepthwise
from .grouped import grouped_tiling, lower_grouped
from .phases import Phase, phases, repeated_bias
from .pixels import PixelTiling, pack_stage, packed_filters, pixel_stage, pixel_tiling
from .pointwise import pixels_apart, pointwise
from .tiling import ConvTiling, tiling
from .windows import lower_windows, window_product

__all__ = ["KERNELS"]


_DTYPES = {
    "F32": DType.FLOAT32,
    "F64": DType.FLOAT64,
    "Bf16Pairs": DType.BFLOAT16,
    "Bf16Tiles": DType.BFLOAT16,
}
"""The dtype of packed filters, by the arithmetic of the kernel."""


def _filters(shape: ConvShape, dtype: DType, weight: TensorSpec) -> list[RecipeStep]:
    """Return steps from a node's filters to [groups, filters, channels, taps], except for the last reshape."""
    steps = [] if weight.dtype is dtype else [RecipeStep("cast", ("%in",), {"dtype": dtype.value})]
    if shape.transposed:  # [in, out / groups, taps]: the groups are along the input channels
        split = [shape.groups, shape.channels, shape.filters, shape.taps]
        steps.append(RecipeStep("reshape", (_last_step(steps),), {"shape": split}))
        steps.append(RecipeStep("permute", (_last_step(steps),), {"order": [0, 2, 1, 3]}))
    return steps


def _last_step(steps: Sequence[RecipeStep]) -> str:
    return f"%{len(steps) - 1}" if steps else "%in"


def _packed(shape: ConvShape, conv_tiling: ConvTiling, unpacked: Sequence[RecipeStep]) -> Packed:
    """Return the packing to [group, tile, depth, filter of the tile]. ``unpacked``: the steps to [groups, filters, channels, taps].

    For VDPBF16PS, pairs along the depth are innermost.
    """
    g, o, c, taps, tile = shape.groups, shape.filters, shape.channels, shape.taps, conv_tiling.tile
    dtype = _DTYPES[conv_tiling.arithmetic]
    steps = list(unpacked)

    def step(op: str, **attrs: object) -> None:
        steps.append(RecipeStep(op, (_last_step(steps),), attrs))

    step("reshape", shape=[g, o, c, taps])
    step("permute", order=[0, 1, 3, 2])
    step("reshape", shape=[g, o, taps * c])
    step("pad", begin=[0, 0, 0], end=[0, conv_tiling.tiles * tile - o, conv_tiling.depth - taps * c])
    word = 2 if dtype is DType.BFLOAT16 else 1
    step("reshape", shape=[g, conv_tiling.tiles, tile, conv_tiling.depth // word, word])
    step("permute", order=[0, 1, 3, 2, 4])
    return Packed(
        tuple(steps), TensorSpec((g, conv_tiling.tiles, conv_tiling.depth // word, tile, word), dtype)
    )


class GeneratedConv(Kernel):
    """Implicit GEMM for floats in every layout; contiguous channels (NHWC) are the fast case."""

    name: str = "conv/generated"
    ops: tuple[str, ...] = OPS

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return yes for floats of at most three spatial dims."""
        return supported(call, FLOATS)

    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Return one stage, or two if the filters are computed and packed at run time."""
        shape = ConvShape.of(call)
        dtype = call.outputs[0].dtype
        product = pointwise(call, shape, target)
        if product is not None:
            return lower_product(call, product, target, stem=stem_of("conv", shape))
        windows = window_product(call, shape)
        if windows is not None:
            return lower_windows(call, shape, windows, target)
        weight = call.tensor(1)
        split_phases = phases(call, shape)
        if split_phases is not None:
            return _lower_phases(call, shape, split_phases, target)
        by_groups = grouped_tiling(call, shape, dtype, target)
        if by_groups is not None:
            return lower_grouped(call, shape, by_groups, target)
        tile = tiling(shape, dtype, target)
        by_pixels = pixel_tiling(shape, dtype, target, tile)
        if by_pixels is not None:
            return _lower_pixels(call, shape, by_pixels)
        temps, stages, filters = [], [], "in1"
        if not weight.is_weight:
            filters = "temp0"
            pack, size = _pack_stage(
                shape, weight, tile, dtype, filters, 0, strides_of_weight(shape, weight.spec)
            )
            temps.append(size)
            stages.append(pack)
        stages.append(_product_stage(call, shape, tile, filters))
        unpacked = _filters(shape, _DTYPES[tile.arithmetic], weight.spec)
        weights = {1: _packed(shape, tile, unpacked)} if weight.is_weight else {}
        return LoweredCall(tuple(stages), tuple(temps), weights=weights, accumulates=_sums(dtype))


def _sums(dtype: DType) -> str:
    return "float64" if dtype is DType.FLOAT64 else "float32"


def _lower_pixels(call: NodeCall, shape: ConvShape, tile: PixelTiling) -> LoweredCall:
    """Return one stage whose vectors run along output positions, after one that packs the filters if they are computed."""
    dtype, weight = call.outputs[0].dtype, call.tensor(1)
    if weight.is_weight:
        packed = packed_filters(shape, tile, _filters(shape, tile.sums, weight.spec))
        stage = pixel_stage(call, shape, tile, "in1", "conv")
        return LoweredCall((stage,), weights={1: packed}, accumulates=_sums(dtype))
    pack, size = pack_stage(shape, weight, tile, dtype, "temp0", 0, strides_of_weight(shape, weight.spec))
    return LoweredCall(
        (pack, pixel_stage(call, shape, tile, "temp0", "conv")), (size,), accumulates=_sums(dtype)
    )


def _lower_phases(
    call: NodeCall, shape: ConvShape, split_phases: Sequence[Phase], target: CodegenTarget
) -> LoweredCall:
    """Return one stage per phase, each with its own filters. The first phase's filters replace a constant weight; computed ones are packed first."""
    if not call.tensor(1).is_weight:
        return _lower_computed_phases(call, shape, split_phases, target)
    dtype, weight = call.outputs[0].dtype, call.tensor(1).spec
    stages, weights, extra_weights = [], dict[int, Packed](), dict[str, tuple[int, Packed]]()
    for at, phase in enumerate(split_phases):
        tile = tiling(phase.shape, dtype, target)
        by_pixels = pixel_tiling(phase.shape, dtype, target, tile)
        filters = f"extra{at - 1}" if at else "in1"
        if by_pixels is None:
            packed = _packed(phase.shape, tile, phase.filters(shape, _DTYPES[tile.arithmetic], weight))
            stages.append(_product_stage(call, phase.shape, tile, filters, phase))
        else:
            packed = packed_filters(phase.shape, by_pixels, phase.filters(shape, by_pixels.sums, weight))
            stages.append(
                pixel_stage(call, phase.shape, by_pixels, filters, "transposed_conv", (phase.y, phase.r))
            )
        if at:
            extra_weights[filters] = (1, packed)
        else:
            weights[1] = packed
    bias = repeated_bias(call, split_phases)
    if bias is not None:
        weights[2] = bias
    return LoweredCall(tuple(stages), weights=weights, extra_weights=extra_weights, accumulates=_sums(dtype))


def _lower_computed_phases(
    call: NodeCall, shape: ConvShape, split_phases: Sequence[Phase], target: CodegenTarget
) -> LoweredCall:
    """Return two stages per phase: the first packs its filters."""
    dtype, weight = call.outputs[0].dtype, call.tensor(1)
    stages, temps = [], []
    for at, phase in enumerate(split_phases):
        tile = tiling(phase.shape, dtype, target)
        by_pixels = pixel_tiling(phase.shape, dtype, target, tile)
        filters, (first, strides) = f"temp{at}", phase.strides_of_filters(shape, weight.spec)
        if by_pixels is None:
            pack, size = _pack_stage(phase.shape, weight, tile, dtype, filters, first, strides)
            product = _product_stage(call, phase.shape, tile, filters, phase)
        else:
            pack, size = pack_stage(phase.shape, weight, by_pixels, dtype, filters, first, strides)
            product = pixel_stage(
                call, phase.shape, by_pixels, filters, "transposed_conv", (phase.y, phase.r)
            )
        stages += [pack, product]
        temps.append(size)
    return LoweredCall(tuple(stages), tuple(temps), accumulates=_sums(dtype))


def _product_stage(
    call: NodeCall, shape: ConvShape, tile: ConvTiling, filters: str, phase: Phase | None = None
) -> Stage:
    """Return the stage of a convolution, or of one phase of a transposed one, whose results are strided."""
    args, c = operands(call, filters)
    if phase is not None:
        c["y"] += f" + {phase.y}" if phase.y else ""
        c["residual"] += f" + {phase.r}" if phase.r and c["residual"] != "nullptr" else ""
    kind = f"conv::{tile.arithmetic}, {C_TYPES[call.outputs[0].dtype]}, act::{act_of(call)}, {tile.pixels}, {tile.vectors}"
    pixel_bytes = pixels_apart(shape, tile, call.outputs[0].dtype)
    run = f"run<{kind}{f', {pixel_bytes}' if pixel_bytes else ''}>(shape, blocks"
    if tile.arithmetic == "Bf16Tiles":
        run = f"run_tiles<act::{act_of(call)}>(shape, blocks"
    elif tile.lines[0]:
        step = shape.stride[2] * shape.channels * tile.row_bytes
        run = f"run_lines<{kind}, {step}>(shape, blocks, {', '.join(map(str, tile.lines))}"
    if tile.windows:
        _, _, pitch, _, _ = tile.windows
        apart = shape.stride[2] * (pitch if tile.windows[0] else shape.x[4]) * tile.row_bytes
        vectors = f"VectorWindows<conv::{tile.arithmetic}, {tile.pixels}, {tile.vectors}, {apart}>"
        multiply = "TileWindows" if tile.arithmetic == "Bf16Tiles" else vectors
        lines = f"conv::Lines{braces(tile.windows)}"
        run = f"run_windows<conv::{multiply}, {C_TYPES[call.outputs[0].dtype]}, act::{act_of(call)}>(shape, blocks, {lines}"
    body = (
        f"  static const conv::Shape shape = {shape_text(shape)};\n"
        f"  static const conv::Blocks blocks = {tile.text()};\n"
        f"  conv::{run}, {c['x']}, {c['filters']}, {c['bias']}, {c['residual']}, {c['y']},\n"
        f"      begin, end, scratch);"
    )
    tasks = shape.groups * tile.blocks * tile.tiles
    flops = shape.flops(2)
    prefix = "conv" if phase is None and not shape.transposed else "transposed_conv"
    return Stage(
        stem=stem_of(prefix, shape),
        source=function(body, shape.about(call)),
        args=args,
        tasks=tasks if shape.pixels and shape.filters else 1,
        grain=max(1, GRAIN_FLOPS * tasks // max(flops, 1)),
        scratch_bytes=tile.scratch_bytes,
        parts=_parts(tile),
        flops=flops,
        bytes=shape.bytes(call),
    )


def _parts(tile: ConvTiling) -> frozenset[str]:
    return frozenset({"conv_amx" if tile.arithmetic == "Bf16Tiles" else "conv"})


def _pack_stage(
    shape: ConvShape,
    weight: Operand,
    tile: ConvTiling,
    dtype: DType,
    to: str,
    first: int,
    strides: Sequence[int],
) -> tuple[Stage, int]:
    """Return the stage that packs computed filters to a workspace, and the bytes of its result. ``first``, ``strides``: where the weight has them."""
    body = (
        f"  static const conv::Shape shape = {shape_text(shape)};\n"
        f"  static const conv::Blocks blocks = {tile.text()};\n"
        f"  static const int64_t strides[6] = {braces(strides)};\n"
        f"  conv::pack<conv::{tile.arithmetic}, {C_TYPES[dtype]}, {tile.vectors}>(shape, blocks, (const {C_TYPES[dtype]} *)args[0] + {first},\n"
        f"      strides, (conv::{tile.arithmetic}::row *)args[1], begin, end);"
    )
    stage = Stage(
        stem="pack_filters",
        source=function(body, "filters that are computed, as the product reads them"),
        args=("in1", to),
        tasks=shape.groups * tile.tiles,
        parts=_parts(tile),
        bytes=2 * math.prod(sizes(weight.spec)) * dtype.bits // 8,
    )
    return stage, shape.groups * tile.tiles * tile.depth * tile.tile * tile.row_bytes


KERNELS: tuple[Kernel, ...] = (
    CpuDepthwise(),
    GeneratedConv(),
    LoopedTasks(NaiveConv()),
    LoopedTasks(DeformedConv()),
)
