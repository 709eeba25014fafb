"""The rows of a thread on CUDA devices: which rows it owns, where their values begin, and whether vector loads are aligned."""

from __future__ import annotations

from ....codegen.loops.nest import offset_text
from ....codegen.loops.plans import POSITION, Input
from ...spec.row_plan import RowNeeds
from ..pointwise import index_type, reach_of
from .tiling import RowTiling

__all__ = ["RowAddresses"]


class RowAddresses:
    """The lines of a kernel body before any value is read.

    index:   the C type that can hold every offset.
    partial: whether some threads have no row of their own. They repeat the last row and store nothing, so that block reductions stay convergent.
    """

    def __init__(self, tiling: RowTiling, needs: RowNeeds) -> None:
        self.tiling, self.needs = tiling, needs
        kept, reduced = tiling.kept.strides, tiling.reduced.strides
        strides = [(*kept[n], *reduced[n]) for n in kept]
        self.index = index_type(reach_of((*tiling.kept.extents, *tiling.reduced.extents), *strides))
        rest = (
            tiling.kept.inner % (tiling.x * tiling.width)
            if tiling.across
            else tiling.kept.elements % tiling.y
        )
        self.partial = rest != 0

    def live(self, condition: str) -> str:
        """Return a condition that is true for threads that have a row of their own."""
        return f"live && {condition}" if self.partial else condition

    def lines(self) -> list[str]:
        """Return the lines that compute the index of the thread's row."""
        tiling = self.tiling
        if tiling.across:
            columns = -(-tiling.kept.inner // (tiling.x * tiling.width))
            group, lines = "blockIdx.x", list[str]()
            if tiling.splits > 1:  # adjacent blocks read adjacent memory
                group = "group"
                lines.append(
                    f"const {self.index} part = blockIdx.x / {tiling.groups}, group = blockIdx.x % {tiling.groups};"
                )
                lines.append(f"const {self.index} begin = part * {tiling.elements_per_split};")
            if tiling.kept.rows > 1:
                lines.append(f"const {self.index} row = {group if columns == 1 else f'{group} / {columns}'};")
            column = group if tiling.kept.rows == 1 else f"{group} % {columns}"
            block_start = f"{column} * {tiling.x} + " if columns > 1 else ""
            index, name, count = f"{block_start}threadIdx.x", "c", tiling.kept.inner
            if tiling.width > 1:
                index = f"({index}) * {tiling.width}"
        else:
            block = "blockIdx.x" if tiling.splits == 1 else f"blockIdx.x / {tiling.splits}"
            index = block if tiling.y == 1 else f"{block} * {tiling.y} + threadIdx.y"
            lines, name, count = [], "row", tiling.kept.elements
            if tiling.splits > 1:
                lines.append(
                    f"const {self.index} part = blockIdx.x % {tiling.splits}, begin = part * {tiling.elements_per_split};"
                )
        if not self.partial:
            return [*lines, f"const {self.index} {name} = {index};"]
        return [
            *lines,
            f"const {self.index} linear = {index};",
            f"const bool live = linear < {count};",
            f"const {self.index} {name} = live ? linear : {count - (tiling.width if tiling.across else 1)};",
        ]

    def bases(self) -> list[str]:
        """Return the lines that compute the address of each operand's and result's row."""
        kept, lines = self.tiling.kept, []
        for name in (*self.needs.inputs, *self.needs.results):
            entry = self.needs.inputs.get(name)
            if entry is not None and entry.operand == POSITION:
                continue
            base = f"in{entry.operand}" if entry is not None else f"out{name[1:]}"
            if self.tiling.across:
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
        """Return whether an operand is read in packs (vector loads along the row)."""
        return entry.operand != POSITION and self.tiling.reduced.strides[entry.name][-1] == 1

    def alignment(self) -> str:
        """Return a condition that every operand and result is aligned for vector loads, tested once for all rows.

        It is empty if the alignment differs from row to row.
        """
        width, kept = self.tiling.width, self.tiling.kept
        if self.tiling.across or width == 1:
            return ""
        packed = [i.name for i in self.needs.plan.inputs if self.packed(i)]
        packed += [y for y in self.needs.element_results if self.tiling.reduced.strides[y][-1] == 1]
        row_steps = [s for n in packed for s in (*kept.strides[n], *self.tiling.reduced.strides[n][:-1])]
        if not packed or any(s % width for s in row_steps):
            return ""
        pointers = dict.fromkeys(
            f"in{self.needs.inputs[n].operand}" if n in self.needs.inputs else f"out{n[1:]}" for n in packed
        )
        return " && ".join(f"fits<{width}>({p})" for p in pointers)

    def whole(self, at: str) -> str:
        """Return the condition that a pack moves in one vector access."""
        return "aligned.value" if self.alignment() else f"fits<{self.tiling.width}>({at})"
