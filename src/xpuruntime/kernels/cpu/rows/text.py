"""The text of row reductions on CPUs (see ``loops``): passes along a row, or across vectors of rows."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ....codegen.expr.terms import compute_type, element_type
from ....codegen.loops.combine import neutral_of
from ....codegen.loops.nest import Nest, indented, offset_text, task_loops
from ....codegen.loops.plans import POSITION, Operation
from .values import UNROLL, RowLoops, RowValues

__all__ = ["CpuRowText"]

_SUM_BLOCK = 8192
"""Elements of a float32 partial sum, after which it is added to a double. So the error of a sum is that of a short one."""


class CpuRowText:
    """The text of a kernel body. ``values``: the lines of its values."""

    def __init__(self, rows: RowLoops) -> None:
        self.rows, self.plan = rows, rows.plan
        self.values = RowValues(rows)
        self.needs = self.values.needs

    def body(self) -> list[str]:
        """Return the lines of the function's body."""
        rows = self.rows
        lines = self._bases(rows.kept.extents[:-1] if rows.across else rows.kept.extents, rows.across)
        inner = self._row()
        if not rows.across:
            flat = Nest((rows.kept.elements, 1), {})
            loops = task_loops(flat, rows.tasks, [*lines, *inner], f"rows of {rows.run.elements}")
            return [*self.values.declarations, *loops]
        low, high = ("first", "last") if rows.tasks.chunk < rows.kept.inner else ("0", str(rows.kept.inner))
        block = [
            *lines,
            "const auto columns = [&](auto many, int64_t from, auto... n) __attribute__((always_inline)) {",
            "  constexpr int U = decltype(many)::value;  // unrolled vectors",
            *indented(inner),
            "};",
            f"int64_t c = {low};",
        ]
        if rows.kept.inner >= UNROLL * rows.lanes:
            block.append(
                f"for (; c + {UNROLL} * N <= {high}; c += {UNROLL} * N) columns(width<{UNROLL}>{{}}, c);"
            )
        block.append(f"for (; c + N <= {high}; c += N) columns(width<1>{{}}, c);")
        if rows.kept.inner % rows.lanes:
            block.append(f"if (c < {high}) columns(width<1>{{}}, c, {high} - c);")
        return [
            *self.values.declarations,
            *task_loops(rows.kept, rows.tasks, block, f"times {rows.kept.inner} rows"),
        ]

    def _bases(self, extents: tuple[int, ...], across: bool) -> list[str]:
        """Return the lines that compute where each value of a row begins."""
        lines = []
        for name in (*self.needs.inputs, *self.needs.results):
            if name in self.needs.inputs and self.needs.inputs[name].operand == POSITION:
                lines.append(f"const int64_t {name}_row = 0;")
                continue
            steps = self.rows.kept.strides[name]
            where = offset_text(extents, steps[:-1] if across else steps)
            base = f"x{self.needs.inputs[name].operand}" if name in self.needs.inputs else name
            lines.append(f"const auto {name}_row = {base}{'' if where == '0' else f' + {where}'};")
        return lines

    def _row(self) -> list[str]:
        """Return the text of one row (across: of U vectors of rows): row constants, passes, results."""
        needs, values = self.needs, self.values
        row_inputs = [e for e in self.plan.inputs if e.name not in needs.varying]
        lines = [f"{values.type(n)} {n}_of[U];" for n in self._row_names()] if self.rows.across else []
        declared = "" if self.rows.across else "const {} "
        loads = [
            f"{declared.format(compute_type(e.dtype))}{e.name} = {values.row_operands(e)};"
            for e in row_inputs
        ]
        lines += self._each([*loads, *values.row_level(0)])
        ready: set[str] = set()
        for at, names in enumerate(needs.values_by_pass[:-1]):
            lines += self._pass(at, names, ready)
            lines += self._each(values.row_level(at + 1))
        if needs.element_results:
            lines += self._loop(
                needs.values_by_pass[-1], ready, [values.store(y) for y in needs.element_results], {}
            )
        return lines + self._each(
            [values.store_row(y) for y in needs.results if y not in needs.element_results]
        )

    def _row_names(self) -> list[str]:
        """Return the names of values that are constant along a row."""
        names = [*self.needs.inputs, *self.needs.operations]
        return [n for n in names if n not in self.needs.varying]

    def _each(self, lines: list[str]) -> list[str]:
        """Return the lines in a loop over the U vectors of rows, with row constants in arrays (across). Along, return them unchanged."""
        if not self.rows.across or not lines:
            return lines
        text = "\n".join(lines)
        used = set(re.findall(r"\w+", text))
        names = [n for n in self._row_names() if n in used]
        index = ["const int64_t c = from + u * N;"] if re.search(r"\bc\b", text) else []
        aliases = [f"auto &{name} = {name}_of[u];" for name in names]
        body = indented([*index, *aliases, *lines])
        return ["repeat<U>([&](int u) __attribute__((always_inline)) {", *body, "});"]

    # ── passes ──

    def _pass(self, at: int, names: list[str], ready: set[str]) -> list[str]:
        """Return one pass over the row: each reduction from its initial value to one value per row."""
        reductions = self.needs.reductions(at)
        lines, initial, steps, after = list[str](), list[str](), list[str](), list[str]()
        ends: dict[str, list[str]] = {"before": [], "after": []}
        for o in reductions:
            kind, operand = compute_type(o.dtype), str(o.operands[0])
            term = self.values.converted(operand, o.dtype)
            neutral = f"splat<{kind}>({neutral_of(o)})"
            if self.rows.across:
                initial.append(f"{o.name} = {neutral};  // {o.op}")
                if self._long(o):  # in blocks
                    lines.append(f"{kind} {o.name}_block[U];")
                    initial.append(f"{o.name}_block[u] = {neutral};")
                    steps.append(f"{o.name}_block[u] = {o.name}_block[u] + {term};")
                    flush = f"{o.name} = {o.name} + {o.name}_block[u], {o.name}_block[u] = {neutral};"
                    steps.append(f"if ((r & 127) == 127) {flush}")
                    after.append(f"{o.name} = {o.name} + {o.name}_block[u];")
                else:
                    steps.append(f"{o.name} = {o.op}_of()({term}, {o.name});")
                continue
            reset = f"for (auto &part : {o.name}_part) part = {neutral};"
            steps.append(
                f"{o.name}_part[u] = {o.op}_of()(only<{kind}>({term}, {neutral}, n...), {o.name}_part[u]);"
            )
            joined = f"gathered({o.name}_part, {o.op}_of())"
            if self._long(o):
                lines.append(f"double {o.name}_all = 0;  // {o.op}, block by block")
                lines.append(f"{kind} {o.name}_part[{UNROLL}];")
                ends["before"].append(reset)
                ends["after"].append(f"{o.name}_all += {joined};")
                after.append(f"const {kind} {o.name} = splat<{kind}>(({element_type(o.dtype)}){o.name}_all);")
            else:
                lines += [f"{kind} {o.name}_part[{UNROLL}];  // {o.op}", reset]
                after.append(f"const {kind} {o.name} = splat<{kind}>({joined});")
        return [*lines, *self._each(initial), *self._loop(names, ready, steps, ends), *self._each(after)]

    def _long(self, o: Operation) -> bool:
        """Return whether a float sum is so long that it needs partial sums."""
        limit = 256 if self.rows.across else _SUM_BLOCK
        return o.op == "sum" and o.dtype.is_float and self.rows.run.elements > limit

    def _loop(
        self, names: list[str], ready: set[str], steps: list[str], ends: Mapping[str, list[str]]
    ) -> list[str]:
        """Return the loops over one row around ``steps``."""
        run, before, after = self.rows.run, ends.get("before", []), ends.get("after", [])
        bases = []
        moving = [n for n in (*self.needs.inputs, *self.needs.results) if any(run.strides[n])]
        elements = self.values.elements(names, ready)
        text = " ".join([*elements, *steps])
        for name in moving:
            if f"{name}_run" not in text:
                continue
            steps_of = run.strides[name] if self.rows.across else run.strides[name][:-1]
            extents = run.extents if self.rows.across else run.extents[:-1]
            where = offset_text(extents, steps_of, "r")
            bases.append(f"const auto {name}_run = {name}_row{'' if where == '0' else f' + {where}'};")
        if self.rows.across:
            body = self._each([*elements, *steps])
            return [f"for (int64_t r = 0; r < {run.elements}; ++r) {{", *indented([*bases, *body]), "}"]
        unrolled = any("[u]" in s for s in steps)
        call = "at(0, {i})" if unrolled else "at({i})"
        lines = [
            *bases,
            f"const auto at = [&]({'int u, ' if unrolled else ''}int64_t i, auto... n) __attribute__((always_inline)) {{",
            *indented([*elements, *steps]),
            "};",
        ]
        loops = self._vectors(run.inner, call, unrolled, before, after)
        body = [*lines, *loops]
        if run.rows == 1:
            return ["{", *indented(body), "}"]
        return [f"for (int64_t r = 0; r < {run.rows}; ++r) {{", *indented(body), "}"]

    def _vectors(
        self, inner: int, call: str, unrolled: bool, before: list[str], after: list[str]
    ) -> list[str]:
        """Return the loop of vectors along a row; with ``before`` and ``after``, in blocks of ``_SUM_BLOCK`` elements."""
        high, lanes = str(inner), self.rows.lanes
        lines = ["int64_t i = 0;"]
        blocks = bool(before) and inner > _SUM_BLOCK
        if blocks:
            high = "stop"
        loop = [*before]
        if unrolled and inner >= UNROLL * lanes:
            unrolled_calls = ", ".join(f"at({u}, i{f' + {u} * N' if u else ''})" for u in range(UNROLL))
            loop.append(f"for (; i + {UNROLL} * N <= {high}; i += {UNROLL} * N) {unrolled_calls};")
        loop.append(f"for (; i + N <= {high}; i += N) {call.format(i='i')};")
        if inner % lanes:
            tail_call = call.format(i="i")[:-1] + f", {high} - i)"
            loop.append(f"if (i < {high}) {tail_call}{', i = ' + high if blocks else ''};")
        loop += after
        if not blocks:
            return [*lines, *loop]
        limit = f"i + {_SUM_BLOCK} < {inner} ? i + {_SUM_BLOCK} : {inner}"
        return [
            *lines,
            f"while (i < {inner}) {{",
            *indented([f"const int64_t stop = {limit};", *loop]),
            "}",
        ]
