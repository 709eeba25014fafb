"""The search for the first value that differs: a binary search over cuts of the model.

A cut after k values is the set of those that a later node or the caller reads. If all of them agree, everything that comes later starts
from equal data. The search keeps one cut that agrees (at first the inputs) and one that differs (at first the outputs), so it ends at a
value that differs although all values that it is computed from agree. A difference that a later node hides does not mislead it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ...protocols import Array
from ..values.observer import Observer
from ..values.pairs import Frontiers, Limit, common_values
from ..values.statistics import DifferenceStatistics, difference

__all__ = ["Walk", "most_runs", "walk"]

Progress = Callable[[str], None]
Keep = Callable[[Mapping[str, Array]], None]


def most_runs(count: int) -> int:
    """Return the bound on the runs of both sides together, for a model of so many nodes."""
    return int(2 * math.log2(max(count, 1)) + 5)


@dataclass(slots=True)
class Walk:
    """The state of a search, and its result.

    value:    first value that differs; empty if the outputs agree. statistics, tolerance: its difference.
    before:   the values that it is computed from, which agree; the model's inputs if there are none.
    values:   number of values that both sides show. runs: of both sides together.
    """

    value: str = ""
    statistics: DifferenceStatistics | None = None
    tolerance: float = 0.0
    before: Sequence[str] = ()
    values: int = 0
    runs: int = 0

    @property
    def differs(self) -> bool:
        """True if a value differs."""
        return self.statistics is not None


def walk(
    actual: Observer, reference: Observer, limit: Limit, keep: Keep, progress: Progress = lambda _: None
) -> Walk:
    """Search for the first value that differs.

    keep: called with the values of each cut that agrees, on the first side, before the search continues; at most one cut is held here.
    Raises the errors of running the sides.
    """
    order = common_values(actual, reference)
    state = Walk(values=len(order))
    outputs = [v for v in actual.outputs if v in set(order)]
    progress(f"comparing {len(outputs)} outputs")
    low, high = 0, len(order)
    first = _first(actual, reference, outputs, limit, state)
    if first is None:
        state.runs = actual.runs + reference.runs
        return state
    frontiers = Frontiers(order, actual.reads, outputs)
    index_of = {v: i for i, v in enumerate(order)}
    high = index_of[first] + 1
    while high - low > 1:
        middle = (low + high) // 2
        progress(f"{order[middle - 1]!r}: {high - low} values are left, {actual.runs + reference.runs} runs")
        names = frontiers.at(middle)
        first = _first(actual, reference, names, limit, state, keep)
        if first is None:
            low = middle
        else:
            high = index_of[first] + 1
    state.before = frontiers.before[order[high - 1]]
    state.runs = actual.runs + reference.runs
    return state


def _first(
    actual: Observer,
    reference: Observer,
    names: Sequence[str],
    limit: Limit,
    state: Walk,
    keep: Keep | None = None,
) -> str | None:
    """Return the first of some values that differs, and store its difference; None if all agree."""
    left, right = actual.values(names), reference.values(names)
    for name in names:
        a, b = left[name], right.pop(name)
        statistics, tolerance = difference(a, b), limit(name, a, b)
        if statistics.reason(tolerance):
            state.value, state.statistics, state.tolerance = name, statistics, tolerance
            return name
    if keep is not None:
        keep(left)
    return None
