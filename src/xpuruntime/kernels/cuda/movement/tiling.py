"""The mapping of one move to threads on CUDA devices: merged loops, the pack (vector load) of a thread, and transpose tiles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ....codegen.loops.boxes import Move
from ..launch import WARP, blocks_for

__all__ = ["ROWS_PER_BLOCK", "Dim", "MoveTiling"]

_PACK_BYTES = 16
"""Bytes of the widest vector load."""
_TRANSPOSE_BYTES = 4
"""Bytes that a thread moves at once in a transpose."""
_MIN_THREADS = 1 << 15
"""Threads that occupy a device. Packs are narrower where wider ones would leave fewer threads."""
_MAX_PACKS_PER_THREAD = 4
"""Packs of a thread whose source addresses are looked up: after one wait for the indices, all loads are in flight at once."""
_MIN_ROW_PACKS = 32
"""Packs of a gathered row from which on a block has whole rows, however few rows there are."""
_MIN_TRANSPOSE = 8
"""Shortest dims that use transpose tiles."""
_MAX_SCAN = 1 << 16
"""Positions that a block scans to see whether they increase."""
_ADDED_ROWS = (8, 1 << 20)
"""Rows that blocks add in parallel: with fewer, a thread adds all of them sooner; with more, as every block scans all positions."""
ROWS_PER_BLOCK = 4
"""Rows of a block that adds rows: it scans all positions once for them."""


@dataclass(frozen=True, slots=True)
class Dim:
    """A loop: its length, and the strides of target, source and every lookup."""

    length: int
    steps: tuple[int, ...]


def _joined(dims: Sequence[Dim]) -> list[Dim]:
    """Merge adjacent dims that form one dim for target, source and lookups alike."""
    merged: list[Dim] = []
    for d in dims:
        if merged and all(a == b * d.length for a, b in zip(merged[-1].steps, d.steps, strict=True)):
            merged[-1] = Dim(merged[-1].length * d.length, d.steps)
        else:
            merged.append(d)
    return merged


def _block_of_rows(lanes: int, threads: int) -> int:
    """Return a block size for rows of ``lanes`` threads: whole rows, in whole warps if possible, or an equal part of one row.

    Return ``threads`` if there is none.
    """
    if lanes > threads:
        parts = (n for n in range(threads, threads // 2, -WARP) if lanes % n == 0)
        return next(parts, threads)
    rows = range(threads // lanes, 0, -1)
    return lanes * next((n for n in rows if lanes * n % WARP == 0), rows[0])


class MoveTiling:
    """The loops of one move of elements of ``item`` bytes.

    parallel:     dims over threads, the last one contiguous in the target.
    serial:       dims that one thread loops over.
    checks_order: whether the kernel scans the positions at run time: if they increase, serial dims run in parallel, too.
    adds_rows:    whether each index of the serial dims is a row with one position, which a block adds with the later rows of that position.
    source_dim:   the dim along which the source is contiguous, if it is not the target's. The move is then a tiled transpose.
    tile:         width of a transpose tile in elements.
    width:        elements of a pack.
    packs:        packs of a thread.
    threads:      threads of a block. They are fewer than requested if the move is the only one of its launch (``is_only_move``) and blocks of
                  whole rows are then possible.
    """

    def __init__(self, move: Move, item: int, threads: int, tile: int, is_only_move: bool = False) -> None:
        self.move, self.threads, self.tile = move, threads, tile
        box = move.target
        source = move.source.strides if move.source else (0,) * len(box.shape)
        tracks = [box.strides, source, *(x.strides for x in move.lookups)]
        dims = [Dim(n, tuple(t[i] for t in tracks)) for i, n in enumerate(box.shape) if n != 1]
        writes = any(x.writes for x in move.lookups)
        serial = [d for d in dims if writes and d.steps[0] == 0]
        parallel = [d for d in dims if not (writes and d.steps[0] == 0)]
        parallel.sort(key=lambda d: (-abs(d.steps[0]), -abs(d.steps[1])))
        self.serial, self.parallel = _joined(serial), _joined(parallel) or [Dim(1, (0,) * len(tracks))]
        self.checks_order, self.adds_rows = self._scans_positions(), self._has_position_per_row()
        if self.checks_order:
            self.parallel, self.serial = [*self.serial, *self.parallel], []
        self.source_dim = self._source_dim()
        self.width, self.packs = 1, 1
        if self.source_dim is not None:
            self.width = self._transpose_width(item)
            self.tile *= self.width
        elif is_only_move and self._has_rows(_PACK_BYTES // item):
            self.width = _PACK_BYTES // item
            self.packs = self._packs()
            self.threads = _block_of_rows(self.last.length // (self.width * self.packs), threads)
        else:
            self.width = self._width(item)
            self.packs = self._packs()

    @property
    def last(self) -> Dim:
        """The dim whose elements are contiguous in the target."""
        return self.parallel[-1]

    def _scans_positions(self) -> bool:
        """Return whether the target positions are those of one vector, which a block can scan."""
        moving = [x for x in self.move.lookups if x.writes]
        return (
            len(moving) == 1
            and not self.move.combine
            and len(self.serial) == 1
            and not any(d.steps[2] for d in self.parallel)
            and 1 < self.serial[0].length <= _MAX_SCAN
        )

    def _has_position_per_row(self) -> bool:
        """Return whether values are combined in rows whose positions do not depend on the parallel dims, and the rows are many."""
        moving = [2 + k for k, x in enumerate(self.move.lookups) if x.writes]
        least, most = _ADDED_ROWS
        return (
            bool(self.move.combine and moving)
            and not any(d.steps[k] for d in self.parallel for k in moving)
            and least < self.rows <= most
        )

    def _source_dim(self) -> int | None:
        """Return the dim along which the source is contiguous, if the target's contiguous dim is another one: a transpose."""
        last = self.last
        if self.move.lookups or self.move.source is None or last.steps[0] != 1 or last.steps[1] in (0, 1):
            return None
        for i, d in enumerate(self.parallel[:-1]):
            if d.steps[1] == 1 and min(d.length, last.length) >= _MIN_TRANSPOSE:
                return i
        return None

    def _has_rows(self, width: int) -> bool:
        """Return whether the move gathers rows that are long enough for several warps each."""
        last, reads = self.last, not any(x.writes for x in self.move.lookups)
        if not self.move.lookups or not reads or last.steps[:2] != (1, 1) or any(last.steps[2:]):
            return False
        return last.length % width == 0 and last.length // width >= _MIN_ROW_PACKS

    def _transpose_width(self, item: int) -> int:
        """Return the elements of a tile that move at once: four bytes where the lengths and strides of both sides are multiples of that."""
        assert self.source_dim is not None
        width = max(1, _TRANSPOSE_BYTES // item)
        unit, source = self.parallel[self.source_dim], self.move.source
        assert source is not None
        steps = [s for d in self.parallel for s in d.steps[:2] if s != 1]
        sizes = [unit.length, self.last.length, self.move.target.offset, source.offset, *steps]
        return 1 if any(s % width for s in sizes) else width

    def _width(self, item: int) -> int:
        last = self.last
        looked_up = any(last.steps[2:])
        if last.steps[0] != 1 or last.steps[1] not in (0, 1) or looked_up or self.move.combine:
            return 1
        count = math.prod(d.length for d in self.parallel)
        width = _PACK_BYTES // item
        while width > 1 and (width > last.length or count // width < _MIN_THREADS):
            width //= 2
        return width

    def _packs(self) -> int:
        """Return the packs of a thread, evenly spaced along the last dim: several in gathers, so that their loads overlap."""
        row_packs, rest = divmod(self.last.length, self.width)
        reads = bool(self.move.lookups) and not any(x.writes for x in self.move.lookups)
        if self.width == 1 or rest or not reads or self.last.steps[1] != 1:
            return 1
        count, packs = math.prod(d.length for d in self.parallel) // self.width, _MAX_PACKS_PER_THREAD
        while packs > 1 and (row_packs % packs or count // packs < _MIN_THREADS):
            packs //= 2
        return packs

    # ── how it is launched ──

    @property
    def lengths(self) -> list[int]:
        """Items of threads per dim. The last dim counts packs, or groups of packs."""
        each = self.width * self.packs
        return [*(d.length for d in self.parallel[:-1]), math.ceil(self.last.length / each)]

    @property
    def rows(self) -> int:
        """Iterations of the serial dims."""
        return math.prod(d.length for d in self.serial)

    @property
    def tiles(self) -> tuple[list[Dim], int, int]:
        """The dims outside the tiles of a transpose, and the number of tiles along its rows and columns."""
        assert self.source_dim is not None
        others = [d for i, d in enumerate(self.parallel[:-1]) if i != self.source_dim]
        tile_rows = math.ceil(self.parallel[self.source_dim].length / self.tile)
        return others, tile_rows, math.ceil(self.last.length / self.tile)

    @property
    def blocks(self) -> int:
        """Number of blocks of threads."""
        if self.source_dim is not None:
            others, tile_rows, tile_columns = self.tiles
            return math.prod(d.length for d in others) * tile_rows * tile_columns
        if self.adds_rows:
            return math.ceil(self.rows / ROWS_PER_BLOCK)
        return blocks_for(math.prod(self.lengths), self.threads)

    @property
    def index(self) -> str:
        """The C type that can hold every offset."""
        extents = [
            sum(abs(d.steps[t]) * d.length for d in (*self.parallel, *self.serial))
            for t in range(len(self.last.steps))
        ]
        return "uint32_t" if max(*extents, math.prod(self.lengths), 1) < 2**31 else "int64_t"
