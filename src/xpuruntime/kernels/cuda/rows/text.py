"""The text of loops over rows on CUDA devices (see ``rows``).

A formula takes as many passes over the row as its reductions depend on each other. Operands that a later pass reads again, and values
that are expensive to compute, are kept in registers where a thread's share of a row is small enough.
"""

from __future__ import annotations

from ....codegen.expr.terms import STORAGE, compute_type
from ....codegen.loops.nest import indented, offset_text
from ....codegen.loops.plans import CONSTANT, POSITION, Input, Operation
from ....types import DType
from ...spec.row_plan import DEAR, RowNeeds, RowOutput, neutral_of
from ..pointwise import statement
from .parts import joined_parts
from .place import RowPlace
from .share import RowShare

__all__ = ["RowText"]

_KEPT = 64
"""Registers of a thread that may hold what later passes need, and elements up to which its loop is unrolled."""
_UNROLLED = 4
"""Turns of longer loops whose reads go out together."""
_UNDER_WAY = 32
"""Bytes that a thread reads at once across rows: with every thread of a multiprocessor, twice what covers the memory's latency."""
_NARROW = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32)


class RowText:
    """The text of the body of one kernel.

    needs: the formula's passes.
    place: the rows of the thread.
    parts: the parts of the prelude that it uses.
    """

    def __init__(self, share: RowShare) -> None:
        self.share, self.plan = share, share.plan
        self.parts: set[str] = set()
        self.needs = RowNeeds(share.plan, share.outputs, share.run)
        self.place = RowPlace(share, self.needs)
        self.kept = self._choose_kept()

    def _choose_kept(self) -> set[str]:
        """Return the values to keep: contiguous operands, then expensive values, of several passes each, as far as registers allow."""
        share = self.share
        if share.across or share.turns * share.width > _KEPT:
            return set()
        uses: dict[str, int] = {}
        for names in self.needs.wanted:
            for name in self.needs.closure(names, stop=set()):
                uses[name] = uses.get(name, 0) + 1
        dear = [o for o in self.plan.operations if not o.reduces and o.op != CONSTANT and self._dear(o)]
        packed = [i for i in self.plan.inputs if self.place.packed(i)]
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
        return o.name in self.needs.moving and bool(DEAR & statement(self.plan, o)[1])

    def _packed(self, entry: Input) -> bool:
        """Return whether an operand is read a pack at a time."""
        return entry.operand != POSITION and self.share.run.strides[entry.name][-1] == 1

    def body(self) -> list[str]:
        share = self.share
        wide = share.y > 1 if share.across else share.x > 32
        room = share.x * share.y if share.across else share.x // 32
        lines = ["constexpr int N = 1;"]
        if wide:
            lines.append(f"__shared__ uint64_t room[{room}];")
        lines += [*self.place.lines(), *self.place.bases(), *self.still()]
        rest = self.row_level(0)
        rest += [self._waiting(n) for n in sorted(self.kept)]
        ready: set[str] = set()
        for at, names in enumerate(self.needs.wanted[:-1]):
            rest += self._pass(at, names, ready)
            if share.parts == 1:
                rest += self.row_level(at + 1)
        if share.parts > 1:
            rest += joined_parts(self)
        if self.needs.full:
            rest += self._loop(self.needs.wanted[-1], ready, [], writes=True)
        ones = [y for y in self.needs.results if y not in self.needs.full]
        if ones:
            first = "threadIdx.y" if share.across else "threadIdx.x"
            stores = [f"store<N>({y}_row, {self.converted(self.needs.results[y])});" for y in ones]
            rest += [f"if ({self.place.live(f'{first} == 0')}) {{", *indented(stores), "}"]
        asked = self.place.alignment()
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
        """Return the operands of the row as a whole."""
        return [
            f"const {compute_type(i.dtype)} {i.name} = "
            + (f"({STORAGE[i.dtype]})0;" if i.operand == POSITION else f"load<N>({i.name}_row);")
            for i in self.plan.inputs
            if i.name not in self.needs.moving
        ]

    def row_level(self, at: int) -> list[str]:
        """Return the operations of the row as a whole that can be computed after so many passes."""
        return [self.statement(o) for o in self.needs.row_level(at)]

    def statement(self, o: Operation) -> str:
        """Return the line of an operation."""
        line, needed = statement(self.plan, o)
        self.parts |= needed
        return line

    def _waiting(self, name: str) -> str:
        """Return the register in which a value of several passes is kept."""
        share, dtype = self.share, self.plan.spec(name)[0]
        if name in self.needs.inputs:
            return f"pack<{STORAGE[dtype]}, {share.width}> {name}_kept[{share.turns}];"
        return f"{compute_type(dtype)} {name}_kept[{share.turns}][{share.width}];"

    # ── passes ──

    def _pass(self, at: int, names: list[str], ready: set[str]) -> list[str]:
        """Return one pass over the row: its reductions, from their first values to one value a row."""
        share, lines, steps, after = self.share, list[str](), list[str](), list[str]()
        for o in self.needs.reductions(at):
            kind = compute_type(o.dtype)
            lines.append(f"{kind} {o.name} = ({kind})({neutral_of(o)});  // {o.op}")
            steps.append(f"{o.name} = {self.step(o, o.name)};")
            if share.across:
                if share.y > 1:
                    after.append(
                        f"{o.name} = column_reduce<{share.x}, {share.y}>({o.name}, {o.op}_of(), room);"
                    )
            elif share.x > 32:
                after.append(f"{o.name} = block_reduce<{share.x // 32}>({o.name}, {o.op}_of(), room);")
            elif share.x > 1:
                after.append(f"{o.name} = warp_reduce<{share.x}>({o.name}, {o.op}_of());")
        return [*lines, *self._loop(names, ready, steps, writes=False), *after]

    def step(self, o: Operation, have: str) -> str:
        """Return the new value of a reduction after one more element; ``have`` is the old one."""
        kind, operand = compute_type(o.dtype), str(o.operands[0])
        known = self.plan.spec(operand)[0]
        same = known is o.dtype or (known in _NARROW and o.dtype in _NARROW)
        term = operand if same else f"convert<{STORAGE[o.dtype]}>({operand})"
        return f"{o.op}_of()({have}, ({kind})({term}))"

    def _loop(self, names: list[str], ready: set[str], steps: list[str], *, writes: bool) -> list[str]:
        """Return the loops over the thread's share of a row."""
        return (self._across if self.share.across else self._along)(names, ready, steps, writes)

    def _across(self, names: list[str], ready: set[str], steps: list[str], writes: bool) -> list[str]:
        body = []
        for name in self.needs.closure(names, ready):
            entry = self.needs.inputs.get(name)
            if entry is None:
                body.append(self.statement(self.needs.operations[name]))
            else:
                body.append(f"const {compute_type(entry.dtype)} {name} = {self.element(entry, 'r')};")
        body += steps
        stores = [
            f"store<N>({o}_row + {self.offset(o, 'r')}, {self.converted(self.needs.results[o])});"
            for o in self.needs.full
            if writes
        ]
        if stores and self.place.partial:
            body += ["if (live) {", *indented(stores), "}"]
        else:
            body += stores
        return self.down(names, body)

    def down(self, names: list[str], body: list[str]) -> list[str]:
        """Return the loop over elements ``r`` of a thread's rows, across; ``names``: the values that it needs."""
        share, run, y = self.share, self.share.run, self.share.y
        first = " + ".join([*["begin"] * (share.parts > 1), *["threadIdx.y"] * (y > 1)]) or "0"
        pragma = f"#pragma unroll {self._together(names)}"
        if share.exact:
            many = run.elements // (share.parts * y)
            place = f"const {self.place.index} r = {first} + k * {y};"
            return [pragma, f"for (int k = 0; k < {many}; ++k) {{", *indented([place, *body]), "}"]
        end = str(run.elements)
        if share.parts > 1:
            end = f"smaller<{self.place.index}>(begin + {share.share}, {end})"
        head = f"for ({self.place.index} r = {first}, end = {end}; r < end; r += {y}) {{"
        return [pragma, head, *indented(body), "}"]

    def _together(self, names: list[str]) -> int:
        """Return the elements that a thread reads at once where rows are adjacent."""
        read = [self.needs.inputs[n] for n in self.needs.closure(names, stop=set()) if n in self.needs.inputs]
        size = sum(max(1, i.dtype.bits // 8) for i in read if i.operand != POSITION)
        return max(_UNROLLED, min(_UNDER_WAY // max(size * self.share.width, 2), _UNDER_WAY // 2))

    def offset(self, name: str, index: str) -> str:
        return offset_text(self.share.run.extents, self.share.run.strides[name], index)

    def element(self, entry: Input, index: str) -> str:
        """Return one element of an operand along the row."""
        if entry.operand == POSITION:
            return f"({STORAGE[entry.dtype]})({self.offset(entry.name, index)})"
        where = self.offset(entry.name, index)
        return f"load<N>({entry.name}_row{'' if where == '0' else f' + {where}'})"

    def _along(self, names: list[str], ready: set[str], steps: list[str], writes: bool) -> list[str]:
        share, width = self.share, self.share.width
        outside, inside, after = list[str](), list[str](), list[str]()
        for name in self.needs.closure(names, ready):
            entry, kept = self.needs.inputs.get(name), name in self.kept
            kind = compute_type(self.plan.spec(name)[0])
            if entry is None:
                if name in ready:
                    inside.append(f"const {kind} {name} = {name}_kept[k][u];")
                    continue
                inside.append(self.statement(self.needs.operations[name]))
                if kept:
                    inside.append(f"{name}_kept[k][u] = {name};")
            elif self.place.packed(entry):
                pack = f"{name}_kept[k]" if kept else f"{name}_of"
                if name not in ready:
                    at = f"{name}_row + {self.offset(name, 'i')}"
                    declared = f"{pack} = " if kept else f"const auto {pack} = "
                    outside.append(f"{declared}fetch<{width}>({at}, {self.place.whole(at)});")
                inside.append(f"const {kind} {name} = decode<N>({pack}.at[u], {name}_row);")
            else:
                inside.append(f"const {kind} {name} = {self.element(entry, '(i + u)')};")
        ready |= {n for n in self.needs.closure(names, stop=set()) if n in self.kept}
        inside += steps
        for y in self.needs.full if writes else ():
            value, dtype = self.converted(self.needs.results[y]), self.needs.results[y].spec.dtype
            if share.run.strides[y][-1] == 1:
                outside.append(f"pack<{STORAGE[dtype]}, {width}> {y}_of;")
                inside.append(f"{y}_of.at[u] = encode<N>({value}, (const {STORAGE[dtype]} *)0);")
                at = f"{y}_row + {self.offset(y, 'i')}"
                put = f"put<{width}>({at}, {y}_of, {self.place.whole(at)});"
            else:
                put = f"store<N>({y}_row + {self.offset(y, '(i + u)')}, {value});"
            put = f"if (live) {put}" if self.place.partial else put
            (after if share.run.strides[y][-1] == 1 else inside).append(put)
        body = [*outside, "#pragma unroll", f"for (int u = 0; u < {width}; ++u) {{", *indented(inside), "}"]
        body += after
        if not share.exact:  # only the last turn may go beyond the row
            sure = f"k < {share.turns - 1} || " if share.parts == 1 and share.turns > 1 else ""
            body = [f"if ({sure}i < {share.run.elements}) {{", *indented(body), "}"]
        lane = "threadIdx.x" if share.turns == 1 else f"k * {share.x} + threadIdx.x"
        if width > 1:
            lane = f"({lane}) * {width}" if share.turns > 1 else f"{lane} * {width}"
        place = f"const {self.place.index} i = {'begin + ' if share.parts > 1 else ''}{lane};"
        unroll = "#pragma unroll" if share.turns * width <= _KEPT else f"#pragma unroll {_UNROLLED}"
        return [
            *([unroll] if share.turns > 1 else []),
            f"for (int k = 0; k < {share.turns}; ++k) {{",
            *indented([place, *body]),
            "}",
        ]

    def converted(self, output: RowOutput) -> str:
        """Convert a result to its own dtype; the store rounds narrow floats."""
        have, want = self.plan.spec(output.value)[0], output.spec.dtype
        if have is want or (have in _NARROW and want in _NARROW):
            return output.value
        return f"convert<{STORAGE[want]}>({output.value})"
