"""Lowerings of slices and pads whose bounds only a run knows. So are the sizes of their results, as those of NonZero.

A slice keeps the elements between its bounds (``compress``). A pad selects indices, each as often as it counts (``repeat_interleave``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ....types import Dim, DimLike, DType
from ...not_lowered import NotLowered
from .context import OnnxLoweringContext, OpLowering, Results

__all__ = ["AT_RUN_TIME"]


@dataclass(frozen=True, slots=True)
class _BoundedAxis:
    """An axis of a value with two bounds, int64[1] each. size: its elements, as a value; index: the numbers below that."""

    dim: int
    count: DimLike
    size: str
    index: str
    bounds: tuple[str, str]


def _axes(n: OnnxLoweringContext, first: str, second: str, dims: list[int]) -> Iterator[_BoundedAxis]:
    """Yield the axes, with the elements of two operands as bounds."""
    for at, dim in enumerate(dims):
        count = n.spec().shape[dim]
        size, index = n.b.dims(values=[count]), n.b.arange(end=count, dtype="int64")
        bounds = (n.b.slice(v, dim=0, start=at, end=at + 1) for v in (first, second))
        low, high = (n.cast(str(b), DType.INT64) for b in bounds)
        yield _BoundedAxis(dim, count, str(size), str(index), (low, high))


def _bounds(n: OnnxLoweringContext, position: int) -> int:
    """Return the number of bounds that an operand has."""
    shape = n.spec(position).shape
    if len(shape) != 1 or not isinstance(shape[0], int):
        raise NotLowered(f"operand {position} has the shape {n.spec(position)}, not a known number of bounds")
    return shape[0]


def _chosen(n: OnnxLoweringContext, position: int, count: int) -> list[int]:
    """Return the axes of ``count`` bounds: those of an operand, by default the first ones."""
    rank = n.spec().rank
    axes = n.ints(position, "axes") if n.opt(position) else list(range(count))
    if (
        len(axes) != count
        or not all(-rank <= a < rank for a in axes)
        or len({a % rank for a in axes}) < count
    ):
        raise NotLowered(f"{count} bounds for the axes {axes} of a value of rank {rank}")
    return [a % rank for a in axes]


def _symbol(n: OnnxLoweringContext) -> Dim:
    (symbol,) = n.b.sizes(1)
    return symbol


def _slice(n: OnnxLoweringContext) -> Results:
    """Lower Slice. Negative bounds count from the end."""
    dims = _chosen(n, 3, _bounds(n, 1))
    steps = n.ints(4, "steps") if n.opt(4) else [1] * len(dims)
    if len(steps) != len(dims) or _bounds(n, 2) != len(dims) or not all(steps):
        raise NotLowered(f"{len(dims)} starts, {_bounds(n, 2)} ends and the steps {steps}")
    y = n.x
    for axis, step in zip(_axes(n, n.input(1), n.input(2), dims), steps, strict=True):
        start, end = (_from_end(n, bound, axis.size) for bound in axis.bounds)
        inside, distance = _between(n, axis, start, end, step)
        if abs(step) > 1:
            inside = n.b.logical_and(inside, n.b.eq(n.b.remainder(distance, abs(step)), 0))
        y = n.b.compress(y, inside, count=_symbol(n), dim=axis.dim)
        y = y if step > 0 else n.b.flip(y, dims=[axis.dim])
    return str(y)


def _from_end(n: OnnxLoweringContext, bound: str, size: str) -> Any:
    return n.b.where(n.b.lt(bound, 0), n.b.add(bound, size), bound)


def _between(n: OnnxLoweringContext, axis: _BoundedAxis, start: Any, end: Any, step: int) -> tuple[Any, Any]:
    """Return whether each index is in the slice, and its distance from the first one. The first is an element of the axis."""
    if step > 0:
        start = n.b.maximum(start, 0)
        within = n.b.logical_and(n.b.ge(axis.index, start), n.b.lt(axis.index, end))
        return within, n.b.sub(axis.index, start)
    start = n.b.minimum(n.b.maximum(start, 0), n.b.sub(axis.size, 1))
    within = n.b.logical_and(n.b.le(axis.index, start), n.b.gt(axis.index, end))
    return within, n.b.sub(start, axis.index)


def _pad(n: OnnxLoweringContext) -> Results:
    """Lower Pad with a constant or the edge; negative pads crop."""
    mode = n.attr("mode", "constant")
    if mode not in _SELECTED:
        raise NotLowered(f"its pads are known only at run time, and its mode is {mode}")
    count, half = _bounds(n, 1), _bounds(n, 1) // 2
    if count != 2 * (half if n.opt(3) else n.spec().rank):
        raise NotLowered(f"{count} pads of a value of rank {n.spec().rank}")
    dims = _chosen(n, 3, half)
    first, second = (str(n.b.slice(n.input(1), dim=0, start=at, end=at + half)) for at in (0, half))
    y = n.x
    for axis in _axes(n, first, second, dims):
        operand, repeats = _SELECTED[mode](n, axis, y)
        indices = n.b.repeat_interleave(repeats, count=_symbol(n))
        y = str(n.b.index_select(operand, indices, dim=axis.dim))
    return y


def _counts(n: OnnxLoweringContext, axis: _BoundedAxis) -> tuple[str, str, str]:
    """Return the elements of padding before those of the axis, 1 for each of those that pads do not crop (else 0), and the elements of padding after.

    An end that crops more than the axis has crops the other end's padding.
    """
    before, after = axis.bounds
    total = n.b.maximum(n.b.add(n.b.add(axis.size, before), after), 0)
    end = n.b.add(axis.size, after)
    inside = n.b.logical_and(n.b.ge(axis.index, n.b.neg(before)), n.b.lt(axis.index, end))
    kept = n.cast(str(inside), DType.INT64)
    leading = n.b.minimum(n.b.maximum(before, 0), total)
    own = n.b.sum(kept, dim=[0], keepdim=True)
    return str(leading), kept, str(n.b.sub(n.b.sub(total, leading), own))


def _constant(n: OnnxLoweringContext, axis: _BoundedAxis, y: str) -> tuple[str, str]:
    """Return the operand between two elements of padding, and how often each counts."""
    shape = list(n.spec_of(y).shape)
    shape[axis.dim] = 1
    value = n.input(2) if n.opt(2) else n.like(0)
    fill = n.b.expand(n.b.view(value, size=[1] * len(shape)), size=shape)
    repeats = n.b.call("cat", *_counts(n, axis), dim=0)
    return str(n.b.call("cat", fill, y, fill, dim=axis.dim)), str(repeats)


def _edge(n: OnnxLoweringContext, axis: _BoundedAxis, y: str) -> tuple[str, str]:
    """Return the operand, and how often each element counts: the first and the last one that are kept also as padding."""
    before, after = axis.bounds
    leading, repeats, trailing = _counts(n, axis)
    end = n.b.sub(axis.size, 1)
    first = n.b.minimum(n.b.maximum(n.b.neg(before), 0), end)
    last = n.b.maximum(n.b.add(end, n.b.minimum(after, 0)), 0)
    for place, count in ((first, leading), (last, trailing)):
        more = n.b.mul(n.cast(str(n.b.eq(axis.index, place)), DType.INT64), count)
        repeats = str(n.b.add(repeats, more))
    return y, repeats


_SELECTED: dict[str, Callable[[OnnxLoweringContext, _BoundedAxis, str], tuple[str, str]]] = {
    "constant": _constant,
    "edge": _edge,
}
"""Mode of a Pad -> its operand, and how often each element of an axis counts."""

AT_RUN_TIME: dict[str, OpLowering] = {"Pad": _pad, "Slice": _slice}
