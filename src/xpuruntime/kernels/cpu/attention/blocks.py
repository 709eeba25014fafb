"""Blocks of flash attention on CPUs: vectors of queries or keys in the lanes, and rows per block in the caches."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ....codegen.cpp.isa import IsaLevel
from ..matmul.gemm_tiling import registers

__all__ = ["LaneBlock", "lane_block"]

_BLOCK_ROWS = 96
"""Rows of a block: the scores of 64 lanes are then 24 KiB, half of an L1 cache."""
_TIME_BY_VECTORS = {1: 1.3, 2: 1.05, 3: 1.02, 4: 1.0}
"""Relative time of a product by vectors in the lanes: fewer accumulators hide less of an FMA's latency."""


@dataclass(frozen=True, slots=True)
class LaneBlock:
    """The tiling of a task.

    vectors, rows: the register tile, in vectors of lanes by rows.
    lanes:         queries (or keys) of a task.
    keys:          keys (or queries) per block, a multiple of ``rows``.
    """

    vectors: int
    rows: int
    lanes: int
    keys: int


def lane_block(isa: IsaLevel, item: int, length: int) -> LaneBlock:
    """Return the tiling for this many queries (or keys) of ``item`` bytes."""
    vector_lanes, regs = isa.lanes(item), registers(isa)
    vectors = min(
        range(1, 5 if regs == 32 else 4),
        key=lambda v: math.ceil(length / (v * vector_lanes)) * v * _TIME_BY_VECTORS[v],
    )
    rows = max(1, min(16, (regs - 1 - vectors) // vectors))
    return LaneBlock(vectors, rows, vectors * vector_lanes, max(rows, _BLOCK_ROWS // rows * rows))
