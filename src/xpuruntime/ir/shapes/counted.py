"""Ops whose results have sizes that only a run knows, as sorts, sums and gathers: results of the largest size, and the count.

A stable sort brings the selected elements to the front. What is behind the count is undefined.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from ...errors import IrError
from ...types import DType, TensorSpec
from ..build import GraphBuilder
from ..graph import Graph
from ..parts import Node
from ..rewrite import Editor

__all__ = ["EXPANSIONS", "CountedNode", "broadcast_sizes", "sizes"]

_MAX_COLUMNS = 64
"""Maximum elements of a slice that ``unique`` compares: each is one sort."""


def sizes(spec: TensorSpec) -> tuple[int, ...]:
    """Return a static shape as integers."""
    return tuple(int(d) for d in spec.shape if isinstance(d, int))


def broadcast_sizes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape to which static shapes broadcast."""
    rank = max(map(len, shapes))
    return tuple(
        min(column) if 0 in column else max(column)
        for column in zip(*((1,) * (rank - len(s)) + s for s in shapes), strict=True)
    )


class CountedNode:
    """A counting node, before which nodes are inserted."""

    def __init__(self, editor: Editor, node: Node) -> None:
        self.editor, self.node, self.attrs = editor, node, node.attrs

    def __call__(self, op: str, *inputs: Any, **attrs: Any) -> Any:
        return self.editor.insert(self.node, op, *inputs, **attrs)

    def input(self, position: int) -> str:
        return str(self.node.inputs[position])

    def optional(self, position: int) -> str | None:
        """Return an operand, or None if it is absent."""
        value = self.node.inputs[position] if position < len(self.node.inputs) else None
        return None if value is None else str(value)

    def shape(self, value: str) -> tuple[int, ...]:
        spec = self.editor.values[value].spec
        assert spec is not None
        return sizes(spec)

    def dtype(self, value: str) -> DType:
        spec = self.editor.values[value].spec
        assert spec is not None
        return spec.dtype

    def flat(self, value: str) -> str:
        return str(self("view", value, size=[math.prod(self.shape(value))]))

    def total(self, mask: str) -> str:
        """Return the number of true elements, as int64[]."""
        return str(self("sum", self("cast", mask, dtype=DType.INT64), dim=[0], keepdim=False))

    def front(self, mask: str) -> str:
        """Return the indices of a vector, those of its true elements first and in order."""
        _, order = self(
            "sort", self("cast", self("logical_not", mask), dtype=DType.INT32), dim=0, stable=True
        )
        return str(order)

    def places(self, length: int) -> str:
        return str(self("arange", start=0, end=length, dtype=DType.INT64))

    def zeros(self, length: int) -> str:
        return str(self("full", size=[length], value=0, dtype=DType.INT64))

    def done(self, *results: str) -> None:
        """Replace the node's results."""
        for value, result in zip(self.node.outputs, results, strict=False):
            self.editor.forward(value.name, result)
        self.editor.remove(self.node)


def _compress(e: CountedNode) -> str:
    x, mask, dim = e.input(0), e.flat(e.input(1)), e.attrs["dim"]
    x, axis = (e.flat(x), 0) if dim is None else (x, dim)
    mask = mask if e.dtype(mask) is DType.BOOL else e("ne", mask, 0)
    e.done(e("index_select", x, e.front(mask), dim=axis))
    return e.total(mask)


def _masked_select(e: CountedNode) -> str:
    shape = broadcast_sizes(e.shape(e.input(0)), e.shape(e.input(1)))
    x, mask = (e.flat(e("expand", e.input(i), size=shape)) for i in (0, 1))
    e.done(e("index_select", x, e.front(mask), dim=0))
    return e.total(mask)


def _nonzero(e: CountedNode) -> str:
    x, shape = e.flat(e.input(0)), e.shape(e.input(0))
    mask = x if e.dtype(x) is DType.BOOL else e("ne", x, 0)
    order = e.front(mask)
    columns = []
    for axis, size in enumerate(shape):
        below = max(math.prod(shape[axis + 1 :]), 1)
        column = e("remainder", e("div", order, below, rounding_mode="floor"), max(size, 1))
        columns.append(e("unsqueeze", column, dims=[1]))
    if not columns:
        raise IrError(
            f"node {e.node.name}", "counts the coordinates of a scalar, which has none", got=e.node.op
        )
    e.done(e("cat", *columns, dim=1))
    return e.total(mask)


