"""Row reductions on CUDA devices: formulas (``codegen/loops/formulas``) and the pointwise work around them, fused into one kernel.

A row is everything that one reduction reads. The dim that is contiguous in memory decides how rows map to threads:

    along   a reduced dim is contiguous: up to a block of threads shares a row, with coalesced vector loads and a tree reduction
    across  a kept dim is contiguous: threads adjacent in x own adjacent rows, and threads along y share a row

Where rows are too few for the device, several blocks split each row (``splits``). Partial results are combined in a fixed tree, so equal
inputs give equal bits. These kernels are bandwidth-bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ....codegen.loops.nest import Nest
from ....codegen.loops.plans import CONSTANT, POSITION, LoopPlan
from ....codegen.target import CodegenTarget
from ...kernel import LoweredCall, NodeCall, Stage
from ...spec.elementwise import signature
from ...spec.row_plan import RowNeeds, RowOutput, inner_step, row_nests
from ...spec.writer import LoopWriter
from ..heavy import REFERENCE_SMS, shared_limit
from ..launch import WARP, Argument, LaunchConfig, cuda_stage
from ..pointwise import arguments_of, lower_pointwise
from .column_text import ColumnText, column_width
from .splits import PARTIAL_BYTES, reductions_of, splittable
from .text import RowText
from .tiling import RowTiling

__all__ = ["CUDA", "lower_rows"]

_WARP_ROW = 1024
"""Longest row, in packs of 4 bytes, that one warp reduces where there are enough rows to occupy the device."""
_MIN_ROWS_FOR_WARPS = 1024
"""Rows from which on one warp per row occupies the device."""
_THREADS = 256
"""Threads of a block, as far as the target's config allows."""
_MAX_SPLIT_BLOCKS = 4 * REFERENCE_SMS
"""Maximum blocks of a launch whose rows are split."""
_BLOCK_SMEM = 2048
"""Bytes of shared memory of a block beside the rows that it holds: those of its reductions, and the driver's."""
_Y_FACTORS = 4, 2
"""Factors of a block's y threads where split rows are adjacent: with one row per thread, with several."""
_MIN_PACKS = 4
_MIN_STEPS = 8
"""Minimum loads of a thread per block: packs along a row (``_MIN_PACKS``), elements across rows."""


def lower_rows(
    call: NodeCall, plan: LoopPlan, outputs: Sequence[RowOutput], target: CodegenTarget, stem: str
) -> LoweredCall:
    """Lower a plan with reductions to one kernel."""
    tiling = _tiling_of(call, plan, outputs, target)
    stage = _stage(tiling, stem)
    if tiling.splits == 1:
        return LoweredCall((stage,))
    size = tiling.kept.elements * tiling.splits * len(reductions_of(plan)) * PARTIAL_BYTES
    return LoweredCall((stage,), temps=(size,), counters=tiling.groups * 4)


CUDA = LoopWriter(lower_pointwise, lower_rows)
"""CUDA C++."""


