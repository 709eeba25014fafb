"""The rows of a thread on CUDA devices (see ``rows``): which rows it owns, where their values begin, and what may move in packs."""

from __future__ import annotations

from ....codegen.loops.nest import offset_text
from ....codegen.loops.plans import POSITION, Input
from ...spec.row_plan import RowNeeds
from ..pointwise import index_type, reach_of
from .share import RowShare

__all__ = ["RowPlace"]


class RowPlace:
    """The lines that come before any value is read.

    index:   the C type that can hold every offset.
    partial: some threads have no row of their own; they repeat the last one without writing anything.
    """

    def __init__(self, share: RowShare, needs: RowNeeds) -> None:
        self.share, self.needs = share, needs
        kept, run = share.kept.strides, share.run.strides
        every = [(*kept[n], *run[n]) for n in kept]
        self.index = index_type(reach_of((*share.kept.extents, *share.run.extents), *every))
        beside = share.kept.inner % (share.x * share.width) if share.across else share.kept.elements % share.y
        self.partial = beside != 0

    def live(self, condition: str) -> str:
        """Return a condition that is true for threads that have a row of their own."""
        return f"live && {condition}" if self.partial else condition

    def lines(self) -> list[str]:
        """Return lines that compute the row of the thread."""
        share = self.share
        if share.across:
            columns = -(-share.kept.inner // (share.x * share.width))
            group, lines = "blockIdx.x", list[str]()
            if share.parts > 1:  # adjacent blocks read adjacent memory
                group = "group"
                lines.append(
                    f"const {self.index} part = blockIdx.x / {share.groups}, group = blockIdx.x % {share.groups};"
                )
                lines.append(f"const {self.index} begin = part * {share.share};")
            if share.kept.rows > 1:
                lines.append(f"const {self.index} row = {group if columns == 1 else f'{group} / {columns}'};")
            column = group if share.kept.rows == 1 else f"{group} % {columns}"
            first = f"{column} * {share.x} + " if columns > 1 else ""
            mine, name, many = f"{first}threadIdx.x", "c", share.kept.inner
            if share.width > 1:
                mine = f"({mine}) * {share.width}"
        else:
            block = "blockIdx.x" if share.parts == 1 else f"blockIdx.x / {share.parts}"
            mine = block if share.y == 1 else f"{block} * {share.y} + threadIdx.y"
            lines, name, many = [], "row", share.kept.elements
            if share.parts > 1:
                lines.append(
                    f"const {self.index} part = blockIdx.x % {share.parts}, begin = part * {share.share};"
                )
        if not self.partial:
            return [*lines, f"const {self.index} {name} = {mine};"]
        return [
            *lines,
            f"const {self.index} own = {mine};",
            f"const bool live = own < {many};",
            f"const {self.index} {name} = live ? own : {many - (share.width if share.across else 1)};",
        ]

    def bases(self) -> list[str]:
        """Return the start of each value of the thread's row."""
        kept, lines = self.share.kept, []
        for name in (*self.needs.inputs, *self.needs.results):
            entry = self.needs.inputs.get(name)
            if entry is not None and entry.operand == POSITION:
                continue
            base = f"in{entry.operand}" if entry is not None else f"out{name[1:]}"
            if self.share.across:
                where = offset_text(kept.extents[:-1], kept.strides[name][:-1]) if kept.rows > 1 else "0"
                step = kept.strides[name][-1]
                column = "0" if not step else "c" if step == 1 else f"c * {step}"
                terms = [t for t in (where, column) if t != "0"]
            else:
                where = offset_text(kept.extents, kept.strides[name]) if kept.elements > 1 else "0"
                terms = [t for t in (where,) if t != "0"]
            lines.append(f"auto *{name}_row = {' + '.join([base, *terms])};")
        return lines

    def packed(self, entry: Input) -> bool:
        """Return whether an operand is read a pack at a time."""
        return entry.operand != POSITION and self.share.run.strides[entry.name][-1] == 1

    def alignment(self) -> str:
        """Return a condition, tested once for all rows: every operand and result is aligned for packs. Empty if rows differ in that."""
        width, kept = self.share.width, self.share.kept
        if self.share.across or width == 1:
            return ""
        packed = [i.name for i in self.needs.plan.inputs if self.packed(i)]
        packed += [y for y in self.needs.full if self.share.run.strides[y][-1] == 1]
        steps = [s for n in packed for s in (*kept.strides[n], *self.share.run.strides[n][:-1])]
        if not packed or any(s % width for s in steps):
            return ""
        places = dict.fromkeys(
            f"in{self.needs.inputs[n].operand}" if n in self.needs.inputs else f"out{n[1:]}" for n in packed
        )
        return " && ".join(f"fits<{width}>({p})" for p in places)

    def whole(self, at: str) -> str:
        """Return whether a pack may move in one piece."""
        return "whole.value" if self.alignment() else f"fits<{self.share.width}>({at})"
