"""Row reductions, independent of the device: their loops, and what each pass over a row needs (see ``cpu/rows`` and ``cuda/rows``)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ...codegen.loops.nest import Nest, nest
from ...codegen.loops.plans import LoopPlan, Operation
from ...types import TensorSpec

__all__ = ["EXPENSIVE", "RowNeeds", "RowOutput", "inner_step", "row_nests"]

EXPENSIVE = frozenset({"exp", "log", "erf", "trig", "pow", "inverse", "softplus", "division"})
"""Prelude parts whose results are worth keeping for a later pass."""


@dataclass(frozen=True, slots=True)
class RowOutput:
    """A result: the name of its value, its spec, and its strides along the space (0 along reduced dims if it has one value per row)."""

    value: str
    spec: TensorSpec
    strides: tuple[int, ...]


def inner_step(space: Nest, name: str) -> int:
    """Return a value's stride along the innermost dim."""
    return space.strides[name][-1]


def row_nests(plan: LoopPlan, outputs: Sequence[RowOutput]) -> tuple[Nest, Nest, bool]:
    """Return loops over the kept dims and over the reduced dims, in the memory order of an operand; results are ``y0``, ``y1`` ....

    The last value is whether adjacent rows, rather than adjacent elements of a row, are contiguous in memory (across).
    """
    strides = {i.name: i.strides for i in plan.inputs} | {f"y{i}": o.strides for i, o in enumerate(outputs)}
    element_input = next((i for i in plan.inputs if all(i.strides[d] for d in plan.reduced)), None)
    lead = element_input.strides if element_input is not None else outputs[0].strides
    order = sorted(range(len(plan.space)), key=lambda d: -lead[d])
    kept = nest(plan.space, strides, [d for d in order if d not in plan.reduced])
    reduced = nest(plan.space, strides, [d for d in order if d in plan.reduced])
    name = element_input.name if element_input is not None else "y0"
    return kept, reduced, kept.inner > 1 and inner_step(kept, name) == 1 and inner_step(reduced, name) != 1


class RowNeeds:
    """A plan as passes over the row.

    varying:         names of values that differ between elements of a row.
    passes:          number of passes that must be complete before a name is computable.
    results:         outputs by their names in kernels.
    element_results: results with one value per element of the row.
    values_by_pass:  per pass the values that it needs at every element. The last pass writes results.
    """

    def __init__(self, plan: LoopPlan, outputs: Sequence[RowOutput], run: Nest) -> None:
        self.plan = plan
        self.inputs = {i.name: i for i in plan.inputs}
        self.operations = {o.name: o for o in plan.operations}
        self.results = {f"y{i}": o for i, o in enumerate(outputs)}
        self.element_results = [y for y in self.results if any(run.strides[y])]
        self.varying = {i.name for i in plan.inputs if any(run.strides[i.name])}
        self.passes = dict.fromkeys(self.inputs, 0)
        for o in plan.operations:
            names = [n for n in o.operands if isinstance(n, str)]
            self.passes[o.name] = max((self.passes[n] for n in names), default=0) + o.reduces
            if not o.reduces and any(n in self.varying for n in names):
                self.varying.add(o.name)
        last = max((self.passes[o.name] for o in plan.operations if o.reduces), default=0)
        reduced_values = [[str(o.operands[0]) for o in self.reductions(at)] for at in range(last)]
        self.values_by_pass = [*reduced_values, [self.results[y].value for y in self.element_results]]

    def uses(self) -> Counter[str]:
        """Return how many passes need each value."""
        return Counter(n for names in self.values_by_pass for n in self.closure(names, stop=set()))

    def reductions(self, at: int) -> list[Operation]:
        """Return the reductions of a pass."""
        return [o for o in self.plan.operations if o.reduces and self.passes[o.name] == at + 1]

    def row_level(self, at: int) -> list[Operation]:
        """Return the operations with one value per row that are computable after ``at`` passes."""
        constant_in_row = [o for o in self.plan.operations if not o.reduces and o.name not in self.varying]
        return [o for o in constant_in_row if self.passes[o.name] == at]

    def closure(self, names: Sequence[str], stop: set[str]) -> list[str]:
        """Return the varying values that these depend on, in order. The search ends at values that are already cached (``stop``)."""
        seen: set[str] = set()

        def visit(name: str) -> None:
            if name in seen or name not in self.varying:
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
