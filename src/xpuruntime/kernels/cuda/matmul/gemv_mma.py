"""Up to 16 rows times a weight of 16-bit floats on tensor cores (``templates/cuda/gemv_mma.cuh``), for ``matmul/gemv``.

It is bandwidth-bound, so the weight is in flight all the time: each warp copies it to a ring in shared memory. A launch fills its rings before
the previous kernel is complete; a large weight takes most of an SM's shared memory for that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ....codegen.target import CodegenTarget
from ...kernel import NodeCall, Stage
from ..crossovers import crossovers_of
from ..heavy import TAGS, multiprocessors, shared_limit
from ..launch import LaunchConfig
from .gemv_problem import GemvProblem, template_stage

__all__ = ["MAX_ROWS", "MmaTileConfig", "mma_leads", "mma_stage", "mma_tile_config"]

MAX_ROWS = 16
"""Maximum rows of x: two n dims of the tensor-core instruction."""

_STEP = 64
"""Inputs of a step."""
_WEIGHT_ROWS = 16
"""Rows of the weight of a step."""
_SLOT = _WEIGHT_ROWS * _STEP * 2
"""Bytes of a step in the ring."""
_WARPS, _MIN_WARPS, _MAX_WARPS = 8, 4, 16
"""Warps of a block; their minimum where rows of x leave little room; their maximum where k is so long that a warp would have more than ``_OWN_STEPS``."""
_OWN_STEPS = 7
_MIN_STAGES, _MAX_STAGES = 5, 16
"""Stages below which fewer warps with more of them are better, and their maximum, which bounds the code."""
_MIN_IN_FLIGHT = 48 * 1024
"""Minimum bytes of the weight in flight per SM, if it has so many: with less, its memory waits."""
_RING = 204 * 1024
"""Maximum bytes of the rings of an SM."""
_TWO_PER_SM = 1.5
"""Maximum tiles per SM for which each has a block, two of them on some SMs; of more tiles, each SM has one block."""
_RESERVED = 1024
"""Shared memory that an SM reserves for each block."""


@dataclass(frozen=True, slots=True)
class MmaTileConfig:
    """Sizes of a launch.

    split:  warps of a block, which split k between them.
    stages: steps in the ring of a warp.
    blocks: blocks of the launch, which share the tiles of columns.
    per_sm: blocks of an SM at once.
    """

    split: int
    stages: int
    blocks: int
    per_sm: int = 1

    def shared(self, s: GemvProblem) -> int:
        """Return the shared memory of a block, as ``Sizes::BYTES`` of the template."""
        x = s.m * (_steps(s) * _STEP * 2 + 64)
        squares = self.split * s.m * 4 if s.scale is not None else 0
        return self.split * self.stages * _SLOT + x + 2 * self.split * _WEIGHT_ROWS * s.m * 4 + squares


def _steps(s: GemvProblem) -> int:
    return max(1, math.ceil(s.k / _STEP))


def _tiles(s: GemvProblem) -> int:
    return math.ceil(s.n / (_WEIGHT_ROWS // (1 + s.gated)))


def mma_leads(s: GemvProblem, target: CodegenTarget) -> bool:
    """Return whether tensor cores are faster than FMAs: for several rows, and for one row of a large weight."""
    if s.dtype not in TAGS or s.count != 1 or not 0 < s.m <= MAX_ROWS:
        return False
    if s.m > 1:
        return True
    sizes, weight = crossovers_of(target), s.n * (1 + s.gated) * s.k * 2
    filled = 100 * _tiles(s) >= sizes.gemv_mma_min_fill * multiprocessors(target)
    return filled and weight >= sizes.gemv_mma_min_bytes and s.k >= sizes.gemv_mma_min_k


def mma_tile_config(s: GemvProblem, target: CodegenTarget) -> MmaTileConfig | None:
    """Return the config of a launch; None if rows of x leave too little shared memory for the rings, or k is too short to fill them.

    A weight of few tiles has one per block, and rings for all of a warp's steps if they fit. Of a larger one, each SM has one block.
    """
    sms, tiles = multiprocessors(target), _tiles(s)
    if not s.m * tiles * s.k:
        return None
    grids = (tiles,) if tiles <= sms else (tiles, sms) if tiles <= _TWO_PER_SM * sms else (sms,)
    configs = (
        _config(s, tiles, blocks, sms, shared_limit(target), least)
        for least in (_MIN_STAGES, 2)
        for blocks in grids
    )
    return next((c for c in configs if c is not None), None)


def _config(
    s: GemvProblem, tiles: int, blocks: int, sms: int, limit: int, least: int
) -> MmaTileConfig | None:
    """Return the config of so many blocks with the most warps that have ``least`` stages; with two blocks per SM, only one with all warps."""
    steps, per_sm = _steps(s), math.ceil(blocks / sms)
    most = max(_WARPS, min(_MAX_WARPS, math.ceil(steps / _OWN_STEPS))) if blocks == tiles else _WARPS
    fewest = min(_MIN_WARPS if per_sm == 1 else _WARPS, steps)
    for split in range(min(most, steps), fewest - 1, -1):
        needed = math.ceil(steps / split) * math.ceil(tiles / blocks) + 1
        room = limit // per_sm - _RESERVED * (per_sm - 1) - MmaTileConfig(split, 0, blocks).shared(s)
        stages = min(needed, _MAX_STAGES, min(room, _RING // per_sm) // (split * _SLOT))
        in_flight = split * (stages - 1) * _SLOT * per_sm
        if stages >= min(least, needed) and (stages == needed or in_flight >= _MIN_IN_FLIGHT):
            return MmaTileConfig(split, stages, blocks, per_sm)
    return None


def mma_stage(call: NodeCall, config: MmaTileConfig, s: GemvProblem) -> Stage:
    """Return the stage of a config on tensor cores."""
    launch = LaunchConfig(
        (config.blocks, 1, 1), (config.split * 32, 1, 1), config.shared(s), min_blocks_per_sm=config.per_sm
    )
    warps = f"{config.split} warp{'s' if config.split > 1 else ''}"
    return template_stage(
        call, s, "gemv_mma", launch, f"{_WEIGHT_ROWS} rows of the weight at a time on tensor cores, by {warps}", types={"T": TAGS[s.dtype]},
        numbers={"SPLIT": config.split, "STAGES": config.stages, "GRID": config.blocks},
    )  # fmt: skip
