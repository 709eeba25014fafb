"""``matmul/gemv`` on CUDA: few rows times a weight with contiguous k, as in decoding.

It is bandwidth-bound: the time is that of reading the weight once. The first weights are read before the previous kernel is complete (programmatic
dependent launch). ``norm_linear`` fuses an RMS norm, and a gated layer has rows of both halves of the weight. There are two templates:

- ``templates/cuda/gemv.cuh`` computes up to four rows by FMAs (a norm's layer up to 16). Warps own output columns; the lanes of a warp read along
  k in coalesced 16-byte loads, several of them in flight. Long rows are split over the warps of a block (split-K) and reduced in shared memory. A
  block has one item of columns per group, up to eight blocks per SM.
- ``templates/cuda/gemv_mma.cuh`` (``gemv_mma.py``) computes up to 16 rows of 16-bit floats on tensor cores.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ....codegen.target import CodegenTarget
from ....decisions import Reason, Support
from ....types import DType
from ...kernel import Kernel, LoweredCall, NodeCall, Stage
from ...spec.linear import LinearLayer, why_not
from ...spec.matmul import OPS, product_of
from ..heavy import REFERENCE_SMS, TAGS
from ..launch import LaunchConfig
from .gemv_mma import MAX_ROWS, mma_leads, mma_stage, mma_tile_config
from .gemv_problem import GemvProblem, problem_of_layer, problem_of_product, template_stage
from .hopper_gemm import gated_call, gates, gating_repays
from .text import matrices_of, supported

__all__ = ["KERNELS", "ROWS", "Gemv", "GemvTileConfig", "NormLinear", "gemv_stage", "gemv_tile_config"]

ROWS = 4
"""Maximum rows for FMAs of a plain product; above this, their work dominates."""

_DTYPES = (DType.BFLOAT16, DType.FLOAT16, DType.FLOAT32)
_WARPS = 8
"""Warps of a block."""
_MAX_BLOCKS = 8 * REFERENCE_SMS
"""Maximum blocks of a launch; above that, a group computes several items."""
_SHORT = 16
"""Maximum load steps of a row that one warp reads alone."""
_LOADS = 12
"""Maximum 16-byte loads in flight per thread."""
_LOADS_IN_REGS = 8
"""Maximum loads in flight per thread at four blocks per SM (64 registers per thread); more would spill."""


@dataclass(frozen=True, slots=True)
class GemvTileConfig:
    """Tile sizes of a launch.

    columns:           rows of the weight (output columns) that a group of warps reads at once.
    split:             warps of a group, which split k between them.
    groups:            groups of a block; 1 if a group has several warps.
    stages:            load steps in flight.
    items_per_group:   items of ``columns`` that a group computes in turn.
    min_blocks_per_sm: occupancy that bounds the registers of a thread.
    """

    columns: int
    split: int
    groups: int
    stages: int
    items_per_group: int = 1
    min_blocks_per_sm: int = 4

    @property
    def threads(self) -> int:
        """The threads of a block."""
        return self.split * self.groups * 32

    def blocks(self, items: int) -> int:
        """Return the number of blocks for ``items`` items."""
        return math.ceil(items / (self.items_per_group * self.groups))


def gemv_tile_config(m: int, n: int, k: int, dtype: DType, gated: bool = False) -> GemvTileConfig:
    """Return the config for n results: several warps per row where rows are long or few, else one warp per row.

    A gated result has two rows of the weight.
    """
    steps = max(1, math.ceil(k * dtype.bits / 8 / 512))
    few_rows = n * (1 + gated) <= 3 * REFERENCE_SMS * _WARPS
    # Blocks of four columns each.
    fills_device = n * (1 + gated) >= 8 * REFERENCE_SMS * (1 if steps > _SHORT else _WARPS)
    columns = (
        (1 if few_rows and not gated and steps <= _SHORT else 4 if fills_device else 2)
        if m == 1
        else 4
        if m <= 8
        else 2
    )
    results = min(columns // (1 + gated), 1 << (n.bit_length() - 1))
    columns = results * (1 + gated)
    items = math.ceil(n / results)
    split = 1
    if steps > _SHORT or (items < 4 * REFERENCE_SMS and steps > 1):
        choices = range(min(_WARPS, steps), min(3, steps - 1), -1)
        split = min(choices, key=lambda s: (math.ceil(steps / s) * s - steps, -s))
    steps_per_warp, max_stages = math.ceil(steps / split), max(1, _LOADS // columns)
    stages = min(
        range(min(steps_per_warp, math.ceil(max_stages / 2)), min(steps_per_warp, max_stages) + 1),
        key=lambda a: (math.ceil(steps_per_warp / a) * a - steps_per_warp, -a),
    )
    groups = _WARPS if split == 1 else 1
    min_blocks_per_sm = 3 if columns > 2 or columns * stages > _LOADS_IN_REGS else 4
    return GemvTileConfig(
        columns, split, groups, stages, max(1, items // (_MAX_BLOCKS * groups)), min_blocks_per_sm
    )


class Gemv(Kernel):
    """The product of few rows and a weight."""

    name = "matmul/gemv"
    ops: tuple[str, ...] = OPS

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return yes for few rows of floats, with k contiguous on both sides and a single weight."""
        answer = supported(call)
        if not answer:
            return answer
        dtype = call.outputs[0].dtype
        if dtype not in _DTYPES:
            return Support.no(
                Reason.DTYPE_UNSUPPORTED, f"floats of 16 and 32 bits are supported, not {dtype.value}"
            )
        p = product_of(call).flat()
        if p.batches != 1 or p.batch:
            return Support.no(Reason.SHAPE_UNSUPPORTED, "one weight is supported, not one per batch")
        if not p.m * p.n * p.k:
            return Support.no(Reason.SHAPE_UNSUPPORTED, "an operand is empty")
        limit = MAX_ROWS if dtype in TAGS else ROWS
        if p.m > limit:
            return Support.no(Reason.SHAPE_UNSUPPORTED, f"at most {limit} rows are supported, got {p.m}")
        sides = matrices_of(p, dtype)
        if sides is None or sides.b_rows or (sides.a_row == 0 and p.m > 1):
            return Support.no(Reason.SHAPE_UNSUPPORTED, "k must be the weight's contiguous dim")
        if p.m > ROWS and mma_tile_config(problem_of_product(call), target) is None:
            return Support.no(
                Reason.SHAPE_UNSUPPORTED,
                f"{p.m} rows of {p.k} inputs leave too little shared memory for the weight",
            )
        return answer

    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Lower the call to one stage."""
        return LoweredCall((_stage(call, problem_of_product(call), target),))


@dataclass(frozen=True, slots=True)
class NormLinear(Kernel):
    """The GEMV of ``norm_linear``, which both kernel names select. ``matmul/generated`` also has gated layers of many rows (``hopper_gemm.py``)."""

    name: str
    ops: tuple[str, ...] = ("norm_linear",)

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return yes for dense floats of at most 16 rows, and a constant weight; and for gated layers that Hopper multiplies."""
        refused = why_not(call)
        if refused is not None:
            return refused
        m = LinearLayer.of(call).m
        if m > MAX_ROWS and not self._gates_many(call, target):
            return Support.no(Reason.SHAPE_UNSUPPORTED, f"at most {MAX_ROWS} rows are supported, got {m}")
        return Support.yes()

    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Lower the call to one stage."""
        layer = LinearLayer.of(call)
        if not layer.m * layer.n:
            return LoweredCall(())
        if layer.m > MAX_ROWS:
            return gated_call(call, target)
        return LoweredCall(
            (_stage(call, problem_of_layer(call), target),),
            accumulates="float64" if layer.dtype is DType.FLOAT64 else "float32",
        )

    def repays_fusion(self, call: NodeCall, target: CodegenTarget) -> bool:
        """Return yes for so few rows that FMAs do not dominate, and for those that tensor cores multiply."""
        s = problem_of_layer(call)
        if s.m > MAX_ROWS:
            return gating_repays(s.m, target)
        return s.m <= ROWS or (s.dtype in TAGS and mma_tile_config(s, target) is not None)

    def _gates_many(self, call: NodeCall, target: CodegenTarget) -> bool:
        return self.name == "matmul/generated" and gates(call, target)


def _stage(call: NodeCall, s: GemvProblem, target: CodegenTarget) -> Stage:
    config = mma_tile_config(s, target) if mma_leads(s, target) else None
    if config is not None:
        return mma_stage(call, config, s)
    return gemv_stage(call, gemv_tile_config(s.m, s.n, s.k, s.dtype, s.gated), s)


def gemv_stage(call: NodeCall, config: GemvTileConfig, s: GemvProblem) -> Stage:
    """Return the stage of a config by FMAs."""
    launch = LaunchConfig(
        (config.blocks(math.ceil(s.n / (config.columns // (1 + s.gated)))), s.count, 1),
        (config.threads, 1, 1),
        min_blocks_per_sm=config.min_blocks_per_sm if s.m == 1 and s.sums == "float" else 0,
    )
    warps = f"{config.split} warp{'s' if config.split > 1 else ''}"
    return template_stage(
        call, s, "gemv", launch, f"{config.columns} rows of the weight at a time, by {warps}", types={"A": s.sums},
        numbers={
            "COLUMNS": config.columns, "SPLIT": config.split, "GROUPS": config.groups, "STAGES": config.stages, "ITEMS_PER_GROUP": config.items_per_group,
        },
        flags={"STAGED": s.staged},
    )  # fmt: skip


KERNELS: tuple[Any, ...] = (Gemv(), NormLinear("matmul/gemv"), NormLinear("matmul/generated"))
