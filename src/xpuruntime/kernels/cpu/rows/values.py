"""The lines of C++ that load, compute and store the values of a row reduction, and the values that stay in scratch between its passes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ....codegen.expr.terms import STORAGE, compute_type, element_type
from ....codegen.loops.nest import Nest, TaskSplit
from ....codegen.loops.plans import CONSTANT, POSITION, Input, LoopPlan, Operation
from ....types import DType
from ...kernel import NodeCall
from ...portable.text import statement
from ...spec.row_plan import EXPENSIVE, RowNeeds, RowOutput, inner_step

__all__ = ["UNROLL", "RowLoops", "RowValues"]

UNROLL = 4
"""Number of independent accumulators of a reduction, which hide the latency of its instructions. If SIMD lanes are rows: of adjacent vectors of rows."""
_MAX_SCRATCH = 128 * 1024
"""Maximum scratch in bytes for values that later passes reuse: half of a small L2 cache."""
_NARROW = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32)


@dataclass(frozen=True, slots=True)
class RowLoops:
    """The loops of a plan over rows and along them, and their split into tasks.

    kept:    the dims that the reduction keeps: one row for each of their positions.
    run:     the reduced dims: the elements of a row.
    across:  True if SIMD lanes are adjacent rows, False if they are adjacent elements of one row.
    """

    call: NodeCall
    plan: LoopPlan
    outputs: tuple[RowOutput, ...]
    kept: Nest
    run: Nest
    across: bool
    lanes: int
    tasks: TaskSplit


class RowValues:
    """The lines of single values.

    parts:         parts of the prelude that the lines use.
    cached:        values that stay in scratch between passes, with the names of their arrays.
    declarations:  lines that declare these arrays, ``scratch_bytes`` in all.
    """

    def __init__(self, rows: RowLoops) -> None:
        self.rows, self.plan = rows, rows.plan
        self.needs = RowNeeds(rows.plan, rows.outputs, rows.run)
        self.parts: set[str] = set()
        self.scratch_bytes = 0
        self.cached: dict[str, str] = {}
        self.declarations: list[str] = []
        self._choose_cached()

    # ── values cached in scratch ──

    def _choose_cached(self) -> None:
        rows = self.rows
        length = rows.run.rows * _padded(rows.run.inner, rows.lanes)
        if rows.across:
            length = (
                rows.run.elements * rows.lanes * (UNROLL if rows.kept.inner >= UNROLL * rows.lanes else 1)
            )
        used: dict[str, set[int]] = {}
        for at, names in enumerate(self.needs.values_by_pass):
            for name in self.needs.closure(names, stop=set()):
                used.setdefault(name, set()).add(at)
        offset = 0
        for o in self.plan.operations:
            expensive = not o.reduces and o.op != CONSTANT and EXPENSIVE & statement(self.plan, o)[1]
            if (
                not expensive
                or o.name not in self.needs.varying
                or len(used.get(o.name, ())) < 2
                or o.dtype is DType.BOOL
            ):
                continue
            size = length * (8 if o.dtype.bits == 64 else 4)
            if offset + size > _MAX_SCRATCH:
                continue
            kind = element_type(o.dtype)
            self.cached[o.name] = f"{o.name}_kept"
            self.declarations.append(f"{kind} *const {o.name}_kept = ({kind} *)((char *)scratch + {offset});")
            offset += -(-size // 64) * 64
        self.scratch_bytes = offset

    # ── one position ──

    def row_operands(self, entry: Input) -> str:
        """Return the expression that loads an operand with one value per row."""
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

    def row_level(self, at: int) -> list[str]:
        """Return the lines of operations with one value per row that are computable after ``at`` passes. With ``across``, they are assigned to elements of arrays, not declared."""
        return [self._statement(o, declare=not self.rows.across) for o in self.needs.row_level(at)]

    def _statement(self, o: Operation, *, declare: bool = True) -> str:
        line, needed = statement(self.plan, o, declare=declare)
        self.parts |= needed
        return line

    def elements(self, names: Sequence[str], ready: set[str]) -> list[str]:
        """Return the lines that compute values at one position of the row, from operands and from scratch."""
        lines = []
        base = "c" if self.rows.across else "i"
        for name in self.needs.closure(names, stop=ready):
            if name in ready:
                lines.append(f"const {self.type(name)} {name} = load<N>({self._cached_address(name)});")
            elif name in self.needs.inputs:
                space = self.rows.kept if self.rows.across else self.rows.run
                step = inner_step(space, name)
                load = self._load(f"{name}_run", base, step)
                if self.needs.inputs[name].operand == POSITION:
                    kind = f"({element_type(self.plan.spec(name)[0])})"
                    load = f"iota<N>({kind}({name}_run + {base} * {step}), {kind}{step})"
                lines.append(f"const {self.type(name)} {name} = {load};")
            else:
                lines.append(self._statement(self.needs.operations[name]))
                if name in self.cached:
                    lines.append(f"store<N>({self._cached_address(name)}, {name});")
        ready |= {n for n in self.needs.closure(names, stop=set()) if n in self.cached}
        return lines

    def type(self, name: str) -> str:
        """Return the C type that a value is computed in."""
        return compute_type(self.plan.spec(name)[0])

    def _cached_address(self, name: str) -> str:
        """Return the address of a cached value at the current position."""
        if self.rows.across:
            return f"{self.cached[name]} + (r * U + u) * N"
        padded = _padded(self.rows.run.inner, self.rows.lanes)
        return f"{self.cached[name]} + {f'r * {padded} + ' if self.rows.run.rows > 1 else ''}i"

    def store(self, y: str) -> str:
        """Return the line that stores a result with a value per element."""
        space = self.rows.kept if self.rows.across else self.rows.run
        index, step, output = ("c" if self.rows.across else "i"), inner_step(space, y), self.needs.results[y]
        value = self.converted(output.value, output.spec.dtype)
        if step == 1:
            return f"store<N>({y}_run + {index}, {value}, n...);"
        return f"scatter<N>({y}_run + {index} * {step}, {step}, {value}, n...);"

    def store_row(self, y: str) -> str:
        """Return the line that stores a result with one value per row."""
        output = self.needs.results[y]
        value = self.converted(output.value, output.spec.dtype)
        if not self.rows.across:
            return f"store<N>({y}_row, {value}, 1);"
        step = inner_step(self.rows.kept, y)
        if step == 1:
            return f"store<N>({y}_row + c, {value}, n...);"
        return f"scatter<N>({y}_row + c * {step}, {step}, {value}, n...);"

    def converted(self, name: str, dtype: DType) -> str:
        """Return a value converted to a dtype. 16-bit floats are computed as float32 and rounded when stored."""
        own_dtype = self.plan.spec(name)[0]
        if own_dtype is dtype or (own_dtype in _NARROW and dtype in _NARROW):
            return name
        return f"convert<{STORAGE[dtype]}>({name})"


def _padded(extent: int, lanes: int) -> int:
    return math.ceil(extent / lanes) * lanes
