"""The text of loops over rows (see ``rows``): passes along a row, or across vectors of rows."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..codegen.expr_terms import STORAGE, compute_type, element_type
from ..codegen.nest import Nest, Tasks, indented, offset_text, task_loops
from ..codegen.plans import CONSTANT, POSITION, Input, Operation, Plan
from ..types import DType, TensorSpec
from .elementwise import statement
from .kernel import NodeCall

__all__ = ["DEAR", "UNROLL", "Output", "RowLoops", "RowText", "inner_step", "neutral_of"]

UNROLL = 4
"""Accumulators of one reduction; across, vectors of rows side by side."""
_BLOCK = 8192
"""Elements after which partial sums of floats go on in double: the error of a sum stays that of a sum of this length."""
_KEPT_BYTES = 128 * 1024
"""Largest scratch for values that wait for a later pass: half of a small second-level cache."""
DEAR = frozenset({"exp", "log", "erf", "trig", "pow", "inverse", "softplus", "division"})
_NEUTRAL = {"sum": "0", "prod": "1", "any": "0", "all": "-1"}


@dataclass(frozen=True, slots=True)
class Output:
    """A result: the name of its value, its spec, and its strides along the space (0 along reduced dims: one value a row)."""

    value: str
    spec: TensorSpec
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RowLoops:
    """What a plan becomes: its loops over rows and along them, and how they are cut into tasks."""

    call: NodeCall
    plan: Plan
    outputs: tuple[Output, ...]
    kept: Nest
    """the dims that stay; across: the last one is that of the lanes"""
    run: Nest
    """the reduced dims; along: the last one is that of the lanes"""
    across: bool
    lanes: int
    tasks: Tasks
    moving: frozenset[str] = field(default=frozenset())
    """names that change along a row"""
    passes: Mapping[str, int] = field(default_factory=dict)
    """after how many passes over the row a name can be computed"""


def inner_step(space: Nest, name: str) -> int:
    """How far a value moves on with the innermost dim."""
    return space.strides[name][-1]


class RowText:
    """Writes the body of one kernel."""

    def __init__(self, rows: RowLoops) -> None:
        self.rows, self.plan = rows, rows.plan
        self.parts: set[str] = set()
        self.scratch_bytes = 0
        self.waiting: dict[str, str] = {}  # a value's name to where it waits
        self.kept: list[str] = []  # lines that say where that is
        self.operations = {o.name: o for o in self.plan.operations}
        self.inputs = {i.name: i for i in self.plan.inputs}
        self._choose_waiting()

    # ── which values wait in scratch ──

    def _choose_waiting(self) -> None:
        rows = self.rows
        length = rows.run.rows * _padded(rows.run.inner, rows.lanes)
        if rows.across:
            length = (
                rows.run.elements * rows.lanes * (UNROLL if rows.kept.inner >= UNROLL * rows.lanes else 1)
            )
        used: dict[str, set[int]] = {}
        for at, wanted in self._wanted():
            for name in self._closure(wanted, stop=set()):
                used.setdefault(name, set()).add(at)
        offset = 0
        for o in self.plan.operations:
            dear = not o.reduces and o.op != CONSTANT and DEAR & statement(self.plan, o)[1]
            if (
                not dear
                or o.name not in rows.moving
                or len(used.get(o.name, ())) < 2
                or o.dtype is DType.BOOL
            ):
                continue
            size = length * (8 if o.dtype.bits == 64 else 4)
            if offset + size > _KEPT_BYTES:
                continue
            kind = element_type(o.dtype)
            self.waiting[o.name] = f"{o.name}_kept"
            self.kept.append(f"{kind} *const {o.name}_kept = ({kind} *)((char *)scratch + {offset});")
            offset += -(-size // 64) * 64
        self.scratch_bytes = offset

    def _wanted(self) -> list[tuple[int, list[str]]]:
        """Per pass the values that it needs at every element; the last pass writes the results."""
        last = max((self.rows.passes[o.name] for o in self.plan.operations if o.reduces), default=0)
        found = []
        for at in range(last):
            names = [str(o.operands[0]) for o in self._reductions(at)]
            found.append((at, names))
        found.append((last, [o.value for o in self.rows.outputs if self._is_full(o)]))
        return found

    def _is_full(self, output: Output) -> bool:
        at = f"y{self.rows.outputs.index(output)}"
        return any(self.rows.run.strides[at])

    def _reductions(self, at: int) -> list[Operation]:
        return [o for o in self.plan.operations if o.reduces and self.rows.passes[o.name] == at + 1]

    def _closure(self, names: Sequence[str], stop: set[str]) -> list[str]:
        """The moving values that these need, in order; what waits is not gone behind."""
        seen: set[str] = set()

        def visit(name: str) -> None:
            if name in seen or name not in self.rows.moving:
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

    # ── lines ──

    def body(self) -> list[str]:
        rows = self.rows
        lines = self._bases(rows.kept.extents[:-1] if rows.across else rows.kept.extents, rows.across)
        inner = self._row()
        if not rows.across:
            flat = Nest((rows.kept.elements, 1), {})
            loops = task_loops(flat, rows.tasks, [*lines, *inner], f"rows of {rows.run.elements}")
            return [*self.kept, *loops]
        low, high = ("first", "last") if rows.tasks.chunk < rows.kept.inner else ("0", str(rows.kept.inner))
        block = [
            *lines,
            "const auto columns = [&](auto many, int64_t from, auto... n) __attribute__((always_inline)) {",
            "  constexpr int U = decltype(many)::value;  // vectors side by side",
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
        return [*self.kept, *task_loops(rows.kept, rows.tasks, block, f"times {rows.kept.inner} rows")]

    def _bases(self, extents: tuple[int, ...], across: bool) -> list[str]:
        """Where each value of a row starts."""
        lines = []
        for name in (*self.inputs, *(f"y{i}" for i in range(len(self.rows.outputs)))):
            if name in self.inputs and self.inputs[name].operand == POSITION:
                lines.append(f"const int64_t {name}_row = 0;")
                continue
            steps = self.rows.kept.strides[name]
            where = offset_text(extents, steps[:-1] if across else steps)
            base = f"x{self.inputs[name].operand}" if name in self.inputs else name
            lines.append(f"const auto {name}_row = {base}{'' if where == '0' else f' + {where}'};")
        return lines

    def _row(self) -> list[str]:
        """One row (across: U vectors of rows): what stands still, the passes, and the results."""
        still = [e for e in self.plan.inputs if e.name not in self.rows.moving]
        lines = [f"{self._type(n)} {n}_of[U];" for n in self._row_names()] if self.rows.across else []
        loads = [f"const {compute_type(e.dtype)} {e.name} = {self._still(e)};" for e in still]
        lines += self._each([*loads, *self._row_level(0)])
        wanted = self._wanted()
        ready: set[str] = set()
        for at, names in wanted[:-1]:
            lines += self._pass(at, names, ready)
            lines += self._each(self._row_level(at + 1))
        full = [o for o in self.rows.outputs if self._is_full(o)]
        if full:
            lines += self._loop(wanted[-1][1], ready, [self._store(o) for o in full], {})
        return lines + self._each([self._store_row(o) for o in self.rows.outputs if not self._is_full(o)])

    def _row_names(self) -> list[str]:
        """Values that are one a row."""
        names = [*self.inputs, *self.operations]
        return [n for n in names if n not in self.rows.moving]

    def _each(self, lines: list[str], after: Sequence[str] = ()) -> list[str]:
        """Across: the lines for each of the U vectors of rows; what is one a row lies in arrays. Along: the lines as they are."""
        if not self.rows.across or not lines:
            return lines
        text = "\n".join(lines)
        used = set(re.findall(r"[a-z]+[0-9_]+", text))
        names = [n for n in self._row_names() if n in used]
        for name in names:  # what the lines declare stands in its array already
            text = text.replace(f"const {self._type(name)} {name} = ", f"{name} = ")
        index = ["const int64_t c = from + u * N;"] if re.search(r"\bc\b", text) else []
        aliases = [f"auto &{name} = {name}_of[u];" for name in names]
        body = indented([*index, *aliases, *text.split("\n")])
        return ["repeat<U>([&](int u) __attribute__((always_inline)) {", *body, "});"]

    def _still(self, entry: Input) -> str:
        step = inner_step(self.rows.kept, entry.name) if self.rows.across else 0
        if entry.operand == POSITION:
            return f"number<N>(({element_type(entry.dtype)})0)"
        if step == 0:
            return f"broadcast<N>({entry.name}_row)"
        return self._load(f"{entry.name}_row", "c", step)

    def _load(self, base: str, index: str, step: int) -> str:
        if step == 1:
            return f"load<N>({base} + {index}, n...)"
        return f"gather<N>({base} + {index} * {step}, {step}, n...)" if step else f"broadcast<N>({base})"

    def _row_level(self, at: int) -> list[str]:
        """Operations of the row as a whole that can be computed after so many passes."""
        lines = []
        for o in self.plan.operations:
            if o.reduces or o.name in self.rows.moving or self.rows.passes[o.name] != at:
                continue
            line, needed = statement(self.plan, o)
            self.parts |= needed
            lines.append(line)
        return lines

    def _elements(self, names: Sequence[str], ready: set[str]) -> list[str]:
        """Lines that compute moving values at one place, from operands and from what waits."""
        lines = []
        base = "c" if self.rows.across else "i"
        for name in self._closure(names, stop=ready):
            if name in ready:
                lines.append(f"const {self._type(name)} {name} = load<N>({self._place(name)});")
            elif name in self.inputs:
                space = self.rows.kept if self.rows.across else self.rows.run
                step = inner_step(space, name)
                load = self._load(f"{name}_run", base, step)
                if self.inputs[name].operand == POSITION:
                    kind = f"({element_type(self.plan.spec(name)[0])})"
                    load = f"counted<N>({kind}({name}_run + {base} * {step}), {kind}{step})"
                lines.append(f"const {self._type(name)} {name} = {load};")
            else:
                line, needed = statement(self.plan, self.operations[name])
                self.parts |= needed
                lines.append(line)
                if name in self.waiting:
                    lines.append(f"store<N>({self._place(name)}, {name});")
        ready |= {n for n in self._closure(names, stop=set()) if n in self.waiting}
        return lines

    def _type(self, name: str) -> str:
        return compute_type(self.plan.spec(name)[0])

    def _place(self, name: str) -> str:
        """Where a waiting value of the present place lies."""
        if self.rows.across:
            return f"{self.waiting[name]} + (r * U + u) * N"
        padded = _padded(self.rows.run.inner, self.rows.lanes)
        return f"{self.waiting[name]} + {f'r * {padded} + ' if self.rows.run.rows > 1 else ''}i"

    def _store(self, output: Output) -> str:
        at = f"y{self.rows.outputs.index(output)}"
        space = self.rows.kept if self.rows.across else self.rows.run
        index, step = ("c" if self.rows.across else "i"), inner_step(space, at)
        value = self._converted(output)
        if step == 1:
            return f"store<N>({at}_run + {index}, {value}, n...);"
        return f"scatter<N>({at}_run + {index} * {step}, {step}, {value}, n...);"

    def _store_row(self, output: Output) -> str:
        at, value = f"y{self.rows.outputs.index(output)}", self._converted(output)
        if not self.rows.across:
            return f"store<N>({at}_row, {value}, 1);"
        step = inner_step(self.rows.kept, at)
        if step == 1:
            return f"store<N>({at}_row + c, {value}, n...);"
        return f"scatter<N>({at}_row + c * {step}, {step}, {value}, n...);"

    def _converted(self, output: Output) -> str:
        """A result in its own dtype; narrow floats are rounded by the store."""
        have, want = self.plan.spec(output.value)[0], output.spec.dtype
        narrow = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32)
        if have is want or (have in narrow and want in narrow):
            return output.value
        return f"convert<{STORAGE[want]}>({output.value})"

    # ── passes ──

    def _pass(self, at: int, names: list[str], ready: set[str]) -> list[str]:
        """One pass over the row: its reductions, from their first values to one value a row."""
        made = self._reductions(at)
        lines, first, steps, after = list[str](), list[str](), list[str](), list[str]()
        ends: dict[str, list[str]] = {"before": [], "after": []}
        for o in made:
            kind, operand = compute_type(o.dtype), str(o.operands[0])
            term = operand if self.plan.spec(operand)[0] is o.dtype else self._as(operand, o.dtype)
            neutral = f"splat<{kind}>({neutral_of(o)})"
            if self.rows.across:
                first.append(f"{o.name} = {neutral};  // {o.op}")
                if self._long(o):  # in blocks
                    lines.append(f"{kind} {o.name}_block[U];")
                    first.append(f"{o.name}_block[u] = {neutral};")
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
        return [*lines, *self._each(first), *self._loop(names, ready, steps, ends), *self._each(after)]

    def _as(self, name: str, dtype: DType) -> str:
        narrow = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32)
        if self.plan.spec(name)[0] in narrow and dtype in narrow:
            return name
        return f"convert<{STORAGE[dtype]}>({name})"

    def _long(self, o: Operation) -> bool:
        """Whether a sum of floats is so long that partial sums matter."""
        limit = 256 if self.rows.across else _BLOCK
        return o.op == "sum" and o.dtype.is_float and self.rows.run.elements > limit

    def _loop(
        self, names: list[str], ready: set[str], steps: list[str], ends: Mapping[str, list[str]]
    ) -> list[str]:
        """The loops over one row around ``steps``."""
        run, before, after = self.rows.run, ends.get("before", []), ends.get("after", [])
        bases = []
        moving = [
            n
            for n in (*self.inputs, *(f"y{i}" for i in range(len(self.rows.outputs))))
            if any(run.strides[n])
        ]
        elements = self._elements(names, ready)
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
        """The loop of vectors along a row, in blocks where partial results are taken out of it."""
        high, lanes = str(inner), self.rows.lanes
        lines = ["int64_t i = 0;"]
        blocks = bool(before) and inner > _BLOCK
        if blocks:
            high = "stop"
        inside = [*before]
        if unrolled and inner >= UNROLL * lanes:
            four = ", ".join(f"at({u}, i{f' + {u} * N' if u else ''})" for u in range(UNROLL))
            inside.append(f"for (; i + {UNROLL} * N <= {high}; i += {UNROLL} * N) {four};")
        inside.append(f"for (; i + N <= {high}; i += N) {call.format(i='i')};")
        if inner % lanes:
            rest = call.format(i="i")[:-1] + f", {high} - i)"
            inside.append(f"if (i < {high}) {rest}{', i = ' + high if blocks else ''};")
        inside += after
        if not blocks:
            return [*lines, *inside]
        limit = f"i + {_BLOCK} < {inner} ? i + {_BLOCK} : {inner}"
        return [
            *lines,
            f"while (i < {inner}) {{",
            *indented([f"const int64_t stop = {limit};", *inside]),
            "}",
        ]


def _padded(extent: int, lanes: int) -> int:
    return math.ceil(extent / lanes) * lanes


def neutral_of(o: Operation) -> str:
    """What a reduction of nothing gives."""
    if o.op in _NEUTRAL:
        return _NEUTRAL[o.op]
    low = o.op in ("amax", "top")
    if o.dtype.is_float:
        kind = "f" if o.dtype is not DType.FLOAT64 else ""
        return f"{'-' if low else ''}__builtin_inf{kind}()"
    bits, signed = o.dtype.bits, o.dtype.is_signed
    if low:
        return f"(-{2 ** (bits - 1) - 1}ll - 1)" if signed else "0"
    return f"{2 ** (bits - 1) - 1}ll" if signed else f"{2**bits - 1}ull"
