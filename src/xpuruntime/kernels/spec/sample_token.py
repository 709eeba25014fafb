"""``sample_token``: the calls that kernels support, and the update of the counts in place."""

from __future__ import annotations

from abc import abstractmethod

from ...codegen.loops.boxes import Box, Move
from ...codegen.target import CodegenTarget
from ...decisions import Reason, Support
from ...types import DType
from ..kernel import Kernel, LoweredCall, NodeCall, Stage
from .product import sizes
from .support import FLOATS, refuse
from .writer import MovesWriter

__all__ = ["COUNTS", "NUMBERS", "SETTINGS", "SampleToken"]

LOGITS, COUNTS, SETTINGS, NUMBERS = range(4)
"""Operand positions."""


class SampleToken(Kernel):
    """Base class of ``sample_token``, which writes one element of each row of the counts. They are updated in place, or copied first."""

    name: str = "search/generated"
    ops: tuple[str, ...] = ("sample_token",)

    def __init__(self, write_moves: MovesWriter) -> None:
        self._write_moves = write_moves

    @abstractmethod
    def sampled(self, call: NodeCall, target: CodegenTarget) -> tuple[tuple[Stage, ...], tuple[int, ...]]:
        """Return the stages that sample and count, and the sizes of their temps in bytes."""

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return yes for dense rows of floats up to 32 bits, and fewer than 2**31 tokens."""
        logits = call.tensor(LOGITS).spec
        if logits.dtype not in FLOATS - {DType.FLOAT64}:
            return refuse(logits.dtype, "sample_token")
        specs = [*(t.spec for t in call.tensors), *call.outputs]
        if any(s.physical.strides[-1] != 1 and sizes(s)[-1] != 1 for s in specs):
            return Support.no(Reason.SHAPE_UNSUPPORTED, "rows must be contiguous")
        if not all(sizes(logits)) or sizes(logits)[1] >= 2**31:
            return Support.no(Reason.SHAPE_UNSUPPORTED, "no tokens, or 2**31 and more")
        return Support.yes()

    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Return the copy of the counts, dropped if they are updated in place, and the stages that sample."""
        spec = call.outputs[1]
        move = Move(Box.of("out1", spec), Box.of("in1", call.tensor(COUNTS).spec))
        copy = self._write_moves("stays", [move], ("in1", "out1"), spec.dtype, target, copies=True)
        stages, temps = self.sampled(call, target)
        return LoweredCall((copy, *stages), temps=temps, in_place={1: COUNTS})
