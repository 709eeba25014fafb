"""The text of row reductions on CUDA devices (see ``loops``).

A kernel makes one pass over the row for each level of dependent reductions: softmax reads the row for the maximum, for the sum, and to
write. Operands that a later pass reads again, and values that are expensive to compute, stay in registers where a thread's part of the
row is small enough; operands of longer rows stay in shared memory. Longer loops are unrolled so that several loads are in flight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ....codegen.expr.terms import STORAGE, compute_type
from ....codegen.loops.combine import neutral_of
from ....codegen.loops.nest import indented, offset_text
from ....codegen.loops.plans import CONSTANT, POSITION, Input, Operation
from ....types import DType
from ...spec.row_plan import EXPENSIVE, RowNeeds, RowOutput
from ..launch import WARP
from ..pointwise import statement, unrounded
from .addresses import RowAddresses
from .online_softmax import OnlineSoftmax, online_softmax
from .splits import combined_splits
from .tiling import RowTiling

__all__ = ["RowText"]

_MAX_CACHED_REGS = 64
"""Registers per thread for values that later passes reuse, and elements up to which a thread's loop is fully unrolled."""
_UNROLL = 4
"""Unroll factor of longer loops, so that four loads are in flight."""
_BYTES_IN_FLIGHT = 32
"""Bytes of loads in flight per thread across rows. At full occupancy that is twice what hides the memory latency."""
_NARROW = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32)


