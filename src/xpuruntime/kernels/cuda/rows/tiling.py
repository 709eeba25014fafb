"""The distribution of the rows of a plan over threads and blocks (see ``loops``)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ....codegen.loops.nest import Nest
from ....codegen.loops.plans import Input, LoopPlan
from ...kernel import NodeCall
from ...spec.row_plan import RowOutput

__all__ = ["RowTiling"]


@dataclass(frozen=True, slots=True)
class RowTiling:
    """A plan's loops, and the threads and blocks that run them.

    kept:    the dims that the reduction keeps: one row per index.
    reduced: the dims that are reduced: the elements of a row.
    across:  whether adjacent threads have adjacent rows, rather than adjacent elements of one row (see ``loops``).
    x, y:    the threads of a block. Along: x threads share each of y rows. Across: y threads share each of x rows.
    width:   elements of a vector load (pack); across, the adjacent rows of one thread.
    splits:  blocks that share a row (split reduction). The last of them to finish combines the partial results.
    held:    operands whose rows are read from memory once and stay in shared memory for later passes.
    """

    call: NodeCall
    plan: LoopPlan
    outputs: tuple[RowOutput, ...]
    kept: Nest
    reduced: Nest
    across: bool
    x: int
    y: int
    width: int = 1
    splits: int = 1
    held: tuple[Input, ...] = ()

    @property
    def held_bytes(self) -> int:
        """Bytes of shared memory that hold rows: a slot for each pack of each thread."""
        return sum(i.dtype.bits // 8 for i in self.held) * self.packs_per_thread * self.x * self.width

    @property
    def elements_per_split(self) -> int:
        """Elements of a row that one block reduces. If several blocks share the row, it is a multiple of what their threads load at once."""
        if self.splits == 1:
            return self.reduced.elements
        each = self.y if self.across else self.x * self.width
        return math.ceil(self.reduced.elements / (self.splits * each)) * each

    @property
    def packs_per_thread(self) -> int:
        """Packs of one thread along a row."""
        return max(1, math.ceil(self.elements_per_split / (self.x * self.width)))

    @property
    def blocks(self) -> int:
        """Blocks of the launch."""
        return self.groups * self.splits

    @property
    def groups(self) -> int:
        """Groups of blocks that share rows; without splits, each block is one."""
        if self.across:
            return self.kept.rows * math.ceil(self.kept.inner / (self.x * self.width))
        return math.ceil(self.kept.elements / self.y)

    @property
    def exact(self) -> bool:
        """True if no thread needs a bounds check along the row."""
        if self.across:
            return self.reduced.elements % (self.splits * self.y) == 0
        return self.packs_per_thread * self.x * self.width * self.splits == self.reduced.elements
