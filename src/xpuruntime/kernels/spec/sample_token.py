"""The base class of kernels of ``sample_token``, which draws the next token of each text of a batch from its logits.

The op also returns the counts (how often each token was generated), with those of the drawn tokens incremented.
"""

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
    """Base class of the kernels of ``sample_token`` on CPUs and GPUs: the calls that are supported, and the update of the counts.

    A call writes one element of each row of the counts. If nothing reads the old counts later, they are updated in place; otherwise they are
    copied first.
    """

    name: str = "search/generated"
    ops: tuple[str, ...] = ("sample_token",)

    def __init__(self, write_moves: MovesWriter) -> None:
        self._write_moves = write_moves

    @abstractmethod
    def sampled(self, call: NodeCall, target: CodegenTarget) -> tuple[tuple[Stage, ...], tuple[int, ...]]:
        """Return the stages that draw the tokens and increment their counts, and the sizes of the stages' temps in bytes."""

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return yes for logits of 16 or 32 bits with contiguous rows and a vocabulary of fewer than 2**31 tokens."""
        logits = call.tensor(LOGITS).spec
        if logits.dtype not in FLOATS - {DType.FLOAT64}:
            return refuse(logits.dtype, "sample_token")
        specs = [*(t.spec for t in call.tensors), *call.outputs]
        if any(s.physical.strides[-1] != 1 and sizes(s)[-1] != 1 for s in specs):
            return Support.no(Reason.SHAPE_UNSUPPORTED, "rows must be contiguous")
        if not all(sizes(logits)) or sizes(logits)[1] >= 2**31:
            return Support.no(
                Reason.SHAPE_UNSUPPORTED, "the logits must have rows, and 1 to 2**31 - 1 tokens"
            )
        return Support.yes()

    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Return the stage that copies the counts, which the compiler drops if they are updated in place, and the stages that sample."""
        spec = call.outputs[1]
        move = Move(Box.of("out1", spec), Box.of("in1", call.tensor(COUNTS).spec))
        copy = self._write_moves("stays", [move], ("in1", "out1"), spec.dtype, target, copies=True)
        stages, temps = self.sampled(call, target)
        return LoweredCall((copy, *stages), temps=temps, in_place={1: COUNTS})
