"""Convolutions on CPUs: any rank to 3, stride, padding, dilation, grouping and layout, plain, transposed and fused.

``conv/generated`` is a product of gathered pixels with packed filters (``templates/conv.h``), ``conv/depthwise`` a product along
channels, ``conv/naive`` the sum as it is written, for integers, ``conv/deformed`` reads where it is told. Weights that are known are packed when they are loaded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..codegen.isa import IsaLevel
from ..codegen.target import CodegenTarget
from ..decisions import Reason, Support
from ..program.program import RecipeStep
from ..types import DType, TensorSpec
from .conv_shape import C_TYPES, ConvShape, braces, function, sizes, strides_of
from .kernel import Kernel, Lowered, NodeCall, Operand, Packed, Stage, operand_ref

__all__ = ["KERNELS"]

_OPS = ("convolution", "fused_convolution")
_FLOATS = (DType.FLOAT32, DType.FLOAT64, DType.FLOAT16, DType.BFLOAT16)

_CHUNK_BYTES = 768
"""Bytes of a gathered row (``CHUNK_BYTES`` of conv.h): 14 rows and a tile of 32 float32 filters take 36 KiB of the first cache."""

_SUMS_BYTES = 256 * 1024
"""Bytes of sums that wait in scratch: a quarter of the second-level cache of current server cores."""

_FEW = 4
"""Up to so many channels a row of taps is so short that gathering it takes as long as the product."""

_TASKS = 16
"""Tasks to have at least, where pixels allow it."""

_GRAIN_FLOPS = 1 << 21
"""Work that is worth a thread of its own: about ten microseconds."""

# How much longer a tile of so many vectors takes per product, as measured (AMD Zen 5, all pixels in the first cache).
_TILE_COST = {1: 1.10, 2: 1.0, 3: 1.005, 4: 1.01}


@dataclass(frozen=True, slots=True)
class Tiling:
    """How a convolution is cut: ``pixels`` x ``vectors`` of sums in registers, tiles of ``tile`` filters, blocks of ``block`` pixels.

    lines: for few channels: how many lines of input a block meets (``block`` counts rows of pixels then), and elements of each.
    """

    math: str
    lanes: int
    pixels: int
    vectors: int
    depth: int
    block: int
    blocks: int
    tiles: int
    together: int
    lines: tuple[int, int] = (0, 0)

    @property
    def tile(self) -> int:
        """Filters of a tile."""
        return self.vectors * self.lanes

    @property
    def row_bytes(self) -> int:
        """Bytes of an element of gathered rows and packed filters."""
        return {"F32": 4, "F64": 8, "Bf16Pairs": 2}[self.math]

    @property
    def scratch_bytes(self) -> int:
        """What ``conv::run`` takes: rows, sums, biases, two offsets for each pixel. Or ``run_lines``, with lines in place of rows."""
        if self.lines[0]:
            count, length = self.lines
            sums = (self.pixels + self.tiles) * self.tile
            return (count * length + sums) * self.row_bytes + 16 * self.block * length + 64
        whole = -(-self.block // self.pixels) * self.pixels
        once = self.depth * self.row_bytes <= _CHUNK_BYTES
        sums = (self.pixels if once else self.together * whole) + self.together
        return whole * (_CHUNK_BYTES + 64) + sums * self.tile * max(self.row_bytes, 4) + 16 * self.block + 64

    def text(self) -> str:
        """As an initialiser of ``conv::Blocks``."""
        return f"{{{self.depth}, {self.block}, {self.blocks}, {self.tiles}, {self.together}}}"


def tiling(shape: ConvShape, dtype: DType, target: CodegenTarget) -> Tiling:
    """The cheapest cut by a small model: padded products first, then enough tasks, then what the second-level cache holds.

    ``channel_tile`` bounds the filters of a tile, ``max_threadgroup_3d_xy`` x ``_3d_z`` the pixels of a block.
    """
    isa: IsaLevel = target.isa  # type: ignore[attr-defined]
    config = target.config
    by_lines = _by_lines(shape)
    pairs = not by_lines and dtype is DType.BFLOAT16 and "avx512bf16" in isa.features
    kind = "Bf16Pairs" if pairs else "F64" if dtype is DType.FLOAT64 else "F32"
    lanes = isa.lanes(8 if kind == "F64" else 4)
    sums = 28 if isa.vector_bytes == 64 or isa.architecture == "aarch64" else 12  # registers less operands
    groups, filters = shape.groups, shape.filters
    vectors = min(
        range(1, max(1, min(config.channel_tile // lanes, max(_TILE_COST))) + 1),
        key=lambda v: (-(-filters // (v * lanes)) * v * _TILE_COST[v], abs(v - 2)),
    )
    tiles = max(1, -(-filters // (vectors * lanes)))
    most = sums // vectors
    if by_lines:
        return _line_tiling(shape, kind, lanes, vectors, most, tiles, config.max_threadgroup_3d_z)
    total = max(1, shape.pixels)
    cap = max(1, config.max_threadgroup_3d_xy * config.max_threadgroup_3d_z)
    blocks = -(-total // cap)
    while groups * tiles * blocks < _TASKS and -(-total // blocks) > 2 * most:
        blocks += 1
    block = -(-total // blocks)
    pixels = min(range(most, max(1, most // 2) - 1, -1), key=lambda p: -(-block // p) * (p + 0.25))
    block = min(-(-block // pixels) * pixels, max(total, 1))
    blocks = -(-total // block)
    depth = shape.taps * shape.channels
    depth += depth % 2 if pairs else 0
    row = 2 if pairs else 8 if kind == "F64" else 4
    whole = -(-block // pixels) * pixels
    fits = max(1, _SUMS_BYTES // (whole * vectors * isa.vector_bytes))
    together = tiles if depth * row <= _CHUNK_BYTES else min(tiles, fits)
    return Tiling(kind, lanes, pixels, vectors, depth, block, blocks, tiles, together)


def _by_lines(shape: ConvShape) -> bool:
    """Whether lines of input serve better than gathered rows: few channels side by side, one plane, no gaps between taps."""
    plain = (
        shape.groups == 1
        and not shape.transposed
        and shape.dilation[2] == 1
        and shape.kernel[0] == shape.size[0] == 1
    )
    beside = shape.x[1] == 1 and shape.x[4] == shape.channels and shape.begin[0] == 0
    return plain and beside and 0 < shape.channels <= _FEW and shape.kernel[2] > 1 and shape.stride[2] <= _FEW


def _line_tiling(
    shape: ConvShape, kind: str, lanes: int, vectors: int, most: int, tiles: int, rows: int
) -> Tiling:
    """Blocks of ``rows`` rows of pixels, fewer where tasks would be few; tiles of pixels never go beyond a row."""
    high, width = shape.out[1], max(shape.out[2], 1)
    rows = max(1, min(rows, high, shape.images * high * tiles // _TASKS))
    pixels = min(range(most, max(1, most // 2) - 1, -1), key=lambda p: -(-width // p) * (p + 0.25))
    count = (rows - 1) * shape.stride[1] + (shape.kernel[1] - 1) * shape.dilation[1] + 1
    reach = (-(-width // pixels) * pixels - 1) * shape.stride[2] + shape.kernel[2]
    length = -(-reach * shape.channels // 16) * 16
    blocks = max(1, shape.images * -(-high // rows))
    depth = shape.taps * shape.channels
    return Tiling(kind, lanes, pixels, vectors, depth, rows, blocks, tiles, tiles, (count, length))


def _packed(shape: ConvShape, weight: TensorSpec, cut: Tiling) -> Packed:
    """Filters as [group, tile, depth, filter of the tile]; pairs of the depth innermost for VDPBF16PS."""
    g, o, c, taps, tile = shape.groups, shape.filters, shape.channels, shape.taps, cut.tile
    dtype = {"F32": DType.FLOAT32, "F64": DType.FLOAT64, "Bf16Pairs": DType.BFLOAT16}[cut.math]
    steps: list[RecipeStep] = []

    def step(op: str, **attrs: object) -> None:
        steps.append(RecipeStep(op, (f"%{len(steps) - 1}" if steps else "%in",), attrs))

    if weight.dtype is not dtype:
        step("cast", dtype=dtype.value)
    if shape.transposed:  # [in, out / groups, taps] counts groups along its inputs
        step("reshape", shape=[g, c, o, taps])
        step("permute", order=[0, 2, 1, 3])
    else:
        step("reshape", shape=[g, o, c, taps])
    step("permute", order=[0, 1, 3, 2])
    step("reshape", shape=[g, o, taps * c])
    step("pad", begin=[0, 0, 0], end=[0, cut.tiles * tile - o, cut.depth - taps * c])
    word = 2 if cut.math == "Bf16Pairs" else 1
    step("reshape", shape=[g, cut.tiles, tile, cut.depth // word, word])
    step("permute", order=[0, 1, 3, 2, 4])
    return Packed(tuple(steps), TensorSpec((g, cut.tiles, cut.depth // word, tile, word), dtype))


def _strides_of_weight(shape: ConvShape, weight: TensorSpec) -> tuple[int, ...]:
    """Strides of filter, channel, the kernel's three dims, and from group to group."""
    steps = weight.physical.strides
    space = (0,) * (5 - len(steps)) + steps[2:]
    if shape.transposed:
        return (steps[1], steps[0], *space, shape.channels * steps[0])
    return (steps[0], steps[1], *space, shape.filters * steps[0])