def _unique(e: CountedNode) -> str:
    """Sort the elements (or slices), mark the first of each run of equal ones, and bring the marked to the front."""
    x, dim = e.input(0), e.attrs["dim"]
    order, starts = _runs_of_elements(e, x) if dim is None else _runs_of_slices(e, x, dim)
    (length,) = e.shape(order)
    total = e.total(starts)
    group = e("sub", e("cumsum", e("cast", starts, dtype=DType.INT64), dim=0), 1)
    first = e("index_select", order, e.front(starts), dim=0)  # stable: the first of equal elements
    inverse = e("scatter", e.zeros(length), order, group, dim=0)
    ones = e("full", size=[length], value=1, dtype=DType.INT64)
    counts = e("scatter", e.zeros(length), group, ones, dim=0, reduce="add")
    if not e.attrs["sorted"]:
        beyond = e("ge", e.places(length), total)
        _, rank = e("sort", e("where", beyond, length, first), dim=0, stable=True)
        first, counts = (e("index_select", v, rank, dim=0) for v in (first, counts))
        place = e("scatter", e.zeros(length), rank, e.places(length), dim=0)
        inverse = e("index_select", place, inverse, dim=0)
    values = e("index_select", e.flat(x) if dim is None else x, first, dim=0 if dim is None else dim)
    e.done(values, first, inverse, counts)
    return total


def _runs_of_elements(e: CountedNode, x: str) -> tuple[str, str]:
    """Return the indices of the sorted elements, and which of them differ from the element before. Two NaN are equal."""
    values, order = e("sort", e.flat(x), dim=0, stable=True)
    before = e("roll", values, shifts=[1], dims=[0])
    differs = e("ne", values, before)
    if e.dtype(values).is_float:
        same = e("logical_and", e("isnan", values), e("isnan", before))
        differs = e("logical_and", differs, e("logical_not", same))
    return order, e("logical_or", differs, e("eq", e.places(*e.shape(order)), 0))


def _runs_of_slices(e: CountedNode, x: str, dim: int) -> tuple[str, str]:
    """Return the indices of the slices in lexicographic order, and which of them differ from the slice before."""
    shape = e.shape(x)
    columns = math.prod(shape[:dim] + shape[dim + 1 :])
    if columns > _MAX_COLUMNS:
        what = f"compares slices of more than {_MAX_COLUMNS} elements, which cannot be padded"
        raise IrError(f"node {e.node.name}", what, got=columns)
    rows = e("permute", x, dims=[dim, *(d for d in range(len(shape)) if d != dim)])
    rows = e("view", rows, size=[shape[dim], columns])
    order = e.places(shape[dim])
    for column in reversed(range(columns)):
        keys = e("index_select", e("select", rows, dim=1, index=column), order, dim=0)
        _, now = e("sort", keys, dim=0, stable=True)
        order = e("index_select", order, now, dim=0)
    ordered = e("index_select", rows, order, dim=0)
    differs = e("any", e("ne", ordered, e("roll", ordered, shifts=[1], dims=[0])), dim=[1], keepdim=False)
    return order, e("logical_or", differs, e("eq", e.places(shape[dim]), 0))