def _tiling_of(
    call: NodeCall, plan: LoopPlan, outputs: Sequence[RowOutput], target: CodegenTarget
) -> RowTiling:
    """Return the mapping of a plan's rows to threads and blocks."""
    kept, reduced, across = row_nests(plan, outputs)
    threads = min(_THREADS, target.config.max_threadgroup_1d)
    if across:
        return _across(RowTiling(call, plan, tuple(outputs), kept, reduced, True, 1, 1), threads)
    width = _width(plan, outputs, reduced)
    packs = max(1, math.ceil(reduced.elements / width))
    if packs <= WARP or (packs <= _WARP_ROW // 4 and kept.elements >= _MIN_ROWS_FOR_WARPS):
        x = min(WARP, _next_power_of_two(packs))
        return RowTiling(call, plan, tuple(outputs), kept, reduced, False, x, max(1, threads // x), width)
    x = min(4 * threads, max(2 * WARP, _next_power_of_two(math.ceil(packs / 4))))
    splits = _splits(plan, outputs, kept.elements, packs // threads, _MIN_PACKS)
    if splits > 1:
        return RowTiling(call, plan, tuple(outputs), kept, reduced, False, threads, 1, width, splits)
    return _holding(RowTiling(call, plan, tuple(outputs), kept, reduced, False, x, 1, width), threads, target)


def _holding(tiling: RowTiling, threads: int, target: CodegenTarget) -> RowTiling:
    """Return the mapping of rows of the largest blocks, with the operands of several passes in shared memory where they fit.

    Two smaller blocks per SM overlap the loads of one row with the arithmetic of another, so they are preferred.
    Where every row has an SM of its own, a row stays in registers.
    """
    uses = RowNeeds(tiling.plan, tiling.outputs, tiling.reduced).uses()
    held = tuple(
        i for i in tiling.plan.inputs if uses[i.name] > 1 and inner_step(tiling.reduced, i.name) == 1
    )
    if tiling.x < 4 * threads or tiling.kept.elements <= REFERENCE_SMS or not held:
        return tiling
    limit = shared_limit(target)
    for x, blocks in ((2 * threads, 2), (4 * threads, 1)):
        candidate = replace(tiling, x=x, held=held)
        if blocks * (candidate.held_bytes + _BLOCK_SMEM) <= limit:
            return candidate
    return tiling


def _across(tiling: RowTiling, threads: int) -> RowTiling:
    """Return the mapping for adjacent rows.

    Threads of a block are divided over x (rows) and y (elements of a row). Where blocks are too few for the device, rows are split over blocks.
    """
    plan, kept, elements = tiling.plan, tiling.kept, tiling.reduced.elements
    width = column_width(plan, tiling.outputs, kept, tiling.reduced)
    x = min(WARP, _next_power_of_two(kept.inner // width))
    y = min(threads // x, _next_power_of_two(max(1, elements // 4)))
    tiling = replace(tiling, x=x, y=y, width=width)
    if tiling.groups >= _MAX_SPLIT_BLOCKS or y < threads // x or elements < 2 * y * _MIN_STEPS:
        return tiling
    # Larger blocks leave fewer partial results to combine.
    wide = replace(tiling, y=_Y_FACTORS[width > 1] * y)
    steps, groups, min_steps = elements // wide.y, wide.groups, _MIN_STEPS
    # At least half of the SMs have work: a split must pay for its atomics.
    if REFERENCE_SMS < 2 * groups <= 3 * REFERENCE_SMS:
        min_steps *= 8
        groups = max(REFERENCE_SMS // 2, 1)
    splits = _splits(plan, tiling.outputs, groups, steps, min_steps)
    return replace(wide, splits=max(1, splits * groups // wide.groups))


def _splits(plan: LoopPlan, outputs: Sequence[RowOutput], groups: int, steps: int, min_steps: int) -> int:
    """Return how many blocks share a row.

    It is more than one where the blocks are too few for the device and each split keeps at least ``min_steps`` loads per thread.
    """
    writes_elements = any(any(o.strides[d] for d in plan.reduced) for o in outputs)
    if writes_elements or 2 * groups > REFERENCE_SMS or not splittable(plan):
        return 1
    limit = max(1, min(_MAX_SPLIT_BLOCKS // groups, steps // min_steps))
    # Equal splits need no bounds check.
    exact = (p for p in range(limit, limit * 3 // 4, -1) if steps % p == 0)
    return next(exact, limit)


def _width(plan: LoopPlan, outputs: Sequence[RowOutput], reduced: Nest) -> int:
    """Return the elements of a vector load along a row: all that is read or written along it must be contiguous."""
    dtypes = {i.name: i.dtype for i in plan.inputs if i.operand != POSITION}
    dtypes |= {f"y{i}": o.spec.dtype for i, o in enumerate(outputs)}
    bits = [d.bits for n, d in dtypes.items() if inner_step(reduced, n) == 1]
    width = min(8, max((128 // max(b, 8) for b in bits), default=1))
    while width > 1 and (reduced.inner % width or reduced.elements // width < WARP):
        width //= 2
    return width


def _next_power_of_two(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def _stage(tiling: RowTiling, stem: str) -> Stage:
    plan, call = tiling.plan, tiling.call
    read = sorted({i.operand for i in plan.inputs if i.operand != POSITION})
    writer = ColumnText(tiling) if tiling.across and tiling.width > 1 else RowText(tiling)
    body = writer.body() if tiling.kept.elements else []
    launch = LaunchConfig(
        (max(tiling.blocks, 1), 1, 1),
        (tiling.x, tiling.y, 1),
        tiling.held_bytes,
        2 if tiling.x == 2 * _THREADS and tiling.held else 0,
    )
    size = sum(s.size_bytes or 0 for s in (*call.outputs, *(call.tensor(at).spec for at in read)))
    work = sum(1 for o in plan.operations if o.op != CONSTANT)
    arguments, parts = arguments_of(call, read), {"reduce"}
    if tiling.splits > 1:
        arguments += [
            Argument("temp0", "parts", "char", True),
            Argument("counters", "counters", "uint32_t", True),
        ]
        parts.add("last_block")
    return cuda_stage(
        stem,
        signature(call),
        arguments,
        body,
        launch,
        parts=frozenset(writer.parts | parts),
        flops=work * tiling.kept.elements * tiling.reduced.elements,
        bytes=size,
    )