class Generated:
    """Implicit GEMM for floats; every layout, the channels of one pixel side by side being the fast one."""

    name: str = "conv/generated"
    ops: tuple[str, ...] = _OPS

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Floats of up to three space dims."""
        return _supported(call, _FLOATS)

    def lower(self, call: NodeCall, target: CodegenTarget) -> Lowered:
        """One stage; one before it where weights are computed."""
        shape = ConvShape.of(call)
        dtype = call.outputs[0].dtype
        cut = tiling(shape, dtype, target)
        weight = call.tensor(1)
        temps, stages, filters = [], [], "in1"
        if not weight.is_weight:
            filters = "temp0"
            temps.append(shape.groups * cut.tiles * cut.depth * cut.tile * cut.row_bytes)
            stages.append(_pack_stage(shape, weight, cut, dtype))
        stages.append(_product_stage(call, shape, cut, filters))
        weights = {1: _packed(shape, weight.spec, cut)} if weight.is_weight else {}
        return Lowered(
            tuple(stages),
            tuple(temps),
            weights,
            accumulates="float64" if dtype is DType.FLOAT64 else "float32",
        )


def _supported(call: NodeCall, dtypes: Sequence[DType]) -> Support:
    spec = call.tensor(0).spec
    if spec.dtype not in dtypes:
        return Support.no(Reason.DTYPE_UNSUPPORTED, f"it does not compute in {spec.dtype.value}")
    if spec.rank > 5:
        return Support.no(Reason.SHAPE_UNSUPPORTED, f"{spec.rank - 2} space dims; it has at most 3")
    return Support.yes()


def stem_of(word: str, shape: ConvShape) -> str:
    """``conv3x3_64x128``: what a convolution is called."""
    kernel = "x".join(str(k) for k in shape.kernel[-min(shape.rank, 3) :])
    return f"{word}{kernel}_{shape.channels * shape.groups}x{shape.filters * shape.groups}"


def operands(call: NodeCall, filters: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """The stage's arguments in order, and the C text of x, filters, bias, residual and y."""
    dtype = C_TYPES[call.outputs[0].dtype]
    args, texts = ["in0", filters], {"bias": "nullptr", "residual": "nullptr"}
    for at, name in ((2, "bias"), (3, "residual")):
        if call.optional(at) is not None:
            texts[name] = f"(const {dtype} *)args[{len(args)}]"
            args.append(operand_ref("in", at))
    texts |= {"x": f"(const {dtype} *)args[0]", "filters": "args[1]", "y": f"({dtype} *)args[{len(args)}]"}
    return (*args, "out0"), texts


