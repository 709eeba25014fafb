"""The tiling of a matrix product: register tiles, blocks of k in the caches, rows of a task."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ....codegen.cpp.isa import IsaLevel
from ....types import DType
from ...spec.product import Product, accumulator

__all__ = ["L2_WHOLE", "STREAMED_ROWS", "TILE", "GemmTiling", "by_tiles", "registers", "tiling"]

_L2_SHARE = 384 * 1024
"""Bytes of B that a block of k may fill: most of the 512 KiB of second-level cache that the smallest current server core has."""

_L1_SHARE = 32 * 1024
"""Bytes of B that a block of k may fill where tiles multiply: two thirds of the first cache of every core that has them."""

L2_WHOLE = 2 * 1024 * 1024
"""Bytes of the second cache of cores that have tiles."""

_L2_ROWS = 1280 * 1024
"""Bytes of A's rows that stay there while panels of B pass by."""

_L2_PANELS = 512 * 1024
"""Bytes of panels that may be read again for every block of rows."""

STREAMED_ROWS = 4
"""Up to so many rows B is read from memory once and nothing else takes time: its speed is that of memory."""


@dataclass(frozen=True, slots=True)
class GemmTiling:
    """Template arguments of ``gemm_block``."""

    rows: int
    vectors: int
    lanes: int
    unroll: int
    block: int
    task_rows: int
    pairs: bool
    tiles: bool = False
    across: bool = False  # tasks go over all panels before the next rows

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes

    @property
    def word(self) -> int:
        """The number that k of a panel is a multiple of."""
        return TILE if self.tiles else 2 if self.pairs else 1

    def depth(self, k: int) -> int:
        """Return rows of a packed panel."""
        return math.ceil(k / self.word) * self.word


def registers(isa: IsaLevel) -> int:
    """Return the number of vector registers of a level."""
    return 32 if isa.vector_bytes == 64 or isa.architecture == "aarch64" else 16


TILE = 32
"""Rows, columns and depth of the product of tiles (``tile_product``)."""


def by_tiles(p: Product, dtype: DType, streamed: bool, isa: IsaLevel) -> bool:
    """Return whether the tile registers multiply: bfloat16, rows of A along k, and a product that is not bandwidth-bound."""
    plain = dtype is DType.BFLOAT16 and not p.b_type and p.a_strides[-1] == 1
    return plain and not streamed and p.m > STREAMED_ROWS and "amx-bf16" in isa.features


def _tile_tiling(p: Product, packed: bool) -> GemmTiling:
    """Return blocks of k whose panel stays in the L1 cache while the rows of the task pass by it; one block where the rows are few.

    Where A exceeds the L2 cache, or all of B is small, all panels pass by a block of rows before the next block.
    """
    rows, row_bytes = math.ceil(p.m / TILE), 2 * TILE * max(p.k, 1)
    panels = p.batches * math.ceil(p.n / TILE)
    blocks = max(1, min(math.ceil(64 / max(1, panels)), rows // (1 if packed else 4)), math.ceil(rows / 16))
    outgrows = rows * row_bytes > _L2_ROWS
    across = packed and (outgrows or panels * row_bytes <= _L2_PANELS)
    if packed and outgrows:
        blocks = max(blocks, math.ceil(rows / max(1, _L2_ROWS // row_bytes)))
    per_task = math.ceil(rows / blocks)
    depth = max(1, math.ceil(p.k / TILE))
    if per_task > 1:
        depth = math.ceil(depth / math.ceil(depth * 2 * TILE * TILE / _L1_SHARE))
    return GemmTiling(
        TILE, 2, TILE // 2, 1, depth * TILE, per_task * TILE, pairs=True, tiles=True, across=across
    )


def tiling(
    p: Product, dtype: DType, packed: bool, streamed: bool, isa: IsaLevel, matmul_tile: int
) -> GemmTiling:
    """Return the register tile with the least padded work.

    R rows x NV vectors of sums, NV vectors of B and one of A must fit the registers. Columns beyond the matrix are wasted work.
    """
    if by_tiles(p, dtype, streamed, isa):
        return _tile_tiling(p, packed)
    acc_bytes = 8 if accumulator(dtype) in ("double", "uint64_t") else 4
    lanes = isa.lanes(acc_bytes)
    regs = registers(isa)
    most = min(4, max(1, (regs - 1) // (matmul_tile + 1)))
    vectors = min(
        range(most, 0, -1), key=lambda v: math.ceil(p.n / (v * lanes)) * v * (1 + 0.04 * (most - v))
    )
    rows = max(1, min(matmul_tile * most // vectors, p.m, (regs - 1 - vectors) // vectors))
    pairs = dtype is DType.BFLOAT16 and not p.b_type and "avx512bf16" in isa.features and p.a_strides[-1] == 1
    unroll = max(1, min(4, regs * 3 // 4 // (rows * vectors))) if streamed else 1
    if p.m <= rows and packed:
        block = max(p.k, 1)
    else:
        item = dtype.bits // 8
        block = max(64, min(_L2_SHARE // (vectors * lanes * item), p.k + p.k % 2) // 2 * 2)
        if not pairs and acc_bytes != item:
            block = min(block, 1024)
    # Rows of a task: enough tasks for many threads, but enough rows that packing or loading a panel pays.
    panels = p.batches * math.ceil(p.n / (vectors * lanes))
    tiles = math.ceil(p.m / rows)
    least = math.ceil((32 if packed else 96) / rows)
    blocks = max(1, min(math.ceil(64 / max(1, panels)), tiles // least, tiles))
    blocks = max(blocks, math.ceil(tiles * rows / 512))
    return GemmTiling(rows, vectors, lanes, unroll, block, math.ceil(tiles / blocks) * rows, pairs)
