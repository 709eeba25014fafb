"""The tiling of a CPU matrix product: register tiles, blocks of k in the caches, and rows per task."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ....codegen.c_types import accumulator
from ....codegen.cpp.isa import IsaLevel
from ....types import DType
from ...spec.product import Product

__all__ = [
    "CODE_ROWS",
    "L2_WHOLE",
    "STREAMED_ROWS",
    "TILE",
    "GemmTiling",
    "by_tiles",
    "registers",
    "tiling",
]

_L2_SHARE = 384 * 1024
"""Maximum bytes of B per block of k: most of the 512 KiB L2 cache of the smallest current server core."""

_L1_SHARE = 32 * 1024
"""Maximum bytes of B per block of k with AMX: two thirds of the L1 cache of every core that has AMX."""

L2_WHOLE = 2 * 1024 * 1024
"""Bytes of the L2 cache of cores with AMX."""

_L2_ROWS = 1280 * 1024
"""Bytes of rows of A that stay in the L2 cache while panels of B pass."""

_L2_PANELS = 512 * 1024
"""Maximum bytes of panels that are read again for every block of rows."""

_DEQUANTIZED_STEPS = 256
"""Steps of k whose codes become operands at once: these stay in the L2 cache, with AVX2 in the L1 cache."""

_DEQUANTIZED_UNIT = 128
"""Steps of the largest group. A block of codes begins with a group, so its steps are a multiple of this, as ``_DEQUANTIZED_STEPS`` is."""

_DEQUANTIZED_TASK_ROWS = 96
"""Minimum rows of a task, if there are as many: turning a panel's codes into bfloat16 takes as long as multiplying it with ten rows."""

CODE_ROWS = 8
"""Maximum rows whose tiles convert codes by themselves; more rows share the operands of a task."""

STREAMED_ROWS = 4
"""Maximum rows for the bandwidth-bound path, which reads B from memory once; above this the FMA work dominates."""


