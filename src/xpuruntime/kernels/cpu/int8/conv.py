"""``conv/int8``: convolutions of 8-bit codes as products of gathered rows and packed filters (``templates/int8.h``).

1x1 convolutions of channels-last input read their rows in place.
"""

from __future__ import annotations

import math

from ....codegen.target import CodegenTarget
from ....decisions import Reason, Support
from ....program.program import RecipeStep
from ...kernel import Kernel, LoweredCall, NodeCall, Stage
from ...portable.text import shape_text
from ...spec.conv import stem_of
from ...spec.conv_shape import ConvShape
from ...spec.product import even_stride
from ..abi import function, isa_of
from .depthwise import depthwise_stage, is_depthwise
from .text import Int8Arguments, codes_only, config, loop, panels, scratch_bytes
from .tiling import Int8Tiling, int8_tiling

__all__ = ["KERNELS", "Int8Conv"]

_GRAIN_OPS = 1 << 22
"""Minimum operations per thread: some microseconds."""


class Int8Conv(Kernel):
    """Convolutions of codes with exact sums; scales, bias, activation and quantizing are fused."""

    name = "conv/int8"
    ops = ("quantized_convolution",)

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return yes for 8-bit codes, constant filters, and at most three spatial dims."""
        if not call.tensor(1).is_weight:
            return Support.no(Reason.SHAPE_UNSUPPORTED, "the filters must be constant")
        if call.tensor(0).spec.rank > 5:
            return Support.no(
                Reason.SHAPE_UNSUPPORTED,
                f"{call.tensor(0).spec.rank - 2} spatial dims; at most 3 are supported",
            )
        return codes_only(call)

    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Return one stage."""
        shape, isa = ConvShape.of(call), isa_of(target)
        if not shape.pixels * shape.filters:
            return LoweredCall((), accumulates="int32")
        if is_depthwise(call, shape):
            return depthwise_stage(call, shape, target)
        weight, depth = call.tensor(1).spec, shape.taps * shape.channels
        t = int8_tiling(
            isa, shape.pixels, shape.filters, depth, shape.groups, by_bytes=weight.dtype.bits == 8
        )
        a = Int8Arguments(call, isa, t)
        first = (
            RecipeStep(
                "reshape", ("%in",), {"shape": [shape.groups, shape.filters, shape.channels, shape.taps]}
            ),
            RecipeStep("permute", ("%0",), {"order": [0, 1, 3, 2]}),
            RecipeStep("reshape", ("%1",), {"shape": [shape.groups, shape.filters, depth]}),
        )
        packed, sums = panels(t, first, shape.groups, shape.filters, depth)
        extra = {"extra0": (1, sums)} if t.arithmetic == "Bytes" else {}
        stage = _stage(call, shape, t, a)
        return LoweredCall((stage,), weights={1: packed}, extra_weights=extra, accumulates="int32")


def _in_place(shape: ConvShape, t: Int8Tiling) -> int:
    """Return the stride in bytes from pixel to pixel if the channels of each one are a row of the product in memory, else 0: rows are gathered."""
    ones = (1, 1, 1)
    if t.arithmetic != "Bytes" or shape.kernel != ones or shape.stride != ones or any(shape.begin):
        return 0
    if shape.size != shape.out or shape.x[1] != 1 or shape.channels != t.words * t.word:
        return 0
    return even_stride((shape.images, *shape.out), (shape.x[0], *shape.x[2:])) or (
        shape.channels if shape.pixels == 1 else 0
    )


def _stage(call: NodeCall, shape: ConvShape, t: Int8Tiling, a: Int8Arguments) -> Stage:
    tiles, blocks = math.ceil(shape.filters / t.columns), math.ceil(shape.pixels / t.block)
    struct, parts = config(call, t)
    pixel_stride = _in_place(shape, t)
    pairs = t.arithmetic == "Pairs"
    row = "int16_t" if pairs else "uint8_t"
    y_stride = even_stride((shape.images, *shape.out), (shape.y[0], *shape.y[2:]))
    lines = [
        f"static const conv::Shape shape = {shape_text(shape)};",
        *a.lines,
        "int32_t *sums = (int32_t *)scratch;",
        *(["Tiles tiles;"] if t.tiles else []),
        "int8::Columns<KERNEL_product> values;",
    ]
    if not pixel_stride:
        lines.append(f"{row} *rows = ({row} *)((char *)scratch + {4 * t.rows * t.columns});")
        lines.append("int64_t copied = -1;")
    if y_stride is None:
        lines.append(
            f"int64_t *places = (int64_t *)((char *)scratch + {scratch_bytes(t, not pixel_stride)});"
        )
    lines += [
        "for (int64_t task = begin; task < end; task++) {",
        f"    const int64_t tile = task % {tiles}, block = task / {tiles} % {blocks}, group = task / {tiles * blocks};",
        f"    const int64_t pixel = block * {t.block}, count = {shape.pixels} - pixel < {t.block} ? {shape.pixels} - pixel : {t.block};",
        f"    const int64_t column = tile * {t.columns}, columns = {shape.filters} - column < {t.columns} ? {shape.filters} - column : {t.columns};",
        f"    const auto *panel = b + (group * {tiles} + tile) * {t.words * t.columns * t.word};",
        f"    const auto *from = x + group * {shape.channels * shape.x[1]};",
    ]
    if pixel_stride:
        address, pitch = f"(const char *)from + pixel * {pixel_stride}", str(pixel_stride)
    else:
        address, pitch = "(const char *)rows", str(t.pitch)
        lines += [
            f"    if (copied != task / {tiles}) {{",
            f"        copied = task / {tiles};",
            f"        int8::gather<int8::{t.arithmetic}>(shape, from, zero, pixel, count, {t.words * t.word}, rows, {t.pitch // (2 if pairs else 1)});",
            "    }",
        ]
    offset = f"(pixel + r + i) * {y_stride}"
    if y_stride is None:
        lines += [
            "    conv::Pixel at(shape, pixel);",
            "    for (int64_t i = 0; i < count; i++, at.next(shape)) places[i] = at.offset(shape.y);",
        ]
        offset = "places[r + i]"
    y = f"y + {offset} + (group * {shape.filters} + column) * {shape.y[1]}"
    first = f"group * {shape.filters} + column"
    lines += [
        f"    {line}" for line in loop(t, a, address, pitch, y, str(shape.y[1]), first, "columns", first)
    ]
    lines.append("}")
    tasks = shape.groups * blocks * tiles
    operations = shape.flops(2)
    return Stage(
        stem=stem_of("conv_int8_", shape),
        source="\n".join(struct)
        + "\n"
        + function("\n".join(f"  {line}" for line in lines), shape.about(call)),
        args=tuple(a.args),
        tasks=tasks,
        grain=max(1, _GRAIN_OPS * tasks // max(operations, 1)),
        scratch_bytes=scratch_bytes(t, not pixel_stride) + (8 * t.block + 64 if y_stride is None else 0),
        parts=frozenset({"int8"}) | parts,
        flops=operations,
        bytes=shape.bytes(call),
    )


KERNELS: tuple[Kernel, ...] = (Int8Conv(),)
