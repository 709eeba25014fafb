"""Tiles and splits of products of float32 on CUDA cores (``templates/cuda/fma_gemm.cuh``), which convolutions share.

``fma_config`` estimates the time of every tile with every number of splits, and returns the fastest. Its constants are fitted to measurements
(``benchmarks/cuda/conv_float32.py``).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from ....codegen.target import CodegenTarget
from ...kernel import LoweredCall, Stage
from ..heavy import multiprocessors, shared_limit
from ..launch import Argument

__all__ = [
    "CONFIGS",
    "STEP",
    "FmaConfig",
    "FmaTile",
    "fma_config",
    "fma_lowered",
    "fma_numbers",
    "split_arguments",
]

STEP = 16
"""Elements of k per tile."""
_LINE_BYTES = (STEP + 4) * 4
"""Bytes of a line of a tile, with its padding."""


@dataclass(frozen=True, slots=True)
class FmaTile:
    """The output tile of a block, how its warps divide it, and the stages of k tiles in shared memory."""

    rows: int
    columns: int
    warps_m: int
    warps_n: int
    stages: int

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""
        return (self.rows + self.columns) * _LINE_BYTES * self.stages

    @property
    def threads(self) -> int:
        """The threads of a block."""
        return self.warps_m * self.warps_n * 32

    def blocks(self, m: int, n: int) -> int:
        """Return the blocks of one product."""
        return math.ceil(m / self.rows) * math.ceil(n / self.columns)


CONFIGS: tuple[FmaTile, ...] = (
    FmaTile(128, 128, 4, 2, 3),
    FmaTile(128, 64, 4, 1, 3),
    FmaTile(64, 128, 2, 2, 3),
    FmaTile(128, 32, 4, 1, 4),
    FmaTile(64, 64, 2, 2, 4),
    FmaTile(64, 32, 4, 1, 4),
    FmaTile(32, 64, 2, 2, 4),
    FmaTile(32, 32, 2, 2, 4),
    FmaTile(128, 16, 4, 1, 4),
    FmaTile(64, 16, 4, 1, 4),
    FmaTile(16, 64, 1, 4, 4),
)
"""Output tiles, from the most reuse of operands to the most blocks."""
_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_MIN_STEPS = 4
"""Minimum steps of a split."""


@dataclass(frozen=True, slots=True)
class FmaConfig:
    """A tile, and the number of blocks that share the k of an output tile."""

    tile: FmaTile
    splits: int

    def part_bytes(self, m: int, n: int, batches: int) -> int:
        """Return the bytes of partial sums."""
        tiles = self.tile.blocks(m, n) * batches
        return tiles * self.splits * self.tile.rows * self.tile.columns * 4 if self.splits > 1 else 0

    def counter_bytes(self, m: int, n: int, batches: int) -> int:
        """Return the bytes of counters: one per output tile."""
        return self.tile.blocks(m, n) * batches * 4 if self.splits > 1 else 0

    def blocks_per_sm(self, target: CodegenTarget) -> int:
        """Return how many blocks an SM holds: of 128 registers a thread, and by shared memory."""
        return max(1, min(512 // self.tile.threads, shared_limit(target) // self.tile.shared))


def fma_config(m: int, n: int, k: int, batches: int, target: CodegenTarget) -> FmaConfig:
    """Return the configuration with the shortest estimated time."""
    return _fastest(m, n, k, batches, multiprocessors(target), shared_limit(target))


@functools.lru_cache(maxsize=4096)
def _fastest(m: int, n: int, k: int, batches: int, num_sms: int, limit: int) -> FmaConfig:
    steps = math.ceil(k / STEP)
    candidates = [
        FmaConfig(tile, splits)
        for tile in CONFIGS
        if tile.shared <= limit
        for splits in _SPLITS
        if splits == 1 or steps // splits >= _MIN_STEPS
    ]
    return min(candidates, key=lambda c: _cycles(c, m, n, steps, batches, num_sms))


_STEP_LATENCY = 300.0
"""Minimum cycles of a step of one block: a barrier, shared memory's latency and the chain of FMAs."""
_BLOCK_LATENCY = 2500.0
"""Cycles of a block besides its steps: start, first loads, epilogue."""
_MERGE_LATENCY = 2000.0
"""Cycles that a merge of splits adds, besides its traffic."""
_FMA_SHARE = 0.75
"""Share of the FMA rate that 8x8 results per thread reach; with fewer, loads from shared memory limit it."""


def _cycles(c: FmaConfig, m: int, n: int, steps: int, batches: int, num_sms: int) -> float:
    """Return the estimated cycles of a product."""
    t = c.tile
    blocks = t.blocks(m, n) * batches * c.splits
    per_sm = math.ceil(blocks / num_sms)
    resident = min(per_sm, max(1, 512 // t.threads))
    tm, tn = t.rows // t.warps_m // 4, t.columns // t.warps_n // 8
    loads = (tm + tn) / (tm * tn)  # vector loads of four elements, per four results
    share = _FMA_SHARE * min(1.0, 0.25 / loads) ** 0.5
    work = t.rows * t.columns * STEP / 128 / share
    step = max(work * resident, _STEP_LATENCY)
    waves = per_sm / resident
    time = waves * (math.ceil(steps / c.splits) * step + _BLOCK_LATENCY)
    if c.splits > 1:
        time += _MERGE_LATENCY + c.splits * t.rows * t.columns / 16
    return time


def fma_numbers(c: FmaConfig, m: int, n: int, k: int) -> dict[str, object]:
    """Return the constants that the template takes."""
    t = c.tile
    return {
        "BM": t.rows, "BN": t.columns, "WARPS_M": t.warps_m, "WARPS_N": t.warps_n, "STAGES": t.stages, "SPLITS": c.splits, "m": m, "n": n,
        "k": k, "TILES_N": math.ceil(n / t.columns),
    }  # fmt: skip


def split_arguments(c: FmaConfig) -> list[Argument]:
    """Return the memory of partial sums and the counters, if there are splits."""
    if c.splits == 1:
        return []
    return [Argument("temp0", "parts", "float", True), Argument("counters", "counters", "uint32_t", True)]


def fma_lowered(c: FmaConfig, stage: Stage, m: int, n: int, batches: int) -> LoweredCall:
    """Return the stage with the memory that its splits need."""
    size = c.part_bytes(m, n, batches)
    return LoweredCall((stage,), temps=(size,) if size else (), counters=c.counter_bytes(m, n, batches))
