"""Collectives as library calls: of NCCL between GPUs, of the core's own library between threads of the host."""

from __future__ import annotations

from dataclasses import dataclass

from ...codegen.target import CodegenTarget
from ...decisions import Reason, Support
from ...ir.ops.collective import ELEMENT_TYPES
from ..kernel import Kernel, LoweredCall, NodeCall, Stage

__all__ = ["CollectiveKernel"]


@dataclass(frozen=True, slots=True)
class CollectiveKernel(Kernel):
    """A kernel that calls a library of collectives. The executor's communicator names the group.

    library: its name in the core.
    """

    name: str
    library: str
    ops: tuple[str, ...] = ("all_reduce", "all_gather", "reduce_scatter")

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return yes for dense operands of types that a group can add."""
        x, y = call.tensor(0).spec, call.outputs[0]
        if x.dtype not in ELEMENT_TYPES:
            return Support.no(Reason.DTYPE_UNSUPPORTED, f"a group cannot exchange {x.dtype.value}")
        if not (x.is_dense and y.is_dense):
            return Support.no(Reason.SHAPE_UNSUPPORTED, "operand and result must be dense")
        if not x.is_static or not x.size_bytes:
            return Support.no(Reason.SHAPE_UNSUPPORTED, "an operand is empty, or has an unknown size")
        return Support.yes()

    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Return one library call."""
        x, y = call.tensor(0).spec, call.outputs[0]
        stage = Stage(
            stem=call.op,
            source="",
            args=("in0", "out0"),
            library=self.library,
            options={"ranks": call.attrs["ranks"]},
            bytes=(x.size_bytes or 0) + (y.size_bytes or 0),
        )
        in_place = {0: 0} if call.op == "all_reduce" else {}
        return LoweredCall((stage,), in_place=in_place)
