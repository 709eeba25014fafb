"""Interfaces of the text writers that ``cpu`` and ``cuda`` pass to the kernels in ``spec``: they write loops or moves as a stage."""

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
"""Writes a plan without reductions. The third argument has the results' strides along the plan's space."""


@dataclass(frozen=True, slots=True)
class LoopWriter:
    """Writers of plans without reductions and with them. The last argument of ``rows`` is the kernel's name."""

    pointwise: PointwiseWriter
    rows: Callable[[NodeCall, LoopPlan, Sequence[RowOutput], CodegenTarget, str], LoweredCall]


class MovesWriter(Protocol):
    """A writer of moves that are independent of each other."""

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
        """Return one stage that runs all moves.

        copies: the stage only copies the first operand to the result (``Stage.copies``).
        ctype:  the C type for computing with elements; if empty, elements move as bits.
        """
        ...
