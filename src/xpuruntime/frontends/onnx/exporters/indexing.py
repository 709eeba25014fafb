"""Ops that read and write at places, in ONNX: GatherND and ScatterND over the indexed dims, which are brought to the front."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ....ir import interp
from ....protocols import Array
from ....types import DimLike, DType
from .graph_builder import Form, Writing

__all__ = ["FORMS"]

_MOST = 1 << 22
"""Elements of a table of places, and of the differences of a distance."""


class _Places:
    """Where ``index`` reads, as ONNX names it.

    front: dims of x, those that are indexed first. shape: of the broadcast indices. at: where their dims are in the result.
    places: the value with a place in the indexed dims for each element of ``shape``.
    """

    def __init__(self, w: Writing, first: int) -> None:
        rank = w.spec().rank
        inputs = w.node.inputs[first:]
        self.indexed = [d for d, value in enumerate(inputs) if value is not None]
        rest = [d for d in range(rank) if d not in self.indexed]
        if not self.indexed or any(w.spec(first + d).dtype is DType.BOOL for d in self.indexed):
            raise w.no("indices must be integers")
        self.front = [*self.indexed, *rest]
        together = self.indexed == list(range(self.indexed[0], self.indexed[-1] + 1))
        self.at = self.indexed[0] if together else 0
        self.shape = _broadcast(w, [w.spec(first + d).shape for d in self.indexed])
        self.rest = [w.spec().shape[d] for d in rest]
        wide = w.pen.dims([*self.shape, 1])
        columns = []
        for d in self.indexed:
            index = w.operand(first + d, DType.INT64)
            column = _unsqueezed(w, index, w.spec(first + d).rank)
            columns.append(w.add("Expand", [column, wide]))
        self.places = columns[0] if len(columns) == 1 else w.add("Concat", columns, axis=-1)

    def result_order(self) -> list[int]:
        """The permutation from (indices, rest) to the result's dims."""
        k = len(self.shape)
        rest = list(range(k, k + len(self.rest)))
        return [*rest[: self.at], *range(k), *rest[self.at :]]


def _unsqueezed(w: Writing, value: str, axis: int) -> str:
    """With one more dim. The axis is an input from opset 13 on."""
    if w.opset >= 13:
        return w.add("Unsqueeze", [value, w.ints([axis])])
    return w.add("Unsqueeze", [value], axes=[axis])


def _broadcast(w: Writing, shapes: Sequence[Sequence[DimLike]]) -> list[DimLike]:
    result: list[DimLike] = [1] * max(map(len, shapes))
    for shape in shapes:
        for i, size in enumerate(shape, start=len(result) - len(shape)):
            if result[i] == 1:
                result[i] = size
            elif size not in (1, result[i]):
                raise w.no("how its indices broadcast is known only when it runs")
    return result


def _turned(w: Writing, value: str, order: Sequence[int], *, out: bool = False) -> str:
    """Transposed; where that changes nothing, the value itself unless it is the result."""
    if list(order) == list(range(len(order))):
        return w.add("Identity", [value], out=True) if out else value
    return w.add("Transpose", [value], out=out, perm=list(order))


def _index(w: Writing) -> None:
    p = _Places(w, 1)
    found = w.add("GatherND", [_turned(w, w.operand(0), p.front), p.places])
    _turned(w, found, p.result_order(), out=True)


def _index_put(w: Writing) -> None:
    """Of several values for one place any may stay, as in PyTorch."""
    accumulate = bool(w["accumulate"])
    if accumulate and w.opset < 16:
        raise w.no("opsets below 16 cannot add to places")
    p = _Places(w, 2)
    order = p.result_order()
    shape = [([*p.shape, *p.rest])[i] for i in order]
    values = w.add("Expand", [w.operand(1, w.spec().dtype), w.pen.dims(shape)])
    values = _turned(w, values, [order.index(i) for i in range(len(order))])
    operands = [_turned(w, w.operand(0), p.front), p.places, values]
    made = w.add("ScatterND", operands, reduction="add" if accumulate else None)
    _turned(w, made, [p.front.index(d) for d in range(len(p.front))], out=True)


