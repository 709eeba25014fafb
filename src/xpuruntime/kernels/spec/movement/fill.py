"""``full``: one value everywhere."""

from __future__ import annotations

from ....codegen.loops.boxes import Box, Move
from ....codegen.loops.combine import bits_of
from ....codegen.target import CodegenTarget
from ....decisions import Support
from ....types import DType
from ...kernel import Kernel, LoweredCall, NodeCall
from ..support import refuse
from ..writer import MovesWriter
from .elements import why_not_movable

__all__ = ["Fill"]


class Fill(Kernel):
    """A constant fill."""

    name = "create/fill"
    ops = ("full",)

    def __init__(self, write_moves: MovesWriter) -> None:
        self._write_moves = write_moves

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return yes for every dtype of at most 8 bytes."""
        if call.outputs[0].dtype is DType.COMPLEX128:
            return refuse(DType.COMPLEX128, "values")
        refused = why_not_movable(call.outputs[0])
        return Support.yes() if refused is None else refused

    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Return one stage that stores the value's bits."""
        spec = call.outputs[0]
        box = Box.of("out0", spec)
        moves = [Move(box, None, fill=bits_of(call.attrs["value"], spec.dtype))]
        return LoweredCall((self._write_moves("full", moves, ("out0",), spec.dtype, target),))
