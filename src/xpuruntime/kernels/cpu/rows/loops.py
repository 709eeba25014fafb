"""Loops over rows: formulas of reductions (codegen/loops/formulas), and pointwise work around them, in one kernel.

A row is everything that one reduction reads. There are two ways, by the dim that is contiguous in memory:

    along   a reduced dim: vectors run along the row, lanes are joined at its end (softmax over the last dim, norms)
    across  a kept dim: every lane is a row of its own (means over height and width of channels-last images)

A formula takes as many passes over the row as its reductions depend on each other. A value that is expensive to compute (exp, erf ...) and
that a later pass reads again is kept in the thread's scratch memory, if a row fits there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ....codegen.loops.nest import Nest, TaskSplit, cut
from ....codegen.loops.plans import CONSTANT, POSITION, LoopPlan
from ....codegen.target import CodegenTarget
from ...kernel import LoweredCall, NodeCall, Stage, operand_ref
from ...spec.row_plan import RowOutput, row_nests
from ...spec.writer import LoopWriter
from ..elementwise import declared, function_text, lanes_for, lower_pointwise
from .text import CpuRowText
from .values import UNROLL, RowLoops

__all__ = ["CPP", "RowOutput", "lower_rows"]


def lower_rows(
    call: NodeCall, plan: LoopPlan, outputs: Sequence[RowOutput], target: CodegenTarget, stem: str
) -> LoweredCall:
    """Return the kernel of a plan with reductions."""
    return LoweredCall((_stage(_loops(call, plan, outputs, target), stem),))


def _loops(call: NodeCall, plan: LoopPlan, outputs: Sequence[RowOutput], target: CodegenTarget) -> RowLoops:
    kept, run, across = row_nests(plan, outputs)
    lanes = lanes_for(target, [*(i.dtype for i in plan.inputs), *(o.dtype for o in plan.operations)])
    tasks = _tasks(kept, run, across, target.config.max_threadgroup_1d, lanes)
    return RowLoops(call, plan, tuple(outputs), kept, run, across, lanes, tasks)


def _stage(loops: RowLoops, stem: str) -> Stage:
    read = sorted({i.operand for i in loops.plan.inputs if i.operand != POSITION})
    arguments = [(f"x{at}", loops.call.tensor(at).spec.dtype) for at in read]
    arguments += [(f"y{i}", o.spec.dtype) for i, o in enumerate(loops.outputs)]
    writer = CpuRowText(loops)
    body = writer.body()
    if not loops.kept.elements:
        body = []
    size = sum(s.size_bytes or 0 for s in (*loops.call.outputs, *(loops.call.tensor(at).spec for at in read)))
    work = sum(1 for o in loops.plan.operations if o.op != CONSTANT)
    return Stage(
        stem=stem,
        source=function_text(loops.call, loops.lanes, declared(arguments, len(loops.outputs)), body),
        args=(
            *(operand_ref("in", at) for at in read),
            *(operand_ref("out", i) for i in range(len(loops.outputs))),
        ),
        tasks=loops.tasks.count,
        scratch_bytes=writer.values.scratch_bytes,
        parts=frozenset(writer.values.parts | {"reduce"}),
        flops=work * loops.kept.elements * loops.run.elements,
        bytes=size,
    )


def _tasks(kept: Nest, run: Nest, across: bool, least: int, lanes: int) -> TaskSplit:
    """Return the rows of a task; across, the columns of a task."""
    each = max(run.elements, 1)
    if across:
        wide = UNROLL * lanes if kept.inner >= 4 * UNROLL * lanes else lanes
        return cut(kept, max(wide, math.ceil(least / each)), wide)
    flat = Nest((kept.elements, 1), {})
    return cut(flat, max(1, math.ceil(least / each)), 1) if kept.elements else TaskSplit(1, 1, 1)


CPP = LoopWriter(lower_pointwise, lower_rows)
"""C++ for CPUs."""
