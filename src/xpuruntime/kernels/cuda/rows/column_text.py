"""The text of loops over adjacent rows (across, see ``rows``), several of them per thread.

One 16-bit element per thread is too narrow to use the full memory bandwidth. The formulas have one pass, and their results are of rows as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence

from ....codegen.expr.terms import compute_type
from ....codegen.loops.nest import Nest, indented
from ....codegen.loops.plans import POSITION, LoopPlan
from ...spec.row_plan import RowOutput, neutral_of
from .parts import one_pass, partial_of, shared_parts
from .text import RowText

__all__ = ["ColumnText", "column_width"]

LANE_BYTES = 4
"""What a thread reads of a line at least, where columns allow it."""


def column_width(plan: LoopPlan, outputs: Sequence[RowOutput], kept: Nest, run: Nest) -> int:
    """Return the adjacent rows of one thread; 1 if the formula or the layout of its operands does not allow more."""
    if any(any(o.strides[d] for d in plan.reduced) for o in outputs) or not one_pass(plan):
        return 1
    read = [i for i in plan.inputs if i.operand != POSITION and any(run.strides[i.name])]
    packed = [i for i in read if kept.strides[i.name][-1] == 1]
    others = [i for i in plan.inputs if i not in packed and kept.strides[i.name][-1]]
    if not packed or others:
        return 1
    width = max(1, LANE_BYTES * 8 // max(max(i.dtype.bits, 8) for i in packed))
    steps = [s for i in packed for s in (*kept.strides[i.name][:-1], *run.strides[i.name])]
    while width > 1 and (kept.inner % width or any(s % width for s in steps)):
        width //= 2
    return width


class ColumnText(RowText):
    """The text of the body of one kernel: an accumulator per row of a thread, then each row's result."""

    def body(self) -> list[str]:
        share, made = self.share, partial_of(self.plan)
        lines = ["constexpr int N = 1;", f"__shared__ uint64_t room[{share.x * share.y * share.width}];"]
        lines += [*self.place.lines(), *self.place.bases(), *self.still(), *self.row_level(0)]
        rest = []
        for o in made:
            start = f"({compute_type(o.dtype)})({neutral_of(o)})"
            rest.append(f"{compute_type(o.dtype)} {o.name}_of[{share.width}];  // {o.op}")
            rest += self._each([f"{o.name}_of[u] = {start};"])
        rest += self._lines()
        rest += [self._joined(o.name, o.op) for o in made]
        if share.parts > 1:
            rest += self._over_parts()
        ends = [f"const {compute_type(o.dtype)} {o.name} = {o.name}_of[u];" for o in made] + self.row_level(1)
        for y, output in self.needs.results.items():
            step = share.kept.strides[y][-1]
            ends.append(f"store<N>({y}_row + u * {step}, {self.converted(output)});")
        rest += [f"if ({self.place.live('threadIdx.y == 0')}) {{", *indented(self._each(ends)), "}"]
        packed = [n for n, i in self.needs.inputs.items() if self._side_by_side(n) and i.operand != POSITION]
        asked = " && ".join(
            dict.fromkeys(f"fits<{share.width}>(in{self.needs.inputs[n].operand})" for n in packed)
        )
        return [
            *lines,
            "const auto work = [&](auto whole) {  // whole: packs move in one piece",
            *indented(rest),
            "};",
            f"if ({asked}) work(yes());",
            "else work(no());",
        ]

    def _side_by_side(self, name: str) -> bool:
        return name in self.needs.moving and self.share.kept.strides[name][-1] == 1

    def _each(self, body: Sequence[str]) -> list[str]:
        """Return the loop over a thread's rows."""
        return ["#pragma unroll", f"for (int u = 0; u < {self.share.width}; ++u) {{", *indented(body), "}"]

    def _joined(self, name: str, op: str) -> str:
        return f"column_reduce_n<{self.share.x}, {self.share.y}>({name}_of, {op}_of(), room);"

    def _lines(self) -> list[str]:
        """Return the loop along the rows, one element of each at a time."""
        made = partial_of(self.plan)
        names = [str(o.operands[0]) for o in made]
        outside, inside = [], []
        for name in self.needs.closure(names, set()):
            entry = self.needs.inputs.get(name)
            if entry is None:
                inside.append(self.statement(self.needs.operations[name]))
            elif self._side_by_side(name):
                at = f"{name}_row + {self.offset(name, 'r')}"
                outside.append(
                    f"const auto {name}_of = decoded(fetch<{self.share.width}>({at}, whole.value));"
                )
                inside.append(f"const auto {name} = {name}_of.at[u];")
            else:
                outside.append(f"const {compute_type(entry.dtype)} {name} = {self.element(entry, 'r')};")
        inside += [f"{o.name}_of[u] = {self.step(o, f'{o.name}_of[u]')};" for o in made]
        return self.down(names, [*outside, *self._each(inside)])

    def _over_parts(self) -> list[str]:
        """Return the lines that combine the partial results of blocks that share rows; the last block to finish continues with all of it."""
        made, parts = partial_of(self.plan), self.share.parts
        lines = shared_parts(self, self._each)
        for o in made:
            kind = compute_type(o.dtype)
            at = f"{o.name}_parts + s * {self.share.kept.elements} + u"
            one = [
                f"{kind} all = ({kind})({neutral_of(o)});",
                f"for (int s = threadIdx.y; s < {parts}; s += {self.share.y}) all = {o.op}_of()(all, ({kind})ld_cg({at}));",
                f"{o.name}_of[u] = all;",
            ]
            lines += [*self._each(one), self._joined(o.name, o.op)]
        return lines
