"""The tiling of ``conv/generated``, by a small cost model of padding, parallelism and caches."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ....codegen.cpp.isa import IsaLevel
from ....codegen.target import CodegenTarget
from ....types import DType
from ...spec.conv_shape import TASKS, ConvShape
from ..abi import isa_of

__all__ = ["ConvTiling", "tiling"]

_CHUNK_BYTES = {"F32": 768, "F64": 768, "Bf16Pairs": 768, "Bf16Tiles": 1152}
"""Bytes of a gathered row per block of the depth (``CHUNK_BYTES`` of conv.h). 14 rows and a tile of 32 float32 filters take 36 KiB of the L1 cache."""

_AMX_TILE = 32
"""Pixels, filters and depth of the AMX product (``tile_product``)."""

_MIN_UNIT, _MIN_COLUMNS = 10, 4
"""Minimum pixels of a tile of A that are adjacent in a row of output, for AMX by input lines, and columns for vectors by input lines. Gathered rows
fill their tiles, too."""

_LINE_PIXELS, _LINE_BYTES, _AMX_LINE_BYTES = 256, 384 * 1024, 768 * 1024
"""Maximum pixels of a block by input lines, over which a chunk of filters stays in the first cache, and maximum bytes of its lines. They stay in the
second cache, which is larger where AMX is."""

_ACCUMULATOR_BYTES = 256 * 1024
"""Bytes of partial sums in scratch: a quarter of the L2 cache of current server cores."""

_FEW_CHANNELS, _MAX_STRIDE = 16, 4
"""Maximum channels and stride for the line kernel. A row of so few channels takes as long to gather as to multiply."""

_MAX_RUN_PRODUCTS = 400
"""Maximum products of a contiguous run of a window and all filters for the line kernel, where gathered rows would be multiplied as pairs of bfloat16:
twice as fast (docs/development/kernel-notes.md)."""

_MAX_COLUMNS = 2048
"""Maximum columns of a block of the line kernel. Its input lines and offsets stay in the L2 cache."""

# Relative time of a product by vectors per tile (docs/development/kernel-notes.md).
_TILE_COST = {1: 1.10, 2: 1.0, 3: 1.005, 4: 1.01}


@dataclass(frozen=True, slots=True)
class ConvTiling:
    """The tiling of a convolution.

    arithmetic: a key of ``_CHUNK_BYTES``.
    lanes:    elements of a vector.
    pixels, vectors: the register tile, in pixels by vectors of filters.
    depth:    taps * channels, padded.
    block, blocks: pixels of a task, and blocks of pixels.
    tiles:    tiles of ``tile`` filters.
    tiles_per_gather: tiles of filters that share gathered rows.
    lines:    for few channels: the input lines that a block reads per plane of the kernel (``block`` then counts rows of pixels), the elements of
              each, and the columns of a block.
    planes:   planes of the kernel, for ``lines`` and ``windows``.
    windows:  for input lines in place of gathered rows, the fields of ``conv::Lines``; else empty. ``block`` then counts rows of pixels.
    """

    arithmetic: str
    lanes: int
    pixels: int
    vectors: int
    depth: int
    block: int
    blocks: int
    tiles: int
    tiles_per_gather: int
    lines: tuple[int, int, int] = (0, 0, 0)
    planes: int = 1
    windows: tuple[int, ...] = ()

    @property
    def tile(self) -> int:
        """Filters of a tile."""
        return self.vectors * self.lanes

    @property
    def row_bytes(self) -> int:
        """Bytes of an element of gathered rows and packed filters."""
        return {"F32": 4, "F64": 8, "Bf16Pairs": 2, "Bf16Tiles": 2}[self.arithmetic]

    @property
    def unit_sums(self) -> int:
        """Sums of a product by input lines: a tile register has 16 pixels at most."""
        return (16 if self.arithmetic == "Bf16Tiles" else self.pixels) * self.tile

    @property
    def scratch_bytes(self) -> int:
        """Bytes of scratch: gathered rows, partial sums, biases, two offsets per pixel. Kernels by lines have input lines in place of rows."""
        if self.windows:
            count, pixels, pitch, columns, unit = self.windows
            units, amx = self.block * -(-columns // unit), self.arithmetic == "Bf16Tiles"
            once = self.depth * self.row_bytes <= _CHUNK_BYTES[self.arithmetic]
            sums = (1 + amx if once else self.tiles_per_gather * units) * self.unit_sums
            sums += self.tiles_per_gather * self.tile
            steps = self.depth * self.row_bytes // 64
            lines = self.planes * count * pixels * pitch * self.row_bytes
            return lines + max(self.row_bytes, 4) * sums + 8 * steps + 64
        if self.lines[0]:
            count, length, columns = self.lines
            sums = (self.pixels + self.tiles) * self.tile
            return (self.planes * count * length + sums) * self.row_bytes + 16 * self.block * columns + 64
        padded = -(-self.block // self.pixels) * self.pixels
        chunk = _CHUNK_BYTES[self.arithmetic]
        single_block = self.depth * self.row_bytes <= chunk
        sums = (self.pixels if single_block else self.tiles_per_gather * padded) + self.tiles_per_gather
        return padded * (chunk + 64) + sums * self.tile * max(self.row_bytes, 4) + 16 * self.block + 64

    def text(self) -> str:
        """Return an initializer of ``conv::Blocks``."""
        return f"{{{self.depth}, {self.block}, {self.blocks}, {self.tiles}, {self.tiles_per_gather}}}"


def tiling(shape: ConvShape, dtype: DType, target: CodegenTarget) -> ConvTiling:
    """Return the cheapest tiling by a cost model: least padding, then enough tasks, then gathered rows that fit the L2 cache.

    ``channel_tile`` bounds the filters of a tile, and ``max_threadgroup_3d_xy`` x ``_3d_z`` the pixels of a block.
    """
    isa: IsaLevel = isa_of(target)
    config = target.config
    if dtype is DType.BFLOAT16 and "amx-bf16" in isa.features and _fills_tiles(shape):
        windows = _amx_windows(shape)
        return windows or _amx_tiling(shape, config.max_threadgroup_3d_xy * config.max_threadgroup_3d_z)
    pairs = dtype is DType.BFLOAT16 and "avx512bf16" in isa.features
    few_channels = _by_lines(shape, pairs)
    pairs = pairs and not few_channels
    kind = "Bf16Pairs" if pairs else "F64" if dtype is DType.FLOAT64 else "F32"
    lanes = isa.lanes(8 if kind == "F64" else 4)
    accumulators = _accumulators(isa)
    groups, filters = shape.groups, shape.filters
    vectors = min(
        range(1, max(1, min(config.channel_tile // lanes, max(_TILE_COST))) + 1),
        key=lambda v: (-(-filters // (v * lanes)) * v * _TILE_COST[v], abs(v - 2)),
    )
    tiles = max(1, -(-filters // (vectors * lanes)))
    max_pixels = accumulators // vectors
    if few_channels:
        return _line_tiling(shape, kind, lanes, vectors, max_pixels, tiles, config.max_threadgroup_3d_z)
    total_pixels = max(1, shape.pixels)
    max_block = max(1, config.max_threadgroup_3d_xy * config.max_threadgroup_3d_z)
    blocks = -(-total_pixels // max_block)
    while groups * tiles * blocks < TASKS and -(-total_pixels // blocks) > 2 * max_pixels:
        blocks += 1
    block = -(-total_pixels // blocks)
    pixels = min(
        range(max_pixels, max(1, max_pixels // 2) - 1, -1), key=lambda p: -(-block // p) * (p + 0.25)
    )
    block = min(-(-block // pixels) * pixels, max(total_pixels, 1))
    blocks = -(-total_pixels // block)
    depth = shape.taps * shape.channels
    depth += depth % 2 if pairs else 0
    row = 2 if pairs else 8 if kind == "F64" else 4
    padded_block = -(-block // pixels) * pixels
    fits = max(1, _ACCUMULATOR_BYTES // (padded_block * vectors * isa.vector_bytes))
    tiles_per_gather = tiles if depth * row <= _CHUNK_BYTES[kind] else min(tiles, fits)
    gathered = ConvTiling(kind, lanes, pixels, vectors, depth, block, blocks, tiles, tiles_per_gather)
    return _vector_windows(shape, dtype, isa, gathered) or gathered


def _accumulators(isa: IsaLevel) -> int:
    """Return the registers for sums: all without those of the operands."""
    return 28 if isa.vector_bytes == 64 or isa.architecture == "aarch64" else 12


def _fills_tiles(shape: ConvShape) -> bool:
    """Return whether rows, columns and depth each fill at least a quarter of an AMX tile."""
    return 4 * min(shape.pixels, shape.filters, shape.taps * shape.channels) >= _AMX_TILE


def _amx_tiling(shape: ConvShape, max_pixels: int) -> ConvTiling:
    """Return blocks of at most ``max_pixels`` pixels in whole AMX tiles; smaller blocks where tasks would be few."""
    total, tiles = shape.pixels, -(-shape.filters // _AMX_TILE)
    blocks = -(-total // max(max_pixels, 1))
    while shape.groups * tiles * blocks < TASKS and -(-total // blocks) > 2 * _AMX_TILE:
        blocks += 1
    block = min(-(-total // blocks // _AMX_TILE) * _AMX_TILE, total)
    depth = -(-shape.taps * shape.channels // _AMX_TILE) * _AMX_TILE
    fits = max(1, _ACCUMULATOR_BYTES // (-(-block // _AMX_TILE) * _AMX_TILE * _AMX_TILE * 4))
    tiles_per_gather = tiles if depth * 2 <= _CHUNK_BYTES["Bf16Tiles"] else min(tiles, fits)
    return ConvTiling(
        "Bf16Tiles", 16, _AMX_TILE, 2, depth, block, -(-total // block), tiles, tiles_per_gather
    )


def _amx_windows(shape: ConvShape) -> ConvTiling | None:
    """Return the tiling of AMX by input lines, or None where rows are gathered: also where few pixels of a tile would be adjacent."""
    if not _has_whole_steps(shape, _AMX_TILE):
        return None
    width = shape.out[2]
    columns = -(-width // -(-width // _LINE_PIXELS))
    unit = -(-columns // -(-columns // 16))
    tiles = -(-shape.filters // _AMX_TILE)
    first = ConvTiling("Bf16Tiles", 16, _AMX_TILE, 2, shape.taps * shape.channels, 0, 0, tiles, 0)
    return _windows(shape, first, unit, _AMX_LINE_BYTES) if unit >= _MIN_UNIT else None


def _vector_windows(shape: ConvShape, dtype: DType, isa: IsaLevel, gathered: ConvTiling) -> ConvTiling | None:
    """Return the tiling of vectors by input lines, or None where rows are gathered: also where register tiles would be less full."""
    row = gathered.row_bytes
    if not _has_whole_steps(shape, 64 // row) or shape.out[2] < _MIN_COLUMNS:
        return None
    width, lanes = shape.out[2], gathered.lanes
    accumulators = _accumulators(isa)

    def cost(tile: tuple[int, int]) -> float:
        vectors, pixels = tile
        products = -(-shape.filters // (vectors * lanes)) * vectors * -(-width // pixels) * (pixels + 0.25)
        return (
            products * _TILE_COST[vectors] * max(1.0, 10 / (vectors * pixels))
        )  # a sum waits for its last addition

    most = max(1, min(gathered.vectors * 2, max(_TILE_COST)))
    vectors, pixels = min(
        ((v, p) for v in range(1, most + 1) for p in range(min(accumulators // v, width), 0, -1)), key=cost
    )
    pixels_of_rows = gathered.blocks * gathered.block * gathered.tiles * gathered.vectors
    products = (
        shape.images
        * shape.out[0]
        * shape.out[1]
        * -(-width // pixels)
        * pixels
        * -(-shape.filters // (vectors * lanes))
        * vectors
    )
    if products > pixels_of_rows * (1 + max(0.03, 3 / shape.filters)):
        return None
    tiles = -(-shape.filters // (vectors * lanes))
    first = replace(gathered, pixels=pixels, vectors=vectors, depth=shape.taps * shape.channels, tiles=tiles)
    stored = {4: DType.FLOAT32, 8: DType.FLOAT64, 2: DType.BFLOAT16}[row] is dtype
    in_place = (
        stored and width % pixels == 0 and shape.x[4] * row % 4 == 0
    )  # a word of two bfloat16 is not split
    return _windows(shape, first, pixels, _LINE_BYTES, in_place)


def _has_whole_steps(shape: ConvShape, step: int) -> bool:
    """Return whether windows can be read from input lines in steps of ``step`` channels. One tap without a stride is read in place anyway."""
    whole = shape.channels > 0 and shape.channels % step == 0 and shape.x[1] == 1
    some = shape.pixels > 0 and shape.filters > 0 and (shape.taps > 1 or shape.stride != (1, 1, 1))
    return whole and some and not shape.transposed


def _windows(
    shape: ConvShape, tile: ConvTiling, unit: int, max_bytes: int, in_place: bool = True
) -> ConvTiling | None:
    """Return the blocks of ``run_windows``, or None if their lines take more than ``max_bytes``.

    A block has at most ``_LINE_PIXELS`` pixels, fewer where tasks would be few.

    tile: the register tile, the depth and the tiles of filters. unit: adjacent pixels of a product.
    in_place: whether lines without padding can be read where they are.
    """
    height, width, planes = shape.out[1], shape.out[2], shape.images * shape.out[0]
    units = -(-width // unit)
    across = max(
        -(-width // _LINE_PIXELS),
        min(-(-TASKS // (planes * height * tile.tiles * shape.groups)), units // 2),
        1,
    )
    columns = -(-units // across) * unit
    across = -(-width // columns)
    rows = max(1, min(_LINE_PIXELS // columns, height))
    while (
        rows * columns > 2 * tile.pixels
        and rows > 1
        and planes * -(-height // rows) * across * tile.tiles * shape.groups < TASKS
    ):
        rows -= 1
    rows = -(-height // -(-height // rows))
    row_bytes = tile.row_bytes
    # Pixels are not all in few sets of the first cache.
    pitch = shape.channels + (64 // row_bytes if shape.channels * row_bytes % 512 == 0 else 0)
    pixels = _reach(shape, 2, columns)
    line_bytes = 0 if in_place and not _has_padding(shape) else shape.kernel[0] * pixels * pitch * row_bytes
    while rows > 1 and _reach(shape, 1, rows) * line_bytes > max_bytes:
        rows = -(-rows // 2)
    count = _reach(shape, 1, rows) if line_bytes else 0
    if count * line_bytes > max_bytes:
        return None
    sums = rows * -(-columns // unit) * tile.unit_sums * max(row_bytes, 4)
    once = tile.depth * row_bytes <= _CHUNK_BYTES[tile.arithmetic]
    return replace(
        tile, block=rows, blocks=planes * -(-height // rows) * across, planes=shape.kernel[0],
        tiles_per_gather=tile.tiles if once else min(tile.tiles, max(1, _ACCUMULATOR_BYTES // sums)),
        windows=(count, pixels, pitch, columns, unit),
    )  # fmt: skip


def _reach(shape: ConvShape, dim: int, count: int) -> int:
    """Return the input positions from the first to the last that ``count`` neighbors of the output read along a dim."""
    return (count - 1) * shape.stride[dim] + (shape.kernel[dim] - 1) * shape.dilation[dim] + 1


def _has_padding(shape: ConvShape) -> bool:
    """Return whether a window is not wholly in the input, or the input begins before the first window."""
    ends = (_reach(shape, d, shape.out[d]) - shape.begin[d] for d in range(3))
    return any(shape.begin) or any(end > size for end, size in zip(ends, shape.size, strict=True))


def _by_lines(shape: ConvShape, pairs: bool) -> bool:
    """Return whether whole input lines are faster than gathered rows: few contiguous channels, no gaps between taps.

    pairs: whether gathered rows are multiplied as pairs of bfloat16. The line kernel multiplies float32.
    """
    plain = shape.groups == 1 and not shape.transposed and (shape.dilation[2] == 1 or shape.kernel[2] == 1)
    contiguous = shape.x[1] == 1 and (shape.x[4] == shape.channels or shape.size[2] == 1)
    few = 0 < shape.channels <= _FEW_CHANNELS and shape.stride[2] <= _MAX_STRIDE
    short = not pairs or shape.kernel[2] * shape.channels * shape.filters <= _MAX_RUN_PRODUCTS
    return plain and contiguous and few and short and shape.taps > 1


def _line_tiling(
    shape: ConvShape, kind: str, lanes: int, vectors: int, max_pixels: int, tiles: int, rows: int
) -> ConvTiling:
    """Return blocks of at most ``rows`` rows of pixels, fewer where tasks would be few. Register tiles do not cross rows.

    Rows are split in columns if they are long, or if whole rows are few tasks.
    """
    height, width, planes = shape.out[1], max(shape.out[2], 1), shape.images * shape.out[0]
    rows = max(1, min(rows, height, planes * height * tiles // TASKS))
    pixels = min(
        range(max_pixels, max(1, max_pixels // 2) - 1, -1), key=lambda p: -(-width // p) * (p + 0.25)
    )
    row_blocks = max(1, planes * -(-height // rows))
    across = max(-(-width // _MAX_COLUMNS), min(-(-TASKS // (row_blocks * tiles)), width // (2 * max_pixels)))
    columns = min(-(-width // max(across, 1) // pixels) * pixels, width)
    count = _reach(shape, 1, rows)
    reach = (-(-columns // pixels) * pixels - 1) * shape.stride[2] + shape.kernel[2]
    length = -(-reach * shape.channels // 16) * 16
    blocks = row_blocks * -(-width // columns)
    return ConvTiling(
        kind, lanes, pixels, vectors, shape.taps * shape.channels, rows, blocks, tiles, tiles,
        (count, length, columns), shape.kernel[0],
    )  # fmt: skip
