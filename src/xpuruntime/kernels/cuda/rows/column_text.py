"""The text of reductions across adjacent rows, when each thread owns several of them (see ``loops``).

A warp that loads one 16-bit element per thread uses only half of each memory transaction. Here a thread loads ``width`` adjacent rows at
once and keeps one accumulator for each. This needs a formula with one pass whose results are one value per row.
"""

from __future__ import annotations

from collections.abc import Sequence

from ....codegen.expr.terms import compute_type
from ....codegen.loops.combine import neutral_of
from ....codegen.loops.nest import Nest, indented
from ....codegen.loops.plans import POSITION, LoopPlan
from ...spec.row_plan import RowOutput
from .splits import one_pass, reductions_of, stored_splits
from .text import RowText

__all__ = ["ColumnText", "column_width"]

LANE_BYTES = 4
"""Bytes that a thread loads at once where the layout allows it: 32 threads then read whole 128-byte lines."""


def column_width(plan: LoopPlan, outputs: Sequence[RowOutput], kept: Nest, reduced: Nest) -> int:
    """Return the number of adjacent rows per thread; 1 if the formula or the operands' layout does not allow more."""
    if any(any(o.strides[d] for d in plan.reduced) for o in outputs) or not one_pass(plan):
        return 1
    read = [i for i in plan.inputs if i.operand != POSITION and any(reduced.strides[i.name])]
    packed = [i for i in read if kept.strides[i.name][-1] == 1]
    others = [i for i in plan.inputs if i not in packed and kept.strides[i.name][-1]]
    if not packed or others:
        return 1
    width = max(1, LANE_BYTES * 8 // max(max(i.dtype.bits, 8) for i in packed))
    steps = [s for i in packed for s in (*kept.strides[i.name][:-1], *reduced.strides[i.name])]
    while width > 1 and (kept.inner % width or any(s % width for s in steps)):
        width //= 2
    return width


class ColumnText(RowText):
    """The text of a kernel body: one accumulator per row of a thread, then the epilogue of each row."""

    def body(self) -> list[str]:
        tiling, reductions = self.tiling, reductions_of(self.plan)
        lines = ["constexpr int N = 1;", f"__shared__ uint64_t smem[{tiling.x * tiling.y * tiling.width}];"]
        lines += [*self.addresses.lines(), *self.addresses.bases(), *self.row_operands(), *self.row_level(0)]
        body = []
        for o in reductions:
            start = f"({compute_type(o.dtype)})({neutral_of(o)})"
            body.append(f"{compute_type(o.dtype)} {o.name}_of[{tiling.width}];  // {o.op}")
            body += self._each([f"{o.name}_of[u] = {start};"])
        body += self._lines()
        body += [self._joined(o.name, o.op) for o in reductions]
        if tiling.splits > 1:
            body += self._over_splits()
        epilogue = [
            f"const {compute_type(o.dtype)} {o.name} = {o.name}_of[u];" for o in reductions
        ] + self.row_level(1)
        for y, output in self.needs.results.items():
            step = tiling.kept.strides[y][-1]
            epilogue.append(f"store<N>({y}_row + u * {step}, {self.converted(output)});")
        body += [f"if ({self.addresses.live('threadIdx.y == 0')}) {{", *indented(self._each(epilogue)), "}"]
        packed = [n for n, i in self.needs.inputs.items() if self._is_packed(n) and i.operand != POSITION]
        aligned = " && ".join(
            dict.fromkeys(f"fits<{tiling.width}>(in{self.needs.inputs[n].operand})" for n in packed)
        )
        return [
            *lines,
            "const auto work = [&](auto aligned) {  // aligned: vectorized loads and stores",
            *indented(body),
            "};",
            f"if ({aligned}) work(true_type());",
            "else work(false_type());",
        ]

    def _is_packed(self, name: str) -> bool:
        """Return whether adjacent rows of an operand are contiguous, so that one load reads all of a thread's rows."""
        return name in self.needs.varying and self.tiling.kept.strides[name][-1] == 1

    def _each(self, body: Sequence[str]) -> list[str]:
        """Return the unrolled loop over a thread's rows."""
        return ["#pragma unroll", f"for (int u = 0; u < {self.tiling.width}; ++u) {{", *indented(body), "}"]

    def _joined(self, name: str, op: str) -> str:
        return f"column_reduce_n<{self.tiling.x}, {self.tiling.y}>({name}_of, {op}_of(), smem);"

    def _lines(self) -> list[str]:
        """Return the loop along the rows. Each iteration accumulates one element of every row of the thread."""
        reductions = reductions_of(self.plan)
        names = [str(o.operands[0]) for o in reductions]
        outside, inside = [], []
        for name in self.needs.closure(names, set()):
            entry = self.needs.inputs.get(name)
            if entry is None:
                inside.append(self.statement(self.needs.operations[name]))
            elif self._is_packed(name):
                at = f"{name}_row + {self.offset(name, 'r')}"
                outside.append(
                    f"const auto {name}_of = decoded(fetch<{self.tiling.width}>({at}, aligned.value));"
                )
                inside.append(f"const auto {name} = {name}_of.at[u];")
            else:
                outside.append(f"const {compute_type(entry.dtype)} {name} = {self.element(entry, 'r')};")
        inside += [f"{o.name}_of[u] = {self.step(o, f'{o.name}_of[u]')};" for o in reductions]
        return self.loop_across(names, [*outside, *self._each(inside)])

    def _over_splits(self) -> list[str]:
        """Return the lines that combine the partial results of the blocks of a group; only the last block to finish runs them."""
        reductions, splits = reductions_of(self.plan), self.tiling.splits
        lines = stored_splits(self, self._each)
        for o in reductions:
            kind = compute_type(o.dtype)
            at = f"{o.name}_parts + s * {self.tiling.kept.elements} + u"
            combine = [
                f"{kind} all = ({kind})({neutral_of(o)});",
                f"for (int s = threadIdx.y; s < {splits}; s += {self.tiling.y}) all = {o.op}_of()(all, ({kind})ld_cg({at}));",
                f"{o.name}_of[u] = all;",
            ]
            lines += [*self._each(combine), self._joined(o.name, o.op)]
        return lines