@dataclass(frozen=True, slots=True)
class GemmTiling:
    """Template arguments of ``gemm_block``.

    rows, vectors: the register tile, in rows by vectors of columns.
    unroll:        unroll factor of the loop over k.
    block:         k per cache block.
    task_rows:     rows of a task.
    pairs:         whether pairs along k are innermost in a panel, for VDPBF16PS.
    tiles:         whether AMX tiles multiply.
    across:        whether consecutive tasks take all panels before the next rows.
    dequantized:   whether B is codes, which a task turns into operands once for all of its rows.
    panel:         columns of a panel of B, if they are more than a task's.
    """

    rows: int
    vectors: int
    lanes: int
    unroll: int
    block: int
    task_rows: int
    pairs: bool
    tiles: bool = False
    across: bool = False
    dequantized: bool = False
    panel: int = 0

    @property
    def columns(self) -> int:
        """Columns of a task."""
        return self.vectors * self.lanes

    @property
    def panel_columns(self) -> int:
        """Columns of a panel of B."""
        return self.panel or self.columns

    def panel_text(self, elements: int) -> str:
        """Return the text of where B of ``panel``, a task's number, begins: panels have ``elements`` elements."""
        shared = self.panel_columns // self.columns
        if shared == 1:
            return f"panel * {elements}"
        return f"panel / {shared} * {elements} + panel % {shared} * {self.columns}"

    @property
    def parts(self) -> frozenset[str]:
        """The part of the prelude with the product."""
        uses = {"gemm_amx": self.tiles, "gemm_dequantized": self.dequantized}
        return frozenset(x for x, used in uses.items() if used) or frozenset({"gemm"})

    @property
    def word(self) -> int:
        """The number that the depth of a panel is a multiple of."""
        return 1 if self.dequantized else TILE if self.tiles else 2 if self.pairs else 1

    def depth(self, k: int) -> int:
        """Return the depth of a packed panel."""
        return math.ceil(k / self.word) * self.word

    def step(self, k: int) -> int:
        """Return the k of an AMX step: TILE, or an even part of ``k`` that leaves no tail, if that takes few steps more."""
        whole = max(1, math.ceil(k / TILE))
        if k % TILE and k <= self.block:
            for count in range(whole, whole + 1 + whole // 2):
                if k % (2 * count) == 0:
                    return k // count
        return TILE


def registers(isa: IsaLevel) -> int:
    """Return the number of vector registers of an instruction set."""
    return 32 if isa.vector_bytes == 64 or isa.architecture == "aarch64" else 16


TILE = 32
"""Rows, columns and depth of the AMX product (``tile_product``)."""


def by_tiles(p: Product, dtype: DType, streamed: bool, isa: IsaLevel) -> bool:
    """Return whether AMX tiles multiply: bfloat16, rows of A along k, and a product that is not bandwidth-bound."""
    plain = dtype is DType.BFLOAT16 and p.a_strides[-1] == 1
    return plain and not streamed and p.m > STREAMED_ROWS and "amx-bf16" in isa.features


def _amx_tiling(p: Product, packed: bool, dequantized: bool, panel: int) -> GemmTiling:
    """Return the tiling for AMX: a block of a panel stays in the L1 cache while the task's rows pass; one block if the rows are few.

    If A exceeds the L2 cache, or all of B is small, all panels pass by a block of rows before the next block. Blocks of codes hold whole groups.
    """
    rows, row_bytes = math.ceil(p.m / TILE), 2 * TILE * max(p.k, 1)
    panels = p.batches * math.ceil(p.n / TILE)
    blocks = max(
        1,
        min(math.ceil(64 / max(1, panels)), rows // (1 if packed and not dequantized else 4)),
        math.ceil(rows / 16),
    )
    exceeds_l2 = rows * row_bytes > _L2_ROWS
    across = packed and (exceeds_l2 or panels * row_bytes <= _L2_PANELS)
    if packed and exceeds_l2:
        blocks = max(blocks, math.ceil(rows / max(1, _L2_ROWS // row_bytes)))
    per_task = math.ceil(rows / blocks)
    depth = max(1, math.ceil(p.k / TILE))
    if per_task > 1 or dequantized:
        per_block = math.ceil(depth / math.ceil(depth * 2 * TILE * TILE / _L1_SHARE))
        unit = _DEQUANTIZED_UNIT // TILE if dequantized and per_block < depth else 1
        depth = math.ceil(per_block / unit) * unit
    return GemmTiling(
        TILE, 2, TILE // 2, 1, depth * TILE, per_task * TILE, pairs=True, tiles=True, across=across,
        dequantized=dequantized, panel=panel,
    )  # fmt: skip


def tiling(
    p: Product,
    dtype: DType,
    packed: bool,
    streamed: bool,
    isa: IsaLevel,
    matmul_tile: int,
    columns: int | None = None,
) -> GemmTiling:
    """Return the register tile with the least padded work.

    R rows x NV vectors of accumulators, NV vectors of B and one of A must fit in registers. Columns beyond the matrix are wasted work.

    columns: those of B's panels, if B is codes in groups.
    """
    coded = p.codes is not None or columns is not None
    dequantized = coded and p.m > CODE_ROWS
    by_amx = by_tiles(p, dtype, streamed, isa)
    if by_amx and not coded:
        return _amx_tiling(p, packed, False, 0)
    acc_bytes = 8 if accumulator(dtype) in ("double", "uint64_t") else 4
    lanes = isa.lanes(acc_bytes)
    regs = registers(isa)
    max_vectors = min(4, max(1, (regs - 1) // (matmul_tile + 1)))
    choices = list(range(max_vectors, 0, -1)) if columns is None else [columns // lanes]
    if columns is None and coded and dtype is DType.BFLOAT16 and "amx-bf16" in isa.features:
        choices = [4, 2]  # whole tiles
    vectors = min(choices, key=lambda v: math.ceil(p.n / (v * lanes)) * v * (1 + 0.04 * (max_vectors - v)))
    if by_amx and dequantized:
        return _amx_tiling(p, packed, True, vectors * lanes)
    rows = max(1, min(matmul_tile * max_vectors // vectors, p.m, (regs - 1 - vectors) // vectors))
    paired = dtype is DType.BFLOAT16 and "avx512bf16" in isa.features and p.a_strides[-1] == 1
    pairs = paired and (dequantized or not coded)
    unroll = max(1, min(4, regs * 3 // 4 // (rows * vectors))) if streamed else 1
    if dequantized:
        block = max(1, min(_DEQUANTIZED_STEPS, p.k))
    elif p.m <= rows and packed:
        block = max(p.k, 1)
    else:
        item = dtype.bits // 8
        block = max(64, min(_L2_SHARE // (vectors * lanes * item), p.k + p.k % 2) // 2 * 2)
        if not pairs and acc_bytes != item:
            block = min(block, 1024)
    # Rows of a task: few enough for many threads, but enough to amortize packing or loading a panel.
    panels = p.batches * math.ceil(p.n / (vectors * lanes))
    tiles = math.ceil(p.m / rows)
    min_tiles = math.ceil((_DEQUANTIZED_TASK_ROWS if dequantized else 32 if packed else 96) / rows)
    blocks = max(1, min(math.ceil(64 / max(1, panels)), tiles // min_tiles, tiles))
    blocks = max(blocks, math.ceil(tiles * rows / 512))
    return GemmTiling(
        rows, vectors, lanes, unroll, block, math.ceil(tiles / blocks) * rows, pairs, dequantized=dequantized
    )
