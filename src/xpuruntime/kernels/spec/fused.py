"""``elementwise/generated`` for ``fused``: bodies of pointwise ops in one loop nest; with row reductions, in loops over rows."""

from __future__ import annotations

from ...codegen.loops.body import LoopBody, plan
from ...codegen.loops.plans import LoopPlan, UnsupportedLoop, body_of, shape_of, space_of
from ...codegen.target import CodegenTarget
from ...decisions import Support
from ..kernel import Kernel, LoweredCall, NodeCall
from .elementwise import operand_specs, stem_of
from .reduce import strides_along
from .row_plan import RowOutput
from .writer import LoopWriter

__all__ = ["Fused"]


class Fused(Kernel):
    """The kernel of fused bodies."""

    name = "elementwise/generated"
    ops = ("fused",)

    def __init__(self, writer: LoopWriter) -> None:
        self._writer = writer

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return yes for bodies whose values share one space, with reductions over at most one set of its dims."""
        try:
            _plan(call)
        except UnsupportedLoop as why:
            return Support.no(why.code, str(why))
        return Support.yes()

    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Return one stage."""
        plan, outputs = _plan(call)
        if any(o.reduces for o in plan.operations):
            return self._writer.rows(call, plan, outputs, target, stem_of(call))
        return self._writer.pointwise(call, plan, [o.strides for o in outputs], target)


def _plan(call: NodeCall) -> tuple[LoopPlan, list[RowOutput]]:
    operands = operand_specs(call)
    loop_plan = plan(call.node, operands, space_of(call.node, operands))
    reference = LoopBody(loop_plan.space, operands, body_of(call.node), reduced=loop_plan.reduced)
    outputs = []
    for value, spec in zip(loop_plan.outputs, call.outputs, strict=True):
        strides = strides_along(spec, loop_plan.space, reference.dims_of(shape_of(spec)))
        outputs.append(RowOutput(value, spec, strides))
        missing = [
            d
            for d, e in enumerate(loop_plan.space)
            if e != 1 and not strides[d] and d not in loop_plan.reduced
        ]
        if missing and all(loop_plan.space):
            raise UnsupportedLoop("results of several shapes do not fit one loop nest")
        along = [d for d in loop_plan.reduced if strides[d]]
        if along and len(along) != sum(1 for d in loop_plan.reduced if loop_plan.space[d] != 1):
            raise UnsupportedLoop("a result must keep either all reduced dims or none")
    return loop_plan, outputs