def _index_copy(w: Writing) -> None:
    x, dim = w.spec(), w["dim"]
    if not x.rank or w.spec(1).rank != 1 or w.spec(2).rank != x.rank:
        raise w.no("a scalar among its operands")
    order = [dim, *(d for d in range(x.rank) if d != dim)]
    places = _unsqueezed(w, w.operand(1, DType.INT64), 1)
    turned = [_turned(w, w.operand(i), order) for i in (0, 2)]
    made = w.add("ScatterND", [turned[0], places, turned[1]])
    _turned(w, made, [order.index(d) for d in range(x.rank)], out=True)


def _slice_scatter(w: Writing) -> None:
    """What lies before, the new part, and what lies behind; with a step, at its places."""
    dim, start, end = w["dim"], w["start"], w["end"]
    size = w.spec().shape[dim]
    if not isinstance(size, int) or not isinstance(start, int) or not isinstance(end, int | None):
        raise w.no("writing to a slice of symbolic size")
    places = range(size)[slice(start, end, w["step"])]
    _replaced(w, dim, places, w.operand(1, w.spec().dtype))


def _select_scatter(w: Writing) -> None:
    dim, index = w["dim"], w["index"]
    size = w.spec().shape[dim]
    if not isinstance(size, int) or not isinstance(index, int):
        raise w.no("writing to a place of symbolic size")
    src = _unsqueezed(w, w.operand(1, w.spec().dtype), dim)
    _replaced(w, dim, range(index % size, index % size + 1), src)


def _replaced(w: Writing, dim: int, places: range, src: str) -> None:
    if not places:
        w.add("Identity", [w.operand(0)], out=True)
        return
    if places.step != 1:
        x = w.spec()
        order = [dim, *(d for d in range(x.rank) if d != dim)]
        at = w.constant(np.array(places, np.int64)[:, None])
        made = w.add("ScatterND", [_turned(w, w.operand(0), order), at, _turned(w, src, order)])
        _turned(w, made, [order.index(d) for d in range(x.rank)], out=True)
        return
    parts = [src]
    if places.start:
        parts.insert(0, w.add("Slice", [w.operand(0), w.ints([0]), w.ints([places.start]), w.ints([dim])]))
    if places.stop != w.spec().shape[dim]:
        bounds = [w.ints([places.stop]), w.ints([2**63 - 1]), w.ints([dim])]
        parts.append(w.add("Slice", [w.operand(0), *bounds]))
    w.add("Concat", parts, out=True, axis=dim)


def _im2col(w: Writing) -> None:
    """A Gather of each map's elements by a table of places."""
    spec, n = w.spec(), len(w["kernel_size"])
    sizes = [d for d in spec.shape[2:] if isinstance(d, int)]
    if len(sizes) < n or not isinstance(spec.shape[1], int):
        raise w.no("windows over maps of symbolic size")
    padding = list(w["padding"]) * (1 if len(w["padding"]) == 2 * n else 2)
    x = w.operand(0)
    if any(padding):
        pads = [0, 0, *padding[:n], 0, 0, *padding[n:]]
        x = w.add("Pad", [x, w.ints(pads), w.constant(0, spec.dtype)], mode="constant")
        sizes = [s + padding[i] + padding[n + i] for i, s in enumerate(sizes)]
    attrs = {k: w[k] for k in ("kernel_size", "stride", "dilation")}
    numbers = np.arange(math.prod(sizes), dtype=np.int64).reshape(1, 1, *sizes)
    (table,) = interp.apply("im2col", numbers, padding=[0] * n, **attrs)
    every = w.add("Gather", [_shaped(w, x, [spec.shape[0], spec.shape[1], -1]), _table(w, table[0])], axis=2)
    w.add("Reshape", [every, w.pen.dims(list(_open_first(w.node.spec.shape)))], out=True)


