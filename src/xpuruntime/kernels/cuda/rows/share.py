"""The division of the rows of a plan over threads and blocks (see ``rows``)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ....codegen.loops.nest import Nest
from ....codegen.loops.plans import LoopPlan
from ...kernel import NodeCall
from ...spec.row_plan import RowOutput

__all__ = ["RowShare"]


@dataclass(frozen=True, slots=True)
class RowShare:
    """A plan's loops, and the threads that they are divided over.

    kept, run: the dims that stay and those that are reduced; ``across``: see ``loops``.
    x, y:      a block's threads. Along: ``x`` of them on one of ``y`` rows; across: ``y`` of them on one of ``x`` rows.
    width:     elements of a pack (across: adjacent rows of one thread); ``turns``: packs of a thread along one row.
    parts:     blocks that share a row (across: adjacent rows), ``share`` elements each; the last of them to finish joins the partial
           results.
    """

    call: NodeCall
    plan: LoopPlan
    outputs: tuple[RowOutput, ...]
    kept: Nest
    run: Nest
    across: bool
    x: int
    y: int
    width: int = 1
    parts: int = 1

    @property
    def share(self) -> int:
        """Elements of a block along a row: whole packs of all its threads, if several blocks share it."""
        if self.parts == 1:
            return self.run.elements
        each = self.y if self.across else self.x * self.width
        return math.ceil(self.run.elements / (self.parts * each)) * each

    @property
    def turns(self) -> int:
        """Packs of one thread along a row."""
        return max(1, math.ceil(self.share / (self.x * self.width)))

    @property
    def blocks(self) -> int:
        """Blocks of the launch."""
        return self.groups * self.parts

    @property
    def groups(self) -> int:
        """Blocks, where those that share rows count once."""
        if self.across:
            return self.kept.rows * math.ceil(self.kept.inner / (self.x * self.width))
        return math.ceil(self.kept.elements / self.y)

    @property
    def exact(self) -> bool:
        """True if every pack of every thread is within the row."""
        if self.across:
            return self.run.elements % (self.parts * self.y) == 0
        return self.turns * self.x * self.width * self.parts == self.run.elements
