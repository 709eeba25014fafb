"""Row reductions on CPUs: formulas (``codegen/loops/formulas``) and the pointwise work around them, fused into one kernel.

A row is everything that one reduction reads. The dim that is contiguous in memory decides how rows map to vector lanes:

    along   a reduced dim is contiguous: vectors run along the row, and a horizontal reduction ends it (softmax over the last dim, norms)
    across  a kept dim is contiguous, or rows are short: every lane has a row of its own (means over height and width of NHWC images)

A formula makes one pass over the row per level of dependent reductions. An expensive value (exp, erf ...) that a later pass reads again
stays in the thread's scratch if a row fits there. Most of these kernels are bandwidth-bound.
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


_SHORT = 4
"""Maximum elements of rows that lanes have one each of whatever the layout: ``gather`` reads every fourth element by shuffles."""

_MIN_BITS = 128
"""Minimum bits of vectors along short rows, which need no more lanes than elements: masks load the first elements of those."""


def lower_rows(
    call: NodeCall, plan: LoopPlan, outputs: Sequence[RowOutput], target: CodegenTarget, stem: str
) -> LoweredCall:
    """Lower a plan with reductions to one kernel."""
    return LoweredCall((_stage(_loops(call, plan, outputs, target), stem),))


def _loops(call: NodeCall, plan: LoopPlan, outputs: Sequence[RowOutput], target: CodegenTarget) -> RowLoops:
    kept, run, across = row_nests(plan, outputs)
    across = across or run.elements <= _SHORT
    lanes = lanes_for(target, [*(i.dtype for i in plan.inputs), *(o.dtype for o in plan.operations)])
    if not across:
        bits = min(spec.dtype.bits for spec in (*call.outputs, *(t.spec for t in call.tensors)))
        lanes = min(lanes, max(_MIN_BITS // bits, 1 << max(run.inner - 1, 0).bit_length()))
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


def _tasks(kept: Nest, run: Nest, across: bool, min_elements: int, lanes: int) -> TaskSplit:
    """Return the split into tasks: rows per task; across, columns per task."""
    each = max(run.elements, 1)
    if across:
        vector_columns = UNROLL * lanes if kept.inner >= 4 * UNROLL * lanes else lanes
        return cut(kept, max(vector_columns, math.ceil(min_elements / each)), vector_columns)
    flat = Nest((kept.elements, 1), {})
    return cut(flat, max(1, math.ceil(min_elements / each)), 1) if kept.elements else TaskSplit(1, 1, 1)


CPP = LoopWriter(lower_pointwise, lower_rows)
"""C++ for CPUs."""
