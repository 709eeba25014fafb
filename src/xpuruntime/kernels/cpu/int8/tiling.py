"""The tiling of products of 8-bit codes: which instructions multiply, the register tile, and the rows of a task."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ....codegen.cpp.isa import IsaLevel
from ....types import DType
from ..matmul.gemm_tiling import registers

__all__ = ["Int8Tiling", "has_byte_products", "int8_tiling"]

_ROW_BYTES = 192 * 1024
"""Bytes of rows that a task multiplies by a panel: a third of the smallest L2 cache of current server cores."""

_TASKS = 12
"""Tasks of a product, if its rows suffice."""

_AMX = 32
"""Rows and columns of the AMX product (``product_tiles``)."""


@dataclass(frozen=True, slots=True)
class Int8Tiling:
    """Template arguments of ``templates/int8.h``.

    arithmetic: ``Bytes`` (four codes per word) or ``Pairs`` (two codes as int16).
    rows, vectors: the register tile, in rows by vectors of columns.
    words:      words of a row, padded.
    block:      rows of a task.
    tiles:      whether AMX tiles multiply.
    """

    arithmetic: str
    rows: int
    vectors: int
    lanes: int
    words: int
    block: int
    tiles: bool = False

    @property
    def columns(self) -> int:
        """Columns of a panel."""
        return self.vectors * self.lanes

    @property
    def word(self) -> int:
        """Codes of a word."""
        return 4 if self.arithmetic == "Bytes" else 2

    @property
    def pitch(self) -> int:
        """Bytes between copied rows: not a multiple of 1 KiB, so that rows map to different cache sets."""
        size = -(-4 * self.words // 64) * 64
        return size + 64 if size % 1024 == 0 else size

    @property
    def dtype(self) -> DType:
        """The dtype of a packed panel."""
        return DType.INT8 if self.arithmetic == "Bytes" else DType.INT16


def has_byte_products(isa: IsaLevel) -> bool:
    """Return whether the level multiplies four bytes per lane."""
    return bool(isa.features & {"avx512vnni", "asimddp"})


def int8_tiling(
    isa: IsaLevel, rows: int, columns: int, depth: int, parallel: int, *, by_bytes: bool
) -> Int8Tiling:
    """Return the tiling with the least padded work.

    rows, columns: of one product. parallel: independent products (batches, groups). by_bytes: whether the right side is int8.
    """
    lanes = isa.lanes(4)
    arithmetic = "Bytes" if by_bytes and has_byte_products(isa) else "Pairs"
    words = math.ceil(depth / (4 if arithmetic == "Bytes" else 2))
    if (
        arithmetic == "Bytes"
        and "amx-int8" in isa.features
        and 4 * min(rows, columns) >= _AMX
        and depth >= 32
    ):
        block = _block(rows, 64 * math.ceil(words / 16), math.ceil(columns / _AMX) * parallel, _AMX)
        return Int8Tiling(arithmetic, _AMX, 2, lanes, math.ceil(words / 16) * 16, block, tiles=True)
    regs = registers(isa)
    # Accumulators, a vector per column vector, the word, and one for products that are added.
    vectors = min(
        range(4 if regs == 32 else 2, 0, -1),
        key=lambda v: (math.ceil(columns / (v * lanes)) * v * (1 + 0.03 * (4 - v)), -v),
    )
    most = max(1, min(8, (regs - vectors - 2) // vectors, rows))
    tile = min(range(most, max(1, most // 2) - 1, -1), key=lambda r: math.ceil(rows / r) * (r + 0.5))
    panels = math.ceil(columns / (vectors * lanes)) * parallel
    return Int8Tiling(arithmetic, tile, vectors, lanes, words, _block(rows, 4 * words, panels, tile))


def _block(rows: int, row_bytes: int, panels: int, tile: int) -> int:
    """Return the rows of a task: whole tiles that stay in cache, and enough tasks."""
    most = max(tile, _ROW_BYTES // max(1, row_bytes))
    blocks = max(math.ceil(rows / most), min(math.ceil(_TASKS / max(1, panels)), rows // (4 * tile)), 1)
    return max(tile, math.ceil(math.ceil(rows / blocks) / tile) * tile)
