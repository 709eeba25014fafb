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
from ..launch import Argument, LaunchConfig

__all__ = [
    "CONFIGS",
    "STEP",
    "FmaConfig",
    "FmaTile",
    "fma_config",
    "fma_launch",
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
    """The output tile of a block, how its warps divide it, and the stages of k tiles in shared memory.

    share: share of the FMA rate that an SM full of such blocks reaches (``benchmarks/cuda/conv_float32.py``).
    """

    rows: int
    columns: int
    warps_m: int
    warps_n: int
    stages: int
    share: float

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

    def blocks_per_sm(self, limit: int) -> int:
        """Return how many blocks an SM holds: of 128 registers a thread, and ``limit`` bytes of shared memory."""
        return max(1, min(512 // self.threads, limit // self.shared))


CONFIGS: tuple[FmaTile, ...] = (
    FmaTile(64, 64, 2, 2, 4, 0.75),
    FmaTile(128, 32, 4, 1, 4, 0.58),
    FmaTile(64, 32, 4, 1, 4, 0.75),
    FmaTile(32, 64, 2, 2, 4, 0.69),
    FmaTile(32, 32, 2, 2, 4, 0.6),
    FmaTile(64, 16, 4, 1, 4, 0.63),
    FmaTile(16, 64, 1, 4, 4, 0.4),
)
"""Output tiles, from the most reuse of operands to the most blocks."""
_SPLITS = (1, 2, 4, 8, 16)
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
    return min(candidates, key=lambda c: _cycles(c, m, n, steps, batches, num_sms, limit))


_STEP_LATENCY = 600.0
"""Cycles of a step of one block besides its FMAs: a barrier, the latencies of shared memory and of the chain of FMAs."""
_BLOCK_LATENCY = 2300.0
"""Cycles of a product besides its steps: launch, first loads."""
_EPILOGUE = 31.0
"""Cycles of the epilogue per 64 results."""
_MERGE_LATENCY, _MERGE = 2000.0, 3.0 / 16
"""Cycles that a merge of splits adds, and those per partial sum."""
_FMAS = 128
"""FMAs of an SM per cycle."""


def _cycles(c: FmaConfig, m: int, n: int, steps: int, batches: int, num_sms: int, limit: int) -> float:
    """Return the estimated cycles of a product.

    The constants were fitted to 34 convolutions on an H100. The configurations that it chooses take 8% more than the fastest in the mean.
    """
    t = c.tile
    share = t.blocks(m, n) * batches * c.splits / num_sms
    blocks, room = math.ceil(share), t.blocks_per_sm(limit)
    resident = min(blocks, room)
    waves = (blocks if blocks <= 2 * room else share) / resident
    step = t.rows * t.columns * STEP / _FMAS / t.share * resident + _STEP_LATENCY
    time = (
        waves * math.ceil(steps / c.splits) * step
        + _BLOCK_LATENCY
        + _EPILOGUE * blocks * t.rows * t.columns / 64
    )
    if c.splits > 1:
        time += _MERGE_LATENCY + _MERGE * t.rows * t.columns * c.splits * max(1.0, share / c.splits)
    return time


def fma_numbers(c: FmaConfig, m: int, n: int, k: int) -> dict[str, object]:
    """Return the constants that the template takes."""
    t = c.tile
    return {
        "BM": t.rows, "BN": t.columns, "WARPS_M": t.warps_m, "WARPS_N": t.warps_n, "STAGES": t.stages, "SPLITS": c.splits, "m": m, "n": n,
        "k": k, "TILES_N": math.ceil(n / t.columns),
    }  # fmt: skip


def fma_launch(c: FmaConfig, m: int, n: int, batches: int, target: CodegenTarget) -> LaunchConfig:
    """Return the launch of a configuration: a block for each tile, split of k, and batch."""
    t = c.tile
    blocks = t.blocks_per_sm(shared_limit(target))
    return LaunchConfig(
        (t.blocks(m, n), c.splits, batches), (t.threads, 1, 1), t.shared, min_blocks_per_sm=blocks
    )


def split_arguments(c: FmaConfig) -> list[Argument]:
    """Return the memory of partial sums and the counters, if there are splits."""
    if c.splits == 1:
        return []
    return [Argument("temp0", "parts", "float", True), Argument("counters", "counters", "uint32_t", True)]


def fma_lowered(c: FmaConfig, stage: Stage, m: int, n: int, batches: int) -> LoweredCall:
    """Return the stage with the memory that its splits need."""
    size = c.part_bytes(m, n, batches)
    return LoweredCall((stage,), temps=(size,) if size else (), counters=c.counter_bytes(m, n, batches))