def _nms(e: CountedNode) -> str:
    """Sort the boxes of each class by score, then keep or drop one box of every class in each iteration of a loop."""
    batches, classes, boxes = e.shape(e.input(1))
    scores, wide = e("cast", e.input(1), dtype=DType.FLOAT64), DType.FLOAT64
    _, order = e("sort", e("neg", scores), dim=2, stable=True)
    ordered = e("gather", scores, order, dim=2)
    threshold = e.optional(4)
    if threshold is None:
        dropped = e("full", size=[batches, classes, boxes], value=False, dtype=DType.BOOL)
    else:
        limit = e("view", e("cast", threshold, dtype=wide), size=[])
        dropped = e("logical_not", e("gt", ordered, limit))
    corners = _corners(e, e("cast", e.input(0), dtype=wide))
    at = e("expand", e("unsqueeze", order, dims=[3]), size=[batches, classes, boxes, 4])
    everywhere = e("expand", e("unsqueeze", corners, dims=[1]), size=[batches, classes, boxes, 4])
    corners = e("gather", everywhere, at, dim=2)
    most, overlap = e.optional(2), e.optional(3)
    most = (
        e("full", size=[], value=0, dtype=DType.INT64)
        if most is None
        else e("view", e("cast", most, dtype=DType.INT64), size=[])
    )
    overlap = (
        e("full", size=[], value=0.0, dtype=wide)
        if overlap is None
        else e("view", e("cast", overlap, dtype=wide), size=[])
    )
    kept = e("full", size=[batches, classes, boxes], value=False, dtype=DType.BOOL)
    body = _greedy(batches, classes, boxes)
    kept, _ = e("loop", None, None, kept, dropped, corners, most, overlap, body=body, carried=2, trips=boxes)
    mask = e.flat(kept)
    front = e.front(mask)
    columns = [
        e("div", front, max(classes * boxes, 1), rounding_mode="floor"),
        e("remainder", e("div", front, max(boxes, 1), rounding_mode="floor"), max(classes, 1)),
        e("index_select", e.flat(order), front, dim=0),
    ]
    e.done(e("cat", *(e("unsqueeze", c, dims=[1]) for c in columns), dim=1))
    return e.total(mask)


def _corners(e: CountedNode, boxes: str) -> str:
    """Return [y1, x1, y2, x2] with y1 <= y2, from any two opposite corners or from [x, y, width, height]."""
    low, high = e("split", boxes, sizes=[2, 2], dim=2)
    if not e.attrs["center_point_box"]:
        return str(e("cat", e("minimum", low, high), e("maximum", low, high), dim=2))
    center, half = e("flip", low, dims=[2]), e("div", e("flip", high, dims=[2]), 2.0)
    return str(e("cat", e("sub", center, half), e("add", center, half), dim=2))


def _greedy(batches: int, classes: int, boxes: int) -> Graph:
    """Return the body of the loop: iteration i keeps box i of each class, or not, and drops the boxes that it covers."""
    b, every = GraphBuilder("greedy"), (batches, classes, boxes)
    i = b.input("i", TensorSpec((), DType.INT64))
    kept, dropped = (b.input(name, TensorSpec(every, DType.BOOL)) for name in ("kept", "dropped"))
    corners = b.input("corners", TensorSpec((*every, 4), DType.FLOAT64))
    most = b.input("most", TensorSpec((), DType.INT64))
    overlap = b.input("overlap", TensorSpec((), DType.FLOAT64))
    here = b.view(i, size=[1])
    mine = b.index_select(corners, here, dim=2)
    low, high = ([b.slice(v, dim=3, start=s, end=s + 2) for v in (corners, mine)] for s in (0, 2))
    sides = b.maximum(b.sub(b.minimum(*high), b.maximum(*low)), 0.0)
    inter = b.prod(sides, dim=[3], keepdim=False)
    areas = [b.prod(b.sub(h, v), dim=[3], keepdim=False) for v, h in zip(low, high, strict=True)]
    union = b.sub(b.add(*areas), inter)
    covered = b.where(
        b.gt(union, 0.0), b.div(inter, union), b.full(size=every, value=0.0, dtype=DType.FLOAT64)
    )
    count = b.sum(b.cast(kept, dtype=DType.INT64), dim=[2], keepdim=True)
    keep = b.logical_and(b.logical_not(b.index_select(dropped, here, dim=2)), b.lt(count, most))
    at = b.eq(b.arange(start=0, end=boxes, dtype=DType.INT64), i)
    b.output("kept_now", b.logical_or(kept, b.logical_and(keep, at)))
    beyond = b.logical_not(b.le(covered, overlap))
    b.output("dropped_now", b.logical_or(dropped, b.logical_and(keep, beyond)))
    return b.build()


EXPANSIONS: Mapping[str, Callable[[CountedNode], str]] = MappingProxyType(
    {
        "compress": _compress,
        "masked_select": _masked_select,
        "non_max_suppression": _nms,
        "nonzero": _nonzero,
        "unique": _unique,
    }
)
"""Op -> its expansion, which returns the count."""
