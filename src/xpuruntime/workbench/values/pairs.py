"""Two observers of one model: the values that both show, how close they must be, and the values that separate a model in two parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ...numerics import TOLERANCE, tolerance_for
from ...protocols import Array
from ...types import DType
from .observer import Observer
from .side import Side

__all__ = ["Frontiers", "common_values", "limits_of"]

Limit = Callable[[str, Array, Array], float]


def common_values(actual: Observer, reference: Observer) -> list[str]:
    """Return the values that both sides show with one shape, in an order in which both can compute them.

    The order is that of a program, if one side is a program: a prefix of its calls then holds a prefix of the values.
    """
    known = set(reference.order)
    shared = [v for v in actual.order if v in known and _alike(actual, reference, v)]
    if _sorted(shared, reference.reads):
        return shared
    index_of = {v: i for i, v in enumerate(reference.order)}
    return sorted(shared, key=index_of.__getitem__)


def _alike(actual: Observer, reference: Observer, value: str) -> bool:
    """Return True if a value has one form on both sides: one shape, and numbers of one kind (not codes of a quantized value)."""
    if value in actual.outputs:
        return True
    a, b = actual.shape_of(value), reference.shape_of(value)
    x, y = actual.dtype_of(value), reference.dtype_of(value)
    return (a is None or b is None or a == b) and (x is None or y is None or x.is_float == y.is_float)


def _sorted(order: Sequence[str], reads: Mapping[str, Sequence[str]]) -> bool:
    """Return True if no value is read before it is listed."""
    index_of = {v: i for i, v in enumerate(order)}
    near = Frontiers(order, reads, ())
    return all(index_of[before] < index_of[v] for v in order for before in near.before[v])


def limits_of(
    side: Side, other: Side, actual: Observer, reference: Observer, tolerance: float | None
) -> Limit:
    """Return the tolerance of a value: the given one; 0 if both sides are built alike, so that equal models give equal bits;
    else that of the coarsest precision.
    """
    alike = (
        side.engine == other.engine
        and side.device == other.device
        and side.policy == other.policy
        and side.precision == other.precision
        and side.model.format == other.model.format
        and actual.precision is reference.precision
    )

    quantized = side.model.quantized is not None or other.model.quantized is not None

    def limit(_: str, a: Array, b: Array) -> float:
        if alike:
            return tolerance or 0.0
        kinds = (a.dtype.kind, b.dtype.kind)
        if all(k in "OUSTbiu" for k in kinds):  # codes of a quantized value may round to the neighbor
            return TOLERANCE[DType.INT8] if quantized and a.dtype.itemsize <= 2 and "b" not in kinds else 0.0
        if tolerance is not None:
            return tolerance
        return max(
            tolerance_for(actual.precision, reference.precision),
            tolerance_for(DType.of(a.dtype), DType.of(b.dtype)),
        )

    return limit


class Frontiers:
    """The values that separate the first k of an order from the rest.

    order: values, sorted so that none is read before it is computed. reads: what each value of the model is computed from.
    outputs: values that leave the model.
    """

    def __init__(
        self, order: Sequence[str], reads: Mapping[str, Sequence[str]], outputs: Sequence[str]
    ) -> None:
        self.order = list(order)
        self._reads = reads
        listed = set(order)
        self.before: dict[str, list[str]] = {v: self._nearest(v, listed) for v in order}
        index_of = {v: i for i, v in enumerate(self.order)}
        self._last_use: dict[str, int] = {}
        for v, sources in self.before.items():
            for source in sources:
                self._last_use[source] = max(self._last_use.get(source, -1), index_of[v])
        for v in outputs:
            if v in listed:
                self._last_use[v] = len(self.order)
            else:
                for source in self._nearest(v, listed):
                    self._last_use[source] = len(self.order)

    def _nearest(self, value: str, listed: set[str]) -> list[str]:
        """Return the closest listed values that a value is computed from."""
        nearest: dict[str, None] = {}
        seen, todo = set[str](), list(self._reads.get(value, ()))
        while todo:
            name = todo.pop()
            if name in seen:
                continue
            seen.add(name)
            if name in listed:
                nearest[name] = None
            else:
                todo += self._reads.get(name, ())
        return list(nearest)

    def at(self, count: int) -> list[str]:
        """Return those of the first ``count`` values that a later value or the caller reads."""
        return [v for i, v in enumerate(self.order[:count]) if self._last_use.get(v, -1) >= count]