def _diagonal(w: Writing) -> None:
    spec, dims = w.spec(), (w["dim1"], w["dim2"])
    sizes = [s for d in dims if isinstance(s := spec.shape[d], int)]
    if len(sizes) < 2:
        raise w.no("the diagonal of dims of symbolic size")
    rest = [d for d in range(spec.rank) if d not in dims]
    lines = _turned(w, w.operand(0), [*rest, *dims])
    lines = _shaped(w, lines, [*(spec.shape[d] for d in rest), math.prod(sizes)])
    numbers = np.arange(math.prod(sizes), dtype=np.int64).reshape(sizes)
    table = np.diagonal(numbers, w["offset"])
    w.add("Gather", [lines, _table(w, table)], out=True, axis=len(rest))


def _table(w: Writing, places: Array) -> str:
    if places.size > _MOST:
        raise w.no(f"a table of {places.size:,} places")
    return w.constant(np.ascontiguousarray(places), DType.INT64)


def _shaped(w: Writing, value: str, size: Sequence[DimLike]) -> str:
    if 0 in size:
        raise w.no("a dim of no elements")
    return w.add("Reshape", [value, w.pen.dims(list(_open_first(size)))])


def _open_first(size: Sequence[DimLike]) -> Sequence[DimLike]:
    """A symbolic first dim is the one that Reshape finds by itself, unless another is."""
    return [-1, *size[1:]] if not isinstance(size[0], int) and -1 not in size else size


def _masked_scatter(w: Writing) -> None:
    """Each place of the mask takes the element of its own number; the others keep x."""
    if 0 in w.spec(2).shape or not w.spec(0).rank or not w.spec(1).rank:
        raise w.no("a source without elements, or a scalar")
    if w.opset < 12:
        raise w.no("opsets below 12 have no largest of integers")
    shape = w.pen.dims(list(w.node.spec.shape))
    mask = w.add("Expand", [w.operand(1), shape])
    flat = w.add("Reshape", [w.cast(mask, DType.INT64), w.ints([-1])])
    number = w.add("Sub", [w.add("CumSum", [flat, w.constant(0, DType.INT64)]), w.ints([1])])
    number = w.add("Max", [number, w.ints([0])])
    source = w.add("Reshape", [w.operand(2), w.ints([-1])])
    taken = w.add("Reshape", [w.add("Gather", [source, number], axis=0), shape])
    w.add("Where", [mask, taken, w.operand(0)], out=True)


def _cdist(w: Writing) -> None:
    a, b, p = w.spec(0), w.spec(1), float(w["p"])
    size = math.prod(d for d in (*w.node.spec.shape, a.shape[-1]) if isinstance(d, int))
    if size > _MOST:
        raise w.no(f"{size:,} differences")
    left = _unsqueezed(w, w.operand(0), a.rank - 1)
    right = _unsqueezed(w, w.operand(1), b.rank - 2)
    apart = w.add("Abs", [w.add("Sub", [left, right])])
    if a.shape[-1] == 0 or p == 0 or w.opset < 13:
        raise w.no("distances of rows without elements, of p = 0, or below opset 13")
    last = w.ints([-1])
    if p in (1, 2):
        total = apart if p == 1 else w.add("Mul", [apart, apart])
        total = w.add("ReduceSum", [total, last], keepdims=0)
        w.add("Identity" if p == 1 else "Sqrt", [total], out=True)
    elif math.isinf(p):
        if w.opset >= 18:
            w.add("ReduceMax", [apart, last], out=True, keepdims=0)
        else:
            w.add("ReduceMax", [apart], out=True, keepdims=0, axes=[-1])
    else:
        total = w.add("Pow", [apart, w.constant(p, a.dtype)])
        w.add("Pow", [w.add("ReduceSum", [total, last], keepdims=0), w.constant(1 / p, a.dtype)], out=True)


FORMS: dict[str, Form] = {
    "cdist": _cdist,
    "diagonal": _diagonal,
    "im2col": _im2col,
    "index": _index,
    "index_copy": _index_copy,
    "index_put": _index_put,
    "masked_scatter": _masked_scatter,
    "select_scatter": _select_scatter,
    "slice_scatter": _slice_scatter,
}
