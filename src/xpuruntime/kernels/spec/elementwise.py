"""``elementwise/generated``: every pointwise op, independent of the device."""

from __future__ import annotations

from collections.abc import Sequence

from ...codegen.expr.expression import POINTWISE
from ...codegen.loops.body import plan
from ...codegen.loops.plans import LoopPlan, UnsupportedLoop, shape_of
from ...codegen.target import CodegenTarget
from ...decisions import Support
from ...ir.attributes import Const
from ...types import TensorSpec
from ..kernel import Kernel, LoweredCall, NodeCall, Operand
from .writer import PointwiseWriter

__all__ = ["Elementwise", "in_place_of", "operand_specs", "signature", "stem_of"]


def operand_specs(call: NodeCall) -> list[TensorSpec | Const | bool | int | float | None]:
    """Return operands as ``LoopBody`` reads them: a tensor's spec, a constant of one element, a number, or None."""
    return [
        (o.const if o.const is not None and o.const.size == 1 else o.spec) if isinstance(o, Operand) else o
        for o in call.inputs
    ]


def signature(call: NodeCall) -> str:
    """Return the comment above the kernel: ``add(float32[2, 3], 1.0) -> float32[2, 3]``."""
    inputs = ", ".join(str(i.spec) if isinstance(i, Operand) else str(i) for i in call.inputs)
    name = call.op
    if call.op == "fused":
        body = call.attrs["body"]
        name = " ".join(["fused", *(n.op for n in body.nodes)])
    return f"{name}({inputs}) -> {', '.join(str(o) for o in call.outputs)}"


class Elementwise(Kernel):
    """The kernel of pointwise ops."""

    name = "elementwise/generated"
    ops = tuple(sorted(POINTWISE))

    def __init__(self, write: PointwiseWriter) -> None:
        self._write = write

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return yes for bool, integers of whole bytes, and floats of 16 to 64 bits."""
        try:
            plan(call.node, operand_specs(call), shape_of(call.outputs[0]))
        except UnsupportedLoop as why:
            return Support.no(why.code, str(why))
        return Support.yes()

    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Return one stage over all elements."""
        loop_plan = plan(call.node, operand_specs(call), shape_of(call.outputs[0]))
        return self._write(call, loop_plan, [o.physical.strides for o in call.outputs], target)


def in_place_of(call: NodeCall, plan: LoopPlan, outputs: Sequence[tuple[int, ...]]) -> dict[int, int]:
    """Return the results that may reuse an operand's memory: sizes are equal, and each element is read at its own index only."""
    reuse: dict[int, int] = {}
    for at, spec in enumerate(call.outputs):
        for entry in plan.inputs:
            operand = call.tensor(entry.operand)
            reads = [i for i in plan.inputs if call.tensor(i.operand).name == operand.name]
            same_size = (
                operand.spec.physical.alloc == spec.physical.alloc
                and operand.spec.dtype.bits == spec.dtype.bits
            )
            same = all(i.strides == outputs[at] for i in reads)
            if same_size and same and not operand.is_weight and entry.operand not in reuse.values():
                reuse[at] = entry.operand
                break
    return reuse


def stem_of(call: NodeCall) -> str:
    """Return the name of a kernel: the op, or the first ops of a fused body."""
    if call.op != "fused":
        return call.op
    names = [
        n.op
        for n in call.attrs["body"].nodes
        if n.op not in ("constant", "full", "view", "expand", "unsqueeze", "squeeze", "clone")
    ]
    return "_".join(["fused", *names[:4]])