def act_of(call: NodeCall) -> str:
    """The activation, ``none`` for a plain convolution."""
    return str(call.attrs["act"]) if call.op == "fused_convolution" else "none"


def _product_stage(call: NodeCall, shape: ConvShape, cut: Tiling, filters: str) -> Stage:
    args, c = operands(call, filters)
    kind = f"conv::{cut.math}, {C_TYPES[call.outputs[0].dtype]}, act::{act_of(call)}, {cut.pixels}, {cut.vectors}"
    run = f"run<{kind}>(shape, blocks"
    if cut.lines[0]:
        step = shape.stride[2] * shape.channels * cut.row_bytes
        run = f"run_lines<{kind}, {step}>(shape, blocks, {cut.lines[0]}, {cut.lines[1]}"
    body = (
        f"  static const conv::Shape shape = {shape.text()};\n"
        f"  static const conv::Blocks blocks = {cut.text()};\n"
        f"  conv::{run}, {c['x']}, {c['filters']}, {c['bias']}, {c['residual']}, {c['y']},\n"
        f"      begin, end, scratch);"
    )
    tasks = shape.groups * cut.blocks * cut.tiles
    flops = shape.flops(2)
    return Stage(
        stem=stem_of("transposed_conv" if shape.transposed else "conv", shape),
        source=function(body, shape.about(call)),
        args=args,
        tasks=tasks if shape.pixels and shape.filters else 1,
        grain=max(1, _GRAIN_FLOPS * tasks // max(flops, 1)),
        scratch_bytes=cut.scratch_bytes,
        parts=frozenset({"conv"}),
        flops=flops,
        bytes=shape.bytes(call),
    )


def _pack_stage(shape: ConvShape, weight: Operand, cut: Tiling, dtype: DType) -> Stage:
    body = (
        f"  static const conv::Shape shape = {shape.text()};\n"
        f"  static const conv::Blocks blocks = {cut.text()};\n"
        f"  static const int64_t strides[6] = {braces(_strides_of_weight(shape, weight.spec))};\n"
        f"  conv::pack<conv::{cut.math}, {C_TYPES[dtype]}, {cut.vectors}>(shape, blocks, (const {C_TYPES[dtype]} *)args[0],\n"
        f"      strides, (conv::{cut.math}::row *)args[1], begin, end);"
    )
    size = math.prod(sizes(weight.spec))
    return Stage(
        stem="pack_filters",
        source=function(body, "filters that are computed, as the product reads them"),
        args=("in1", "temp0"),
        tasks=shape.groups * cut.tiles,
        parts=frozenset({"conv"}),
        bytes=2 * size * dtype.bits // 8,
    )


class Depthwise:
    """Each channel on its own, with one filter or several."""

    name: str = "conv/depthwise"
    ops: tuple[str, ...] = _OPS

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Floats, one channel a group, not transposed, filters that are known."""
        supported = _supported(call, _FLOATS)
        if not supported.ok:
            return supported
        shape = ConvShape.of(call)
        if shape.channels != 1 or shape.groups == 1 or shape.transposed:
            return Support.no(Reason.SHAPE_UNSUPPORTED, "it convolves channels that do not mix, forwards")
        if not call.tensor(1).is_weight:
            return Support.no(Reason.SHAPE_UNSUPPORTED, "its filters must be known when weights are loaded")
        return Support.yes()

    def lower(self, call: NodeCall, target: CodegenTarget) -> Lowered:
        """One stage."""
        shape, dtype = ConvShape.of(call), call.outputs[0].dtype
        sums = DType.FLOAT64 if dtype is DType.FLOAT64 else DType.FLOAT32
        lanes = target.isa.lanes(sums.bits // 8)  # type: ignore[attr-defined]
        rows, channels, tasks = shape.cut(target.config.max_threadgroup_3d_z, shape.groups, 4 * lanes)
        args, c = operands(call, "in1")
        kind = f"{C_TYPES[dtype]}, act::{act_of(call)}, {lanes if shape.x[1] == 1 else 1}"
        body = (
            f"  static const conv::Shape shape = {shape.text()};\n"
            f"  static const depthwise::Tasks tasks = {{{rows}, {channels}, {-(-shape.groups // channels)}}};\n"
            f"  depthwise::run<{kind}>(shape, tasks, {c['x']}, {c['filters']}, {c['bias']}, {c['residual']}, {c['y']}, begin, end);"
        )
        stage = Stage(
            stem=stem_of("depthwise", shape),
            source=function(body, shape.about(call)),
            args=args,
            tasks=tasks,
            grain=max(1, _GRAIN_FLOPS // 8 * tasks // max(shape.flops(2), 1)),
            parts=frozenset({"conv_depthwise"}),
            flops=shape.flops(2),
            bytes=shape.bytes(call),
        )
        # [channel, filter, taps] becomes [filter, taps, channel]
        steps = (
            RecipeStep("cast", ("%in",), {"dtype": sums.value}),
            RecipeStep("reshape", ("%0",), {"shape": [shape.groups, shape.filters, shape.taps]}),
            RecipeStep("permute", ("%1",), {"order": [1, 2, 0]}),
        )
        packed = Packed(steps, TensorSpec((shape.filters, shape.taps, shape.groups), sums))
        return Lowered((stage,), weights={1: packed}, accumulates=sums.value)


class Naive:
    """The sum as it is written: whole numbers, and whatever the others refuse."""

    name: str = "conv/naive"
    ops: tuple[str, ...] = _OPS

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Every number; activations of floats only."""
        supported = _supported(call, tuple(C_TYPES))
        if supported.ok and not call.outputs[0].dtype.is_float and act_of(call) != "none":
            return Support.no(Reason.DTYPE_UNSUPPORTED, f"{act_of(call)} of {call.outputs[0].dtype.value}")
        return supported

    def lower(self, call: NodeCall, target: CodegenTarget) -> Lowered:
        """One stage, a task per pixel."""
        shape, dtype = ConvShape.of(call), call.outputs[0].dtype
        kind = C_TYPES[dtype]
        sums = ("double" if dtype is DType.FLOAT64 else "float") if dtype.is_float else "uint64_t"
        args, c = operands(call, "in1")
        body = (
            f"  static const conv::Shape shape = {shape.text()};\n"
            f"  static const int64_t strides[6] = {braces(_strides_of_weight(shape, call.tensor(1).spec))};\n"
            f"  conv::naive<{kind}, {sums}, act::{act_of(call)}>(shape, strides, {c['x']}, (const {kind} *){c['filters']}, "
            f"{c['bias']}, {c['residual']}, {c['y']}, begin, end);"
        )
        flops = shape.flops(2)
        stage = Stage(
            stem=stem_of("naive_conv", shape),
            source=function(body, shape.about(call)),
            args=args,
            tasks=max(shape.pixels, 1),
            grain=max(1, _GRAIN_FLOPS * shape.pixels // max(flops, 1)),
            parts=frozenset({"conv_naive"}),
            flops=flops,
            bytes=shape.bytes(call),
        )
        wide = {"double": "float64", "float": "float32", "uint64_t": "int64"}[sums]
        return Lowered((stage,), accumulates=wide)


class Deformed:
    """Convolution at places that are computed: a task interpolates all that a pixel meets, then sums."""

    name: str = "conv/deformed"
    ops: tuple[str, ...] = ("deform_convolution",)

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Floats of up to three space dims."""
        return _supported(call, _FLOATS)

    def lower(self, call: NodeCall, target: CodegenTarget) -> Lowered:
        """One stage, a task per pixel."""
        shape, kind = ConvShape.of(call), C_TYPES[call.outputs[0].dtype]
        given = {at: call.optional(at) for at in range(5)}
        args = [operand_ref("in", at) for at, operand in given.items() if operand is not None]
        texts = [
            "nullptr" if operand is None else f"(const {kind} *)args[{args.index(operand_ref('in', at))}]"
            for at, operand in given.items()
        ]
        mask = given[4]
        steps = [
            strides_of(call.tensor(2).spec, shape.rank),
            strides_of(mask.spec, shape.rank) if mask else (0,) * 5,
        ]
        steps.append(_strides_of_weight(shape, call.tensor(1).spec))
        lists = ", ".join(braces(s) for s in steps)
        body = (
            f"  static const conv::Shape shape = {shape.text()};\n"
            f"  static const conv::Deform places = {{{call.attrs['offset_groups']}, {shape.rank}, {lists}}};\n"
            f"  conv::deform<{kind}>(shape, places, {', '.join(texts)}, ({kind} *)args[{len(args)}], begin, end, (double *)scratch);"
        )
        flops = shape.flops(2)
        stage = Stage(
            stem=stem_of("deform_conv", shape),
            source=function(body, shape.about(call)),
            args=(*args, "out0"),
            tasks=max(shape.pixels, 1),
            grain=max(1, _GRAIN_FLOPS // 8 * shape.pixels // max(flops, 1)),
            scratch_bytes=8 * shape.groups * shape.channels * shape.taps,
            parts=frozenset({"conv_deform"}),
            flops=flops,
            bytes=shape.bytes(call),
        )
        return Lowered((stage,), accumulates="float64")


KERNELS: tuple[Kernel, ...] = (Depthwise(), Generated(), Naive(), Deformed())
