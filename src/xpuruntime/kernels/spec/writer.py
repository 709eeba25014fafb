"""The functions that each target's package (``cpu``, ``cuda``) passes to the kernels in ``spec``: they write a plan's loops, or moves, as a stage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from ...codegen.loops.boxes import Move
from ...codegen.loops.plans import LoopPlan
from ...codegen.target import CodegenTarget
from ...types import DType
from ..kernel import LoweredCall, NodeCall, Stage
from .row_plan import RowOutput

__all__ = ["LoopWriter", "MovesWriter", "PointwiseWriter"]

PointwiseWriter: TypeAlias = Callable[
    [NodeCall, LoopPlan, Sequence[tuple[int, ...]], CodegenTarget], LoweredCall
]
"""Writes a plan without reductions; the third argument has the results' strides along the plan's space."""


@dataclass(frozen=True, slots=True)
class LoopWriter:
    """Writers of plans without reductions and of plans with them (the last argument of ``rows`` is the kernel's name)."""

    pointwise: PointwiseWriter
    rows: Callable[[NodeCall, LoopPlan, Sequence[RowOutput], CodegenTarget, str], LoweredCall]


class MovesWriter(Protocol):
    """A writer of moves that do not depend on each other."""

    def __call__(
        self,
        stem: str,
        moves: Sequence[Move],
        args: tuple[str, ...],
        dtype: DType,
        target: CodegenTarget,
        copies: bool = False,
        ctype: str = "",
    ) -> Stage:
        """Return one stage that makes all moves.

        copies: the stage only copies the first operand to the result (``Stage.copies``).
        ctype:  the type that elements are computed with; without one they move as bits.
        """
        ...
