"""The division of rows on CUDA devices: formulas of reductions (codegen/loops/formulas), and pointwise work around them, in one kernel.

A row is everything that one reduction reads. There are two ways, by the dim that is contiguous in memory:

    along   a reduced dim: up to a block of threads works on one row, each on contiguous packs
    across  a kept dim: threads adjacent in x have adjacent rows, and threads along y share a row

Where rows are few and long, several blocks share them (``row_parts``). Partial results are joined in a fixed tree, so equal inputs give
equal bits.
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
from ...spec.row_plan import RowOutput, inner_step, row_nests
from ...spec.writer import LoopWriter
from ..heavy import FULL
from ..launch import WARP, Argument, LaunchConfig, cuda_stage
from ..pointwise import arguments_of, lower_pointwise
from .column_text import ColumnText, column_width
from .parts import SLOT, divisible, partial_of
from .share import RowShare
from .text import RowText

__all__ = ["CUDA", "lower_rows"]

_WARP_ROW = 1024
"""Longest row (in packs of four bytes) that one warp takes where there are rows enough for every warp of a device."""
_MANY_ROWS = 1024
_THREADS = 256
_BLOCKS = 4 * FULL
"""Blocks that share few rows, all together."""
_WIDER = 4, 2
"""Factors of the threads per block for adjacent rows, where blocks are few: with one row a thread, with several."""
_LEAST_PACKS = 4
_LEAST_TURNS = 8
"""Packs of a thread along a row, elements of a thread across, that make a block worth its while."""


def lower_rows(
    call: NodeCall, plan: LoopPlan, outputs: Sequence[RowOutput], target: CodegenTarget, stem: str
) -> LoweredCall:
    """Lower a plan with reductions to one kernel."""
    share = _share(call, plan, outputs, target)
    stage = _stage(share, stem)
    if share.parts == 1:
        return LoweredCall((stage,))
    size = share.kept.elements * share.parts * len(partial_of(plan)) * SLOT
    return LoweredCall((stage,), temps=(size,), counters=share.groups * 4)


CUDA = LoopWriter(lower_pointwise, lower_rows)
"""CUDA C++."""


def _share(call: NodeCall, plan: LoopPlan, outputs: Sequence[RowOutput], target: CodegenTarget) -> RowShare:
    kept, run, across = row_nests(plan, outputs)
    threads = min(_THREADS, target.config.max_threadgroup_1d)
    if across:
        return _beside(RowShare(call, plan, tuple(outputs), kept, run, True, 1, 1), threads)
    width = _width(plan, outputs, run)
    packs = max(1, math.ceil(run.elements / width))
    if packs <= WARP or (packs <= _WARP_ROW // 4 and kept.elements >= _MANY_ROWS):
        x = min(WARP, _power_above(packs))
        return RowShare(call, plan, tuple(outputs), kept, run, False, x, max(1, threads // x), width)
    x = min(4 * threads, max(2 * WARP, _power_above(math.ceil(packs / 4))))
    parts = _parts(plan, outputs, kept.elements, packs // threads, _LEAST_PACKS)
    if parts > 1:
        return RowShare(call, plan, tuple(outputs), kept, run, False, threads, 1, width, parts)
    return RowShare(call, plan, tuple(outputs), kept, run, False, x, 1, width)


def _beside(share: RowShare, threads: int) -> RowShare:
    """Return the division of adjacent rows over the threads of a block in x and y, and over blocks where those are few."""
    plan, kept, elements = share.plan, share.kept, share.run.elements
    width = column_width(plan, share.outputs, kept, share.run)
    x = min(WARP, _power_above(kept.inner // width))
    y = min(threads // x, _power_above(max(1, elements // 4)))
    share = replace(share, x=x, y=y, width=width)
    if share.groups >= _BLOCKS or y < threads // x or elements < 2 * y * _LEAST_TURNS:
        return share
    wide = replace(share, y=_WIDER[width > 1] * y)  # larger blocks leave fewer partial results
    turns, groups, least = elements // wide.y, wide.groups, _LEAST_TURNS
    if FULL < 2 * groups <= 3 * FULL:  # half of the SMs are busy already: parts must be worth their counters
        least *= 8
        groups = max(FULL // 2, 1)
    parts = _parts(plan, share.outputs, groups, turns, least)
    return replace(wide, parts=max(1, parts * groups // wide.groups))


def _parts(plan: LoopPlan, outputs: Sequence[RowOutput], groups: int, turns: int, least: int) -> int:
    """Return how many blocks share the work of one.

    It is more than one where the blocks are too few for the device and each part has at least ``least`` turns.
    """
    full = any(any(o.strides[d] for d in plan.reduced) for o in outputs)
    if full or 2 * groups > FULL or not divisible(plan):
        return 1
    most = max(1, min(_BLOCKS // groups, turns // least))
    even = (p for p in range(most, most * 3 // 4, -1) if turns % p == 0)  # no turn is cut short
    return next(even, most)


def _width(plan: LoopPlan, outputs: Sequence[RowOutput], run: Nest) -> int:
    """Return the elements of a pack along a row, which are contiguous in all that is read or written there."""
    moving = {i.name: i.dtype for i in plan.inputs if i.operand != POSITION}
    moving |= {f"y{i}": o.spec.dtype for i, o in enumerate(outputs)}
    bits = [d.bits for n, d in moving.items() if inner_step(run, n) == 1]
    width = min(8, max((128 // max(b, 8) for b in bits), default=1))
    while width > 1 and (run.inner % width or run.elements // width < WARP):
        width //= 2
    return width


def _power_above(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def _stage(share: RowShare, stem: str) -> Stage:
    plan, call = share.plan, share.call
    read = sorted({i.operand for i in plan.inputs if i.operand != POSITION})
    writer = ColumnText(share) if share.across and share.width > 1 else RowText(share)
    body = writer.body() if share.kept.elements else []
    launch = LaunchConfig((max(share.blocks, 1), 1, 1), (share.x, share.y, 1))
    size = sum(s.size_bytes or 0 for s in (*call.outputs, *(call.tensor(at).spec for at in read)))
    work = sum(1 for o in plan.operations if o.op != CONSTANT)
    arguments, parts = arguments_of(call, read), {"reduce"}
    if share.parts > 1:
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
        flops=work * share.kept.elements * share.run.elements,
        bytes=size,
    )