class RowText:
    """The text of a kernel body.

    needs:     the passes of the formula.
    addresses: the rows of the thread and their addresses.
    parts:     the parts of the prelude that the text uses.
    cached:    values that stay in registers or in shared memory between passes.
    online:    a softmax whose maximum and sum are computed in one pass; None if there is none, or if the row stays in registers anyway.
    """

    def __init__(self, tiling: RowTiling) -> None:
        self.tiling, self.plan = tiling, tiling.plan
        self.parts: set[str] = set()
        self.needs = RowNeeds(tiling.plan, tiling.outputs, tiling.reduced)
        self.addresses = RowAddresses(tiling, self.needs)
        self.cached = self._choose_cached()
        rereads = (
            not tiling.across and tiling.splits == 1 and tiling.x > WARP and (tiling.held or not self.cached)
        )
        self.online = online_softmax(self.needs) if rereads else None

    def _choose_cached(self) -> set[str]:
        """Return the values to cache in registers, as far as those suffice: packed operands first, then expensive values."""
        tiling = self.tiling
        if tiling.held:
            return {i.name for i in tiling.held}
        if tiling.across or tiling.packs_per_thread * tiling.width > _MAX_CACHED_REGS:
            return set()
        uses = self.needs.uses()
        expensive = [
            o for o in self.plan.operations if not o.reduces and o.op != CONSTANT and self._is_expensive(o)
        ]
        packed = [i for i in self.plan.inputs if self.addresses.packed(i)]
        cached: set[str] = set()
        available = _MAX_CACHED_REGS
        candidates: list[Input | Operation] = [*packed, *expensive]
        for entry in candidates:
            bits = entry.dtype.bits if isinstance(entry, Input) else max(entry.dtype.bits, 32)
            size = tiling.packs_per_thread * max(1, tiling.width * bits // 32)
            if uses[entry.name] > 1 and size <= available:
                cached.add(entry.name)
                available -= size
        return cached

    def _is_expensive(self, o: Operation) -> bool:
        return o.name in self.needs.varying and bool(EXPENSIVE & statement(self.plan, o)[1])

    def body(self) -> list[str]:
        tiling = self.tiling
        across_warps = tiling.y > 1 if tiling.across else tiling.x > 32
        slots = tiling.x * tiling.y if tiling.across else tiling.x // 32
        lines = ["constexpr int N = 1;"]
        if across_warps:
            lines.append(f"__shared__ uint64_t smem[{slots}];")
        if tiling.held:
            lines.append("DYNAMIC_SMEM(held);")
        lines += [*self.addresses.lines(), *self.addresses.bases(), *self.row_operands()]
        body = self.row_level(0)
        body += [self._declare_cached(n) for n in sorted(self.cached)]
        ready: set[str] = set()
        for at, names in enumerate(self.needs.values_by_pass[:-1]):
            if self.online is not None and at == self.online.at:
                body += self._online_pass(self.online, names, ready)
            elif self.online is None or at != self.online.at + 1:
                body += self._pass(at, names, ready)
            if tiling.splits == 1:
                body += self.row_level(at + 1)
        if tiling.splits > 1:
            body += combined_splits(self)
        if self.needs.element_results:
            body += self._loop(self.needs.values_by_pass[-1], ready, [], writes=True)
        row_results = [y for y in self.needs.results if y not in self.needs.element_results]
        if row_results:
            first = "threadIdx.y" if tiling.across else "threadIdx.x"
            stores = [f"store<N>({y}_row, {self.converted(self.needs.results[y])});" for y in row_results]
            body += [f"if ({self.addresses.live(f'{first} == 0')}) {{", *indented(stores), "}"]
        aligned = self.addresses.alignment()
        if not aligned:
            return [*lines, *body]
        return [
            *lines,
            "const auto work = [&](auto aligned) {  // aligned: vectorized loads and stores",
            *indented(body),
            "};",
            f"if ({aligned}) work(true_type());",
            "else work(false_type());",
        ]

    def row_operands(self) -> list[str]:
        """Return the lines that read the operands with one value per row."""
        return [
            f"const {compute_type(i.dtype)} {i.name} = "
            + (f"({STORAGE[i.dtype]})0;" if i.operand == POSITION else f"load<N>({i.name}_row);")
            for i in self.plan.inputs
            if i.name not in self.needs.varying
        ]

    def row_level(self, at: int) -> list[str]:
        """Return the lines of the operations with one value per row that are computable after ``at`` passes."""
        return [self.statement(o) for o in self.needs.row_level(at)]

    def statement(self, o: Operation) -> str:
        """Return the line of an operation, and note the parts of the prelude that it needs."""
        if self.online is not None and o is self.online.power:
            return f"const float {o.name} = quick_exponential({o.operands[0]});  // exp"
        line, needed = statement(self.plan, o)
        self.parts |= needed
        return line

    def _declare_cached(self, name: str) -> str:
        """Return the declaration of the registers, or of the thread's slots in shared memory, that cache a value between passes."""
        tiling, dtype = self.tiling, self.plan.spec(name)[0]
        if tiling.held:
            before = replace(tiling, held=tiling.held[: [i.name for i in tiling.held].index(name)]).held_bytes
            kind = f"pack<{STORAGE[dtype]}, {tiling.width}> *"
            return f"{kind}const {name}_kept = ({kind})(held + {before}) + threadIdx.x;"
        if name in self.needs.inputs:
            return f"pack<{STORAGE[dtype]}, {tiling.width}> {name}_kept[{tiling.packs_per_thread}];"
        return f"{compute_type(dtype)} {name}_kept[{tiling.packs_per_thread}][{tiling.width}];"

    # ── passes ──

    def _pass(self, at: int, names: list[str], ready: set[str]) -> list[str]:
        """Return one pass over the row: each reduction from its initial value, over the thread's elements, to one value per row."""
        tiling, lines, steps, combine = self.tiling, list[str](), list[str](), list[str]()
        for o in self.needs.reductions(at):
            kind = compute_type(o.dtype)
            lines.append(f"{kind} {o.name} = ({kind})({neutral_of(o)});  // {o.op}")
            steps.append(f"{o.name} = {self.step(o, o.name)};")
            if tiling.across:
                if tiling.y > 1:
                    combine.append(
                        f"{o.name} = column_reduce<{tiling.x}, {tiling.y}>({o.name}, {o.op}_of(), smem);"
                    )
            elif tiling.x > 32:
                combine.append(f"{o.name} = block_reduce<{tiling.x // 32}>({o.name}, {o.op}_of(), smem);")
            elif tiling.x > 1:
                combine.append(f"{o.name} = warp_reduce<{tiling.x}>({o.name}, {o.op}_of());")
        return [*lines, *self._loop(names, ready, steps, writes=False), *combine]

    def _online_pass(self, online: OnlineSoftmax, names: list[str], ready: set[str]) -> list[str]:
        """Return one pass over the row for its maximum and for the sum of the exponentials."""
        self.parts.add("online_softmax")
        top, total, width = online.maximum.name, online.total.name, self.tiling.width
        before, after = [f"float values[{width}];"], [f"softmax_add(values, {top}, {total});"]
        step = [f"values[u] = {online.value};"]
        return [
            f"float {top} = -__builtin_inff(), {total} = 0;  // {online.maximum.op}, sum",
            *self._along(names, ready, step, writes=False, before=before, after=after),
            f"softmax_join<{self.tiling.x // WARP}>({top}, {total}, smem);",
        ]

    def step(self, o: Operation, have: str) -> str:
        """Return the expression that accumulates one more element into a reduction; ``have`` is the accumulator."""
        kind, operand = compute_type(o.dtype), str(o.operands[0])
        dtype = self.plan.spec(operand)[0]
        convertible = dtype is o.dtype or (dtype in _NARROW and o.dtype in _NARROW)
        term = operand if convertible else f"convert<{STORAGE[o.dtype]}>({operand})"
        return f"{o.op}_of()({have}, ({kind})({term}))"

    def _loop(self, names: list[str], ready: set[str], steps: list[str], *, writes: bool) -> list[str]:
        """Return the loop over the thread's elements of a row."""
        return (self._across if self.tiling.across else self._along)(names, ready, steps, writes)

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
            for o in self.needs.element_results
            if writes
        ]
        if stores and self.addresses.partial:
            body += ["if (live) {", *indented(stores), "}"]
        else:
            body += stores
        return self.loop_across(names, body)

    def loop_across(self, names: list[str], body: list[str]) -> list[str]:
        """Return the loop over elements ``r`` of a thread's rows (across). ``names``: the values that the body needs."""
        tiling, reduced, y = self.tiling, self.tiling.reduced, self.tiling.y
        first = " + ".join([*["begin"] * (tiling.splits > 1), *["threadIdx.y"] * (y > 1)]) or "0"
        pragma = f"#pragma unroll {self._unroll_across(names)}"
        if tiling.exact:
            count = reduced.elements // (tiling.splits * y)
            index_line = f"const {self.addresses.index} r = {first} + k * {y};"
            return [pragma, f"for (int k = 0; k < {count}; ++k) {{", *indented([index_line, *body]), "}"]
        end = str(reduced.elements)
        if tiling.splits > 1:
            end = f"smaller<{self.addresses.index}>(begin + {tiling.elements_per_split}, {end})"
        head = f"for ({self.addresses.index} r = {first}, end = {end}; r < end; r += {y}) {{"
        return [pragma, head, *indented(body), "}"]

    def _unroll_across(self, names: list[str]) -> int:
        """Return the unroll factor of the loop across rows: enough elements that the loads in flight hide the memory latency."""
        read = [self.needs.inputs[n] for n in self.needs.closure(names, stop=set()) if n in self.needs.inputs]
        size = sum(max(1, i.dtype.bits // 8) for i in read if i.operand != POSITION)
        return max(_UNROLL, min(_BYTES_IN_FLIGHT // max(size * self.tiling.width, 2), _BYTES_IN_FLIGHT // 2))

    def offset(self, name: str, index: str) -> str:
        return offset_text(self.tiling.reduced.extents, self.tiling.reduced.strides[name], index)

    def element(self, entry: Input, index: str) -> str:
        """Return one element of an operand along the row."""
        if entry.operand == POSITION:
            return f"({STORAGE[entry.dtype]})({self.offset(entry.name, index)})"
        where = self.offset(entry.name, index)
        return f"load<N>({entry.name}_row{'' if where == '0' else f' + {where}'})"

    def _along(
        self,
        names: list[str],
        ready: set[str],
        steps: list[str],
        writes: bool,
        before: Sequence[str] = (),
        after: Sequence[str] = (),
    ) -> list[str]:
        """Return the loop over a thread's packs. before, after: lines of a pack around the loop over its elements."""
        tiling, width = self.tiling, self.tiling.width
        before_unroll, unrolled, stores = list(before), list[str](), list(after)
        for name in self.needs.closure(names, ready):
            entry, cached = self.needs.inputs.get(name), name in self.cached
            kind = compute_type(self.plan.spec(name)[0])
            if entry is None:
                if name in ready:
                    unrolled.append(f"const {kind} {name} = {name}_kept[k][u];")
                    continue
                unrolled.append(self.statement(self.needs.operations[name]))
                if cached:
                    unrolled.append(f"{name}_kept[k][u] = {name};")
            elif self.addresses.packed(entry):
                pack = f"{name}_kept[k]" if cached and not tiling.held else f"{name}_of"
                if name not in ready:
                    at = f"{name}_row + {self.offset(name, 'i')}"
                    declared = "" if pack.endswith("]") else "const auto "
                    before_unroll.append(
                        f"{declared}{pack} = fetch<{width}>({at}, {self.addresses.whole(at)});"
                    )
                if (
                    cached and tiling.held
                ):  # whole packs to and from shared memory: single elements would conflict in its banks
                    slot = f"{name}_kept[k * {tiling.x}]"
                    before_unroll.append(
                        f"const auto {pack} = {slot};" if name in ready else f"{slot} = {pack};"
                    )
                unrolled.append(f"const {kind} {name} = decode<N>({pack}.at[u], {name}_row);")
            else:
                unrolled.append(f"const {kind} {name} = {self.element(entry, '(i + u)')};")
        ready |= {n for n in self.needs.closure(names, stop=set()) if n in self.cached}
        unrolled += steps
        for y in self.needs.element_results if writes else ():
            value, dtype = self.converted(self.needs.results[y]), self.needs.results[y].spec.dtype
            if tiling.reduced.strides[y][-1] == 1:
                before_unroll.append(f"unpacked<{STORAGE[dtype]}, {width}> {y}_of;")
                unrolled.append(f"{y}_of.at[u] = {value};")
                at = f"{y}_row + {self.offset(y, 'i')}"
                put = f"put<{width}>({at}, encoded({y}_of), {self.addresses.whole(at)});"
            else:
                put = f"store<N>({y}_row + {self.offset(y, '(i + u)')}, {value});"
            put = f"if (live) {put}" if self.addresses.partial else put
            (stores if tiling.reduced.strides[y][-1] == 1 else unrolled).append(put)
        body = [
            *before_unroll,
            "#pragma unroll",
            f"for (int u = 0; u < {width}; ++u) {{",
            *indented(unrolled),
            "}",
        ]
        body += stores
        if not tiling.exact:  # only the last iteration may exceed the row
            sure = (
                f"k < {tiling.packs_per_thread - 1} || "
                if tiling.splits == 1 and tiling.packs_per_thread > 1
                else ""
            )
            body = [f"if ({sure}i < {tiling.reduced.elements}) {{", *indented(body), "}"]
        lane = "threadIdx.x" if tiling.packs_per_thread == 1 else f"k * {tiling.x} + threadIdx.x"
        if width > 1:
            lane = f"({lane}) * {width}" if tiling.packs_per_thread > 1 else f"{lane} * {width}"
        index_line = f"const {self.addresses.index} i = {'begin + ' if tiling.splits > 1 else ''}{lane};"
        unroll = (
            "#pragma unroll"
            if tiling.packs_per_thread * width <= _MAX_CACHED_REGS
            else f"#pragma unroll {_UNROLL}"
        )
        return [
            *([unroll] if tiling.packs_per_thread > 1 else []),
            f"for (int k = 0; k < {tiling.packs_per_thread}; ++k) {{",
            *indented([index_line, *body]),
            "}",
        ]

    def converted(self, output: RowOutput) -> str:
        """Return a result converted to its dtype. The store itself rounds float32 to 16 bits."""
        value = unrounded(self.plan, output.value, output.spec.dtype)
        dtype, result_dtype = self.plan.spec(value)[0], output.spec.dtype
        if dtype is result_dtype or (dtype in _NARROW and result_dtype in _NARROW):
            return value
        return f"convert<{STORAGE[result_dtype]}>({value})"
