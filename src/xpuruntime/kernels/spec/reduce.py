"""``reduce/generated``: sums, means, extremes, variances and norms over any dims, for operands of any strides."""

from __future__ import annotations

from ...codegen.loops.body import plan
from ...codegen.loops.formulas import row_axes
from ...codegen.loops.plans import LoopPlan, UnsupportedLoop, shape_of, space_of
from ...codegen.target import CodegenTarget
from ...decisions import Support
from ...types import TensorSpec
from ..kernel import Kernel, LoweredCall, NodeCall
from .elementwise import operand_specs
from .row_plan import RowOutput
from .writer import LoopWriter

__all__ = ["OPS", "SOFTMAX_OPS", "RowKernel", "strides_along"]


def strides_along(spec: TensorSpec, space: tuple[int, ...], dims: tuple[int | None, ...]) -> tuple[int, ...]:
    """Return a result's strides along the space. ``dims``: the dim of the space of each of its own dims, or None."""
    strides = [0] * len(space)
    for d, stride in zip(dims, spec.physical.strides, strict=True):
        if d is not None and space[d] != 1:
            strides[d] = stride
    return tuple(strides)


class RowKernel(Kernel):
    """A kernel of ops that have a reduction formula (``codegen/loops/formulas``)."""

    def __init__(self, name: str, ops: tuple[str, ...], writer: LoopWriter) -> None:
        self.name, self.ops, self._writer = name, ops, writer

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return yes for integers of whole bytes and floats of 16 to 64 bits."""
        try:
            self._plan(call)
        except UnsupportedLoop as why:
            return Support.no(why.code, str(why))
        return Support.yes()

    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Return one stage, whose tasks are rows."""
        plan = self._plan(call)
        return self._writer.rows(call, plan, self._outputs(call, plan), target, call.op)

    def _plan(self, call: NodeCall) -> LoopPlan:
        operands = operand_specs(call)
        return plan(call.node, operands, space_of(call.node, operands))

    def _outputs(self, call: NodeCall, plan: LoopPlan) -> list[RowOutput]:
        rank = len(plan.space)
        axes = row_axes(call.op, call.attrs, rank)
        outputs = []
        for value, spec in zip(plan.outputs, call.outputs, strict=True):
            kept_dims = tuple(d for d in range(rank) if d not in axes)
            dims = tuple(range(rank)) if spec.rank == rank else kept_dims
            if shape_of(spec) == plan.space:
                strides = strides_along(spec, plan.space, dims)
            else:
                strides = strides_along(
                    spec, tuple(1 if d in axes else e for d, e in enumerate(plan.space)), dims
                )
            outputs.append(RowOutput(value, spec, strides))
        return outputs


_REDUCTIONS = ("sum", "prod", "amax", "amin", "any", "all", "mean", "var", "logsumexp", "vector_norm")
_WITH_POSITION = ("argmax", "argmin", "max", "min")

OPS = _REDUCTIONS + _WITH_POSITION
SOFTMAX_OPS = ("softmax", "log_softmax", "hardmax")
