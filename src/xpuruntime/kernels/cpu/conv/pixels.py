"""Convolutions with few filters, whose vectors run along output positions (``templates/conv_pixels.h``).

The register tiles of ``conv/generated`` hold vectors of filters, which are almost empty for one or two filters. Here a register tile is a few filters
by vectors of adjacent output positions of a row. ``pixel_tiling`` estimates the cycles of both forms and returns None where this one is not faster.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ....codegen.c_types import C_TYPES
from ....codegen.cpp.isa import IsaLevel
from ....codegen.target import CodegenTarget
from ....program.program import RecipeStep
from ....types import DType, TensorSpec
from ...kernel import NodeCall, Operand, Packed, Stage
from ...portable.text import braces, shape_text
from ...portable.windows.conv import operands
from ...spec.conv import GRAIN_FLOPS, act_of, stem_of
from ...spec.conv_shape import TASKS, ConvShape, sizes
from ..abi import function, isa_of
from ..matmul.gemm_tiling import registers
from .tiling import ConvTiling

__all__ = ["PixelTiling", "pack_stage", "packed_filters", "pixel_stage", "pixel_tiling"]

_MAX_VECTORS = 8
"""Maximum vectors, and maximum filters, of a register tile."""

_FEW_FILTERS = 16
"""Maximum filters of a group. More of them fill the vectors of the other form."""

_CHUNK_PRODUCTS = 192
"""Products of a sum that is accumulated in registers, as in the other form (768 bytes of float32)."""

_LINE_BYTES = 128 * 1024
"""Maximum bytes of copied lines: an eighth of the L2 cache of current server cores."""

_MAX_COLUMNS, _MAX_ROWS = 512, 4
"""Maximum output positions of a task along a row, and its maximum rows. Rows share copied lines."""

_MAX_TIME = 0.8
"""Maximum estimated time, relative to the other form, at which this one is chosen. The estimates are that uncertain (docs/development/kernel-notes.md)."""

# Estimated cycles (docs/development/kernel-notes.md): of a dependent FMA, of the rest of a tap's loop, to copy an element of a run, to
# transpose an element of adjacent channels, to copy an element alone, and to store a result alone.
_FMA_LATENCY, _TAP_OVERHEAD = 4, 0.5
_COPY_RUN, _COPY_TRANSPOSED, _STORE_APART = 0.2, 1.5, 1.0
_COPY_APART = {DType.FLOAT32: 2.0, DType.FLOAT64: 2.0, DType.FLOAT16: 3.0, DType.BFLOAT16: 1.0}


@dataclass(frozen=True, slots=True)
class PixelTiling:
    """The tiling of a convolution by output positions.

    sums:     dtype of sums and of packed filters.
    filters, vectors: the register tile, in filters by vectors of positions.
    tiles:    tiles of filters of a group.
    rows, columns: output positions of a task; ``down`` x ``across`` tasks are a plane.
    channels: channels of a chunk.
    lines, length, pitch: copied lines of a plane of the kernel, elements of each, and elements between the lines of two channels.
    """

    sums: DType
    filters: int
    vectors: int
    tiles: int
    rows: int
    columns: int
    down: int
    across: int
    channels: int
    lines: int
    length: int
    pitch: int

    def text(self) -> str:
        """Return an initializer of ``pixels::Blocks``."""
        return braces(
            (
                self.rows, self.columns, self.down, self.across, self.tiles, self.channels,
                self.lines, self.length, self.pitch,
            )
        )  # fmt: skip


def pixel_tiling(
    shape: ConvShape, dtype: DType, target: CodegenTarget, other: ConvTiling
) -> PixelTiling | None:
    """Return the tiling, or None where the estimated time is not below that of ``other``, or windows are a stride apart along the row.

    Few filters of a row-major operand need no estimate: pass ``layout`` made no channels-last copy for them.
    """
    isa = isa_of(target)
    if not shape.pixels or not shape.channels or not all(shape.size) or not 0 < shape.filters <= _FEW_FILTERS:
        return None
    if shape.transposed or shape.stride[2] != 1 or other.arithmetic == "Bf16Tiles":
        return None
    sums = DType.FLOAT64 if dtype is DType.FLOAT64 else DType.FLOAT32
    lanes = isa.lanes(sums.bits // 8)
    width = shape.out[2]
    tiles = -(-shape.filters // _max_filters(isa))
    filters = -(-shape.filters // tiles)
    vectors = min(
        range(1, _max_vectors(isa, filters) + 1),
        key=lambda v: (-(-width // (v * lanes)) * _tile_cycles(isa, filters, v), v),
    )
    tile = vectors * lanes
    rows = min(_MAX_ROWS, shape.out[1])
    planes = shape.groups * shape.images * shape.out[0]
    while rows > 1 and planes * -(-shape.out[1] // rows) * -(-width // tile) < TASKS:
        rows -= 1
    down = -(-shape.out[1] // rows)
    across = max(-(-width // _MAX_COLUMNS), min(-(-TASKS // (planes * down)), -(-width // tile)))
    columns = -(-width // (across * tile)) * tile
    row_major = (
        shape.x[4] == 1 != shape.x[1] and shape.groups == 1 and shape.filters <= target.row_major_filters
    )
    cycles = _cycles(shape, dtype, isa, (tiles, filters, vectors), rows)
    if not row_major and cycles > _MAX_TIME * _other_cycles(shape, dtype, isa, other):
        return None
    lines = (rows - 1) * shape.stride[1] + (shape.kernel[1] - 1) * shape.dilation[1] + 1
    length = columns + (shape.kernel[2] - 1) * shape.dilation[2]
    line = 512 // sums.bits
    # An odd number of cache lines: channels map to different cache sets.
    pitch = (-(-shape.kernel[0] * lines * length // line) | 1) * line
    channels = max(1, min(_CHUNK_PRODUCTS // shape.taps, _LINE_BYTES // (pitch * sums.bits // 8)))
    channels = -(-shape.channels // -(-shape.channels // channels))
    return PixelTiling(
        sums, filters, vectors, tiles, rows, columns, down, -(-width // columns), channels, lines, length, pitch,
    )  # fmt: skip


def pixel_stage(
    call: NodeCall,
    shape: ConvShape,
    tile: PixelTiling,
    filters: str,
    prefix: str,
    offsets: tuple[int, int] = (0, 0),
) -> Stage:
    """Return the stage of a convolution, or of one phase of a transposed one, whose results and residuals begin at ``offsets``."""
    args, c = operands(call, filters)
    y, r = offsets
    c["y"] += f" + {y}" if y else ""
    c["residual"] += f" + {r}" if r and c["residual"] != "nullptr" else ""
    kind = f"{C_TYPES[call.outputs[0].dtype]}, act::{act_of(call)}, {tile.filters}, {tile.vectors}"
    body = (
        f"  static const conv::Shape shape = {shape_text(shape)};\n"
        f"  static const pixels::Blocks blocks = {tile.text()};\n"
        f"  pixels::run<{kind}>(shape, blocks, {c['x']}, {c['filters']}, {c['bias']}, {c['residual']}, {c['y']},\n"
        f"      begin, end, scratch);"
    )
    tasks = shape.groups * shape.images * shape.out[0] * tile.down * tile.across
    flops = shape.flops(2)
    elements = tile.channels * tile.pitch + tile.rows * tile.tiles * tile.filters * tile.columns
    return Stage(
        stem=stem_of(prefix, shape),
        source=function(body, shape.about(call)),
        args=args,
        tasks=tasks,
        grain=max(1, GRAIN_FLOPS * tasks // max(flops, 1)),
        scratch_bytes=elements * tile.sums.bits // 8 + 64,
        parts=frozenset({"conv_pixels"}),
        flops=flops,
        bytes=shape.bytes(call),
    )


def packed_filters(shape: ConvShape, tile: PixelTiling, unpacked: list[RecipeStep]) -> Packed:
    """Return the packing to [group, tile, depth, filter of the tile]. ``unpacked``: the steps to [groups, filters, channels, taps]."""
    depth = shape.channels * shape.taps
    steps = list(unpacked)

    def step(op: str, **attrs: object) -> None:
        steps.append(RecipeStep(op, (f"%{len(steps) - 1}" if steps else "%in",), attrs))

    step("reshape", shape=[shape.groups, shape.filters, depth])
    step("pad", begin=[0, 0, 0], end=[0, tile.tiles * tile.filters - shape.filters, 0])
    step("reshape", shape=[shape.groups, tile.tiles, tile.filters, depth])
    step("permute", order=[0, 1, 3, 2])
    return Packed(tuple(steps), TensorSpec((shape.groups, tile.tiles, depth, tile.filters), tile.sums))


def pack_stage(
    shape: ConvShape,
    weight: Operand,
    tile: PixelTiling,
    dtype: DType,
    to: str,
    first: int,
    strides: Sequence[int],
) -> tuple[Stage, int]:
    """Return the stage that packs computed filters to a workspace, and the bytes of its result. ``first``, ``strides``: where the weight has them."""
    body = (
        f"  static const conv::Shape shape = {shape_text(shape)};\n"
        f"  static const int64_t strides[6] = {braces(strides)};\n"
        f"  pixels::pack<{C_TYPES[dtype]}, {tile.filters}>(shape, {tile.tiles}, (const {C_TYPES[dtype]} *)args[0] + {first}, strides,\n"
        f"      ({C_TYPES[tile.sums]} *)args[1], begin, end);"
    )
    stage = Stage(
        stem="pack_filters",
        source=function(body, "filters that are computed, as the product reads them"),
        args=("in1", to),
        tasks=shape.groups * tile.tiles,
        parts=frozenset({"conv_pixels"}),
        bytes=2 * math.prod(sizes(weight.spec)) * dtype.bits // 8,
    )
    filters = shape.groups * tile.tiles * tile.filters
    return stage, filters * shape.channels * shape.taps * tile.sums.bits // 8


def _max_filters(isa: IsaLevel) -> int:
    """Return the maximum filters of a register tile, which leaves registers for two vectors of positions each."""
    return min(_MAX_VECTORS, registers(isa) // 4)


def _max_vectors(isa: IsaLevel, filters: int) -> int:
    """Return the vectors of positions with which the sums, the positions, a tap and a product fit in registers."""
    return max(1, min(_MAX_VECTORS, (registers(isa) - 2) // (filters + 1 if filters > 1 else 1)))


def _fma_cycles(isa: IsaLevel) -> float:
    """Return the cycles of a multiplication and an addition of vectors: two FMAs per cycle, or one product and one sum."""
    return 0.5 if "fma" in isa.features or isa.architecture == "aarch64" else 1.0


def _tile_cycles(isa: IsaLevel, filters: int, vectors: int) -> float:
    """Return the estimated cycles of a tap and a channel of a register tile. Each sum waits for the one before.

    There are two loads per cycle. A vector that crosses a cache line counts as two.
    """
    loads = filters + vectors * (1 + isa.vector_bytes / 64)
    return max(filters * vectors * _fma_cycles(isa), loads / 2, _FMA_LATENCY) + _TAP_OVERHEAD


def _cycles(shape: ConvShape, dtype: DType, isa: IsaLevel, tile: tuple[int, int, int], rows: int) -> float:
    """Return the estimated cycles of a channel over a row of output positions. tile: tiles, filters and vectors."""
    tiles, filters, vectors = tile
    width, bits = shape.out[2], max(dtype.bits, 32)
    lanes = isa.lanes(bits // 8)
    cycles = tiles * shape.taps * -(-width // (vectors * lanes)) * _tile_cycles(isa, filters, vectors)
    copied = (
        shape.kernel[0]
        * ((rows - 1) * shape.stride[1] + shape.kernel[1])
        / rows
        * (width + shape.kernel[2] - 1)
    )
    if shape.x[4] == 1:
        cycles += 0 if dtype.bits == bits else copied * _COPY_RUN
    else:
        transposed = dtype.bits == bits and shape.x[1] == 1 and lanes >= 8
        cycles += copied * (_COPY_TRANSPOSED if transposed else _COPY_APART[dtype])
    return cycles + (width * shape.filters * _STORE_APART / shape.channels if shape.y[4] != 1 else 0)


def _other_cycles(shape: ConvShape, dtype: DType, isa: IsaLevel, other: ConvTiling) -> float:
    """Return the same estimate for vectors of filters: a multiplication of one value, or of a pair of bfloat16 values, and gathered rows."""
    width = shape.out[2]
    words = 2 if other.arithmetic == "Bf16Pairs" else 1
    cycles = width * shape.taps * other.tiles * other.vectors * _fma_cycles(isa) / words
    if other.lines[0] or other.windows or (shape.taps == 1 and shape.x[1] == 1):
        return cycles
    gather = _COPY_RUN / words if shape.x[1] == 1 else _COPY_APART[dtype]
    return cycles + width * shape.taps * gather
