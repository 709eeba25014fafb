"""The text of loops over rows on CUDA devices (see ``rows``).

A formula takes as many passes over the row as its reductions depend on each other. Operands that a later pass reads again, and values
that are dear to compute, wait in registers where a thread's share of a row is small enough.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...codegen.expr_terms import STORAGE, compute_type
from ...codegen.nest import indented, offset_text
from ...codegen.plans import CONSTANT, POSITION, Input, Operation
from ...types import DType
from ..row_plan import DEAR, Output, neutral_of
from .pointwise import index_type, reach_of, statement
from .row_parts import joined_parts
from .row_share import RowShare

__all__ = ["RowText"]

_KEPT = 64
"""Registers of a thread that may hold what later passes need, and elements up to which its loop is unrolled."""
_UNROLLED = 4
"""Turns of longer loops whose reads go out together."""
_UNDER_WAY = 32
"""Bytes that a thread reads at once across rows: with every thread of a multiprocessor, twice what covers the memory's latency."""
_NARROW = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32)


class RowText:
    """Writes the body of one kernel."""

    def __init__(self, share: RowShare) -> None:
        self.share, self.plan = share, share.plan
        self.parts: set[str] = set()
        self.inputs = {i.name: i for i in self.plan.inputs}
        self.operations = {o.name: o for o in self.plan.operations}
        self.results = {f"y{i}": o for i, o in enumerate(share.outputs)}
        self.moving = {i.name for i in self.plan.inputs if any(share.run.strides[i.name])}
        self.passes = dict.fromkeys(self.inputs, 0)
        for o in self.plan.operations:
            names = [n for n in o.operands if isinstance(n, str)]
            self.passes[o.name] = max((self.passes[n] for n in names), default=0) + o.reduces
            if not o.reduces and any(n in self.moving for n in names):
                self.moving.add(o.name)
        reach = reach_of((*share.kept.extents, *share.run.extents), *self._all_strides())
        self.index = index_type(reach)
        self.wanted = self._wanted()
        self.kept = self._choose_kept()

    def _all_strides(self) -> list[tuple[int, ...]]:
        kept, run = self.share.kept.strides, self.share.run.strides
        return [(*kept[n], *run[n]) for n in kept]

    # ── what is needed when ──

    def _full(self) -> list[str]:
        """Results with a value per element of the row."""
        return [y for y in self.results if any(self.share.run.strides[y])]

    def _reductions(self, at: int) -> list[Operation]:
        return [o for o in self.plan.operations if o.reduces and self.passes[o.name] == at + 1]

    def _wanted(self) -> list[list[str]]:
        """Per pass the values that it needs at every element; the last pass writes the results."""
        last = max((self.passes[o.name] for o in self.plan.operations if o.reduces), default=0)
        passes = [[str(o.operands[0]) for o in self._reductions(at)] for at in range(last)]
        return [*passes, [self.results[y].value for y in self._full()]]

    def closure(self, names: Sequence[str], stop: set[str]) -> list[str]:
        """The moving values that these need, in order; what waits already is not gone behind."""
        seen: set[str] = set()

        def visit(name: str) -> None:
            if name in seen or name not in self.moving:
                return
            if name not in stop and name in self.operations:
                for operand in self.operations[name].operands:
                    if isinstance(operand, str):
                        visit(operand)
            seen.add(name)

        for name in names:
            visit(name)
        order = [*self.inputs, *self.operations]
        return sorted(seen, key=order.index)

    def _choose_kept(self) -> set[str]:
        """Operands that are read side by side, then dear values, of several passes each, as far as registers go."""
        share = self.share
        if share.across or share.turns * share.width > _KEPT:
            return set()
        uses: dict[str, int] = {}
        for names in self.wanted:
            for name in self.closure(names, stop=set()):
                uses[name] = uses.get(name, 0) + 1
        dear = [o for o in self.plan.operations if not o.reduces and o.op != CONSTANT and self._dear(o)]
        packed = [i for i in self.plan.inputs if self._packed(i)]
        kept: set[str] = set()
        left = _KEPT
        candidates: list[Input | Operation] = [*packed, *dear]
        for entry in candidates:
            bits = entry.dtype.bits if isinstance(entry, Input) else max(entry.dtype.bits, 32)
            size = share.turns * max(1, share.width * bits // 32)
            if uses.get(entry.name, 0) > 1 and size <= left:
                kept.add(entry.name)
                left -= size
        return kept

    def _dear(self, o: Operation) -> bool:
        return o.name in self.moving and bool(DEAR & statement(self.plan, o)[1])

    def _packed(self, entry: Input) -> bool:
        """Whether an operand is read a pack at a time."""
        return entry.operand != POSITION and self.share.run.strides[entry.name][-1] == 1

    # ── the body ──

    def body(self) -> list[str]:
        share = self.share
        wide = share.y > 1 if share.across else share.x > 32
        room = share.x * share.y if share.across else share.x // 32
        lines = ["constexpr int N = 1;"]
        if wide:
            lines.append(f"__shared__ uint64_t room[{room}];")
        lines += [*self.place(), *self.bases(), *self.still()]
        rest = self.row_level(0)
        rest += [self._waiting(n) for n in sorted(self.kept)]
        ready: set[str] = set()
        for at, names in enumerate(self.wanted[:-1]):
            rest += self._pass(at, names, ready)
            if share.parts == 1:
                rest += self.row_level(at + 1)
        if share.parts > 1:
            rest += joined_parts(self)
        if self._full():
            rest += self._loop(self.wanted[-1], ready, [], writes=True)
        ones = [y for y in self.results if y not in self._full()]
        if ones:
            first = "threadIdx.y" if share.across else "threadIdx.x"
            stores = [f"store<N>({y}_row, {self.converted(self.results[y])});" for y in ones]
            rest += [f"if ({self.live(f'{first} == 0')}) {{", *indented(stores), "}"]
        asked = self._alignment()
        if not asked:
            return [*lines, *rest]
        return [
            *lines,
            "const auto work = [&](auto whole) {  // whole: packs move in one piece",
            *indented(rest),
            "};",
            f"if ({asked}) work(yes());",
            "else work(no());",
        ]

    def still(self) -> list[str]:
        """Operands of the row as a whole."""
        return [
            f"const {compute_type(i.dtype)} {i.name} = "
            + (f"({STORAGE[i.dtype]})0;" if i.operand == POSITION else f"load<N>({i.name}_row);")
            for i in self.plan.inputs
            if i.name not in self.moving
        ]

    def _alignment(self) -> str:
        """Asked once for all rows: whether those of every operand and result begin where packs may. Empty where rows differ in that."""
        width, kept = self.share.width, self.share.kept
        if self.share.across or width == 1:
            return ""
        packed = [i.name for i in self.plan.inputs if self._packed(i)]
        packed += [y for y in self._full() if self.share.run.strides[y][-1] == 1]
        steps = [s for n in packed for s in (*kept.strides[n], *self.share.run.strides[n][:-1])]
        if not packed or any(s % width for s in steps):
            return ""
        places = dict.fromkeys(
            f"in{self.inputs[n].operand}" if n in self.inputs else f"out{n[1:]}" for n in packed
        )
        return " && ".join(f"fits<{width}>({p})" for p in places)

    def _whole(self, at: str) -> str:
        """Whether a pack may move in one piece."""
        return "whole.value" if self._alignment() else f"fits<{self.share.width}>({at})"

    def _partial(self) -> bool:
        """Whether some threads have no row of their own; they work on the last one, and write nothing."""
        share = self.share
        if share.across:
            return share.kept.inner % (share.x * share.width) != 0
        return share.kept.elements % share.y != 0

    def live(self, condition: str) -> str:
        """A condition, of threads that have a row of their own."""
        return f"live && {condition}" if self._partial() else condition

    def place(self) -> list[str]:
        """Which row the thread works on."""
        share = self.share
        if share.across:
            columns = -(-share.kept.inner // (share.x * share.width))
            group, lines = "blockIdx.x", list[str]()
            if share.parts > 1:  # blocks that lie side by side read side by side
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
        if not self._partial():
            return [*lines, f"const {self.index} {name} = {mine};"]
        return [
            *lines,
            f"const {self.index} own = {mine};",
            f"const bool live = own < {many};",
            f"const {self.index} {name} = live ? own : {many - (share.width if share.across else 1)};",
        ]

    def bases(self) -> list[str]:
        """Where each value of the thread's row starts."""
        kept, lines = self.share.kept, []
        for name in (*self.inputs, *self.results):
            entry = self.inputs.get(name)
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

    def row_level(self, at: int) -> list[str]:
        """Operations of the row as a whole that can be computed after so many passes."""
        still = [o for o in self.plan.operations if not o.reduces and o.name not in self.moving]
        return [self.statement(o) for o in still if self.passes[o.name] == at]

    def statement(self, o: Operation) -> str:
        """The line of an operation."""
        line, needed = statement(self.plan, o)
        self.parts |= needed
        return line

    def _waiting(self, name: str) -> str:
        """Where a value of several passes waits."""
        share, dtype = self.share, self.plan.spec(name)[0]
        if name in self.inputs:
            return f"pack<{STORAGE[dtype]}, {share.width}> {name}_kept[{share.turns}];"
        return f"{compute_type(dtype)} {name}_kept[{share.turns}][{share.width}];"

    # ── passes ──

    def _pass(self, at: int, names: list[str], ready: set[str]) -> list[str]:
        """One pass over the row: its reductions, from their first values to one value a row."""
        share, lines, steps, after = self.share, list[str](), list[str](), list[str]()
        for o in self._reductions(at):
            kind = compute_type(o.dtype)
            lines.append(f"{kind} {o.name} = ({kind})({neutral_of(o)});  // {o.op}")
            steps.append(f"{o.name} = {self.step(o, o.name)};")
            if share.across:
                if share.y > 1:
                    after.append(
                        f"{o.name} = joined_column<{share.x}, {share.y}>({o.name}, {o.op}_of(), room);"
                    )
            elif share.x > 32:
                after.append(f"{o.name} = joined_block<{share.x // 32}>({o.name}, {o.op}_of(), room);")
            elif share.x > 1:
                after.append(f"{o.name} = joined_lanes<{share.x}>({o.name}, {o.op}_of());")
        return [*lines, *self._loop(names, ready, steps, writes=False), *after]

    def step(self, o: Operation, have: str) -> str:
        """What a reduction is after one more element, ``have`` before."""
        kind, operand = compute_type(o.dtype), str(o.operands[0])
        known = self.plan.spec(operand)[0]
        same = known is o.dtype or (known in _NARROW and o.dtype in _NARROW)
        term = operand if same else f"convert<{STORAGE[o.dtype]}>({operand})"
        return f"{o.op}_of()({have}, ({kind})({term}))"

    def _loop(self, names: list[str], ready: set[str], steps: list[str], *, writes: bool) -> list[str]:
        """The loops over the thread's share of a row."""
        return (self._across if self.share.across else self._along)(names, ready, steps, writes)

    def _across(self, names: list[str], ready: set[str], steps: list[str], writes: bool) -> list[str]:
        body = []
        for name in self.closure(names, ready):
            entry = self.inputs.get(name)
            if entry is None:
                body.append(self.statement(self.operations[name]))
            else:
                body.append(f"const {compute_type(entry.dtype)} {name} = {self.element(entry, 'r')};")
        body += steps
        stores = [
            f"store<N>({o}_row + {self.offset(o, 'r')}, {self.converted(self.results[o])});"
            for o in self._full()
            if writes
        ]
        if stores and self._partial():
            body += ["if (live) {", *indented(stores), "}"]
        else:
            body += stores
        return self.down(names, body)

    def down(self, names: list[str], body: list[str]) -> list[str]:
        """The loop over elements ``r`` of a thread's rows, across; ``names``: what it needs."""
        share, run, y = self.share, self.share.run, self.share.y
        first = " + ".join([*["begin"] * (share.parts > 1), *["threadIdx.y"] * (y > 1)]) or "0"
        pragma = f"#pragma unroll {self._together(names)}"
        if share.exact:
            many = run.elements // (share.parts * y)
            place = f"const {self.index} r = {first} + k * {y};"
            return [pragma, f"for (int k = 0; k < {many}; ++k) {{", *indented([place, *body]), "}"]
        end = str(run.elements)
        if share.parts > 1:
            end = f"smaller<{self.index}>(begin + {share.share}, {end})"
        head = f"for ({self.index} r = {first}, end = {end}; r < end; r += {y}) {{"
        return [pragma, head, *indented(body), "}"]

    def _together(self, names: list[str]) -> int:
        """Elements that a thread reads at once where rows lie side by side."""
        read = [self.inputs[n] for n in self.closure(names, stop=set()) if n in self.inputs]
        size = sum(max(1, i.dtype.bits // 8) for i in read if i.operand != POSITION)
        return max(_UNROLLED, min(_UNDER_WAY // max(size * self.share.width, 2), _UNDER_WAY // 2))

    def offset(self, name: str, index: str) -> str:
        return offset_text(self.share.run.extents, self.share.run.strides[name], index)

    def element(self, entry: Input, index: str) -> str:
        """One element of an operand along the row."""
        if entry.operand == POSITION:
            return f"({STORAGE[entry.dtype]})({self.offset(entry.name, index)})"
        where = self.offset(entry.name, index)
        return f"load<N>({entry.name}_row{'' if where == '0' else f' + {where}'})"

    def _along(self, names: list[str], ready: set[str], steps: list[str], writes: bool) -> list[str]:
        share, width = self.share, self.share.width
        outside, inside, after = list[str](), list[str](), list[str]()
        for name in self.closure(names, ready):
            entry, kept = self.inputs.get(name), name in self.kept
            kind = compute_type(self.plan.spec(name)[0])
            if entry is None:
                if name in ready:
                    inside.append(f"const {kind} {name} = {name}_kept[k][u];")
                    continue
                inside.append(self.statement(self.operations[name]))
                if kept:
                    inside.append(f"{name}_kept[k][u] = {name};")
            elif self._packed(entry):
                pack = f"{name}_kept[k]" if kept else f"{name}_of"
                if name not in ready:
                    at = f"{name}_row + {self.offset(name, 'i')}"
                    declared = f"{pack} = " if kept else f"const auto {pack} = "
                    outside.append(f"{declared}fetch<{width}>({at}, {self._whole(at)});")
                inside.append(f"const {kind} {name} = decode<N>({pack}.at[u], {name}_row);")
            else:
                inside.append(f"const {kind} {name} = {self.element(entry, '(i + u)')};")
        ready |= {n for n in self.closure(names, stop=set()) if n in self.kept}
        inside += steps
        for y in self._full() if writes else ():
            value, dtype = self.converted(self.results[y]), self.results[y].spec.dtype
            if share.run.strides[y][-1] == 1:
                outside.append(f"pack<{STORAGE[dtype]}, {width}> {y}_of;")
                inside.append(f"{y}_of.at[u] = encode<N>({value}, (const {STORAGE[dtype]} *)0);")
                at = f"{y}_row + {self.offset(y, 'i')}"
                put = f"put<{width}>({at}, {y}_of, {self._whole(at)});"
            else:
                put = f"store<N>({y}_row + {self.offset(y, '(i + u)')}, {value});"
            put = f"if (live) {put}" if self._partial() else put
            (after if share.run.strides[y][-1] == 1 else inside).append(put)
        body = [*outside, "#pragma unroll", f"for (int u = 0; u < {width}; ++u) {{", *indented(inside), "}"]
        body += after
        if not share.exact:  # only the last turn may go beyond the row
            sure = f"k < {share.turns - 1} || " if share.parts == 1 and share.turns > 1 else ""
            body = [f"if ({sure}i < {share.run.elements}) {{", *indented(body), "}"]
        lane = "threadIdx.x" if share.turns == 1 else f"k * {share.x} + threadIdx.x"
        if width > 1:
            lane = f"({lane}) * {width}" if share.turns > 1 else f"{lane} * {width}"
        place = f"const {self.index} i = {'begin + ' if share.parts > 1 else ''}{lane};"
        unroll = "#pragma unroll" if share.turns * width <= _KEPT else f"#pragma unroll {_UNROLLED}"
        return [
            *([unroll] if share.turns > 1 else []),
            f"for (int k = 0; k < {share.turns}; ++k) {{",
            *indented([place, *body]),
            "}",
        ]

    def converted(self, output: Output) -> str:
        """A result in its own dtype; narrow floats are rounded by the store."""
        have, want = self.plan.spec(output.value)[0], output.spec.dtype
        if have is want or (have in _NARROW and want in _NARROW):
            return output.value
        return f"convert<{STORAGE[want]}>({output.value})"
