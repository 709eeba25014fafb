"""Exporters of indexing: GatherND and ScatterND over the indexed dims, which are moved to the front."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ....ir import interp
from ....protocols import Array
from ....types import DimLike, DType
from .graph_builder import Exporter, NodeExport

__all__ = ["EXPORTERS"]

_MAX_TABLE_ELEMENTS = 1 << 22
"""Maximum elements of an index table, and of the differences of a distance."""


class _IndexTuples:
    """The operands of ``index`` as GatherND's index tuples.

    front: dims of x, indexed ones first. shape: shape of the broadcast indices. at: position of its dims in the result.
    index_tuples: value with an index tuple of the indexed dims for each element of ``shape``.
    """

    def __init__(self, e: NodeExport, first: int) -> None:
        rank = e.spec().rank
        inputs = e.node.inputs[first:]
        self.indexed = [d for d, value in enumerate(inputs) if value is not None]
        other_dims = [d for d in range(rank) if d not in self.indexed]
        if not self.indexed or any(e.spec(first + d).dtype is DType.BOOL for d in self.indexed):
            raise e.no("indices must be integers")
        self.front = [*self.indexed, *other_dims]
        together = self.indexed == list(range(self.indexed[0], self.indexed[-1] + 1))
        self.at = self.indexed[0] if together else 0
        self.shape = _broadcast(e, [e.spec(first + d).shape for d in self.indexed])
        self.rest = [e.spec().shape[d] for d in other_dims]
        wide = e.builder.dims([*self.shape, 1])
        columns = []
        for d in self.indexed:
            index = e.operand(first + d, DType.INT64)
            column = _unsqueezed(e, index, e.spec(first + d).rank)
            columns.append(e.add("Expand", [column, wide]))
        self.index_tuples = columns[0] if len(columns) == 1 else e.add("Concat", columns, axis=-1)

    def result_order(self) -> list[int]:
        """Return the permutation from (indices, rest) to the result's dims."""
        k = len(self.shape)
        other_dims = list(range(k, k + len(self.rest)))
        return [*other_dims[: self.at], *range(k), *other_dims[self.at :]]


def _unsqueezed(e: NodeExport, value: str, axis: int) -> str:
    """Add Unsqueeze. The axis is an input from opset 13 on."""
    if e.opset >= 13:
        return e.add("Unsqueeze", [value, e.ints([axis])])
    return e.add("Unsqueeze", [value], axes=[axis])


def _broadcast(e: NodeExport, shapes: Sequence[Sequence[DimLike]]) -> list[DimLike]:
    result: list[DimLike] = [1] * max(map(len, shapes))
    for shape in shapes:
        for i, size in enumerate(shape, start=len(result) - len(shape)):
            if result[i] == 1:
                result[i] = size
            elif size not in (1, result[i]):
                raise e.no("the broadcast shape of its indices is known only at run time")
    return result


def _transposed(e: NodeExport, value: str, order: Sequence[int], *, out: bool = False) -> str:
    """Add Transpose; an identity permutation returns the value itself, or Identity if it is the result."""
    if list(order) == list(range(len(order))):
        return e.add("Identity", [value], out=True) if out else value
    return e.add("Transpose", [value], out=out, perm=list(order))


def _index(e: NodeExport) -> None:
    p = _IndexTuples(e, 1)
    gathered = e.add("GatherND", [_transposed(e, e.operand(0), p.front), p.index_tuples])
    _transposed(e, gathered, p.result_order(), out=True)


def _index_put(e: NodeExport) -> None:
    """Write index_put as ScatterND. For duplicate indices any of the values may stay, as in PyTorch."""
    accumulate = bool(e["accumulate"])
    if accumulate and e.opset < 16:
        raise e.no("opsets below 16 cannot accumulate")
    p = _IndexTuples(e, 2)
    order = p.result_order()
    shape = [([*p.shape, *p.rest])[i] for i in order]
    values = e.add("Expand", [e.operand(1, e.spec().dtype), e.builder.dims(shape)])
    values = _transposed(e, values, [order.index(i) for i in range(len(order))])
    operands = [_transposed(e, e.operand(0), p.front), p.index_tuples, values]
    scattered = e.add("ScatterND", operands, reduction="add" if accumulate else None)
    _transposed(e, scattered, [p.front.index(d) for d in range(len(p.front))], out=True)


def _index_copy(e: NodeExport) -> None:
    x, dim = e.spec(), e["dim"]
    if not x.rank or e.spec(1).rank != 1 or e.spec(2).rank != x.rank:
        raise e.no("one of its operands is a scalar")
    order = [dim, *(d for d in range(x.rank) if d != dim)]
    indices = _unsqueezed(e, e.operand(1, DType.INT64), 1)
    operands = [_transposed(e, e.operand(i), order) for i in (0, 2)]
    scattered = e.add("ScatterND", [operands[0], indices, operands[1]])
    _transposed(e, scattered, [order.index(d) for d in range(x.rank)], out=True)


def _slice_scatter(e: NodeExport) -> None:
    """Write slice_scatter as a Concat of the parts before, inside and after; with a step as ScatterND."""
    dim, start, end = e["dim"], e["start"], e["end"]
    size = e.spec().shape[dim]
    if not isinstance(size, int) or not isinstance(start, int) or not isinstance(end, int | None):
        raise e.no("writing to a slice of symbolic size")
    indices = range(size)[slice(start, end, e["step"])]
    _replaced(e, dim, indices, e.operand(1, e.spec().dtype))


def _select_scatter(e: NodeExport) -> None:
    dim, index = e["dim"], e["index"]
    size = e.spec().shape[dim]
    if not isinstance(size, int) or not isinstance(index, int):
        raise e.no("writing to an index of symbolic size")
    src = _unsqueezed(e, e.operand(1, e.spec().dtype), dim)
    _replaced(e, dim, range(index % size, index % size + 1), src)


def _replaced(e: NodeExport, dim: int, indices: range, src: str) -> None:
    if not indices:
        e.add("Identity", [e.operand(0)], out=True)
        return
    if indices.step != 1:
        x = e.spec()
        order = [dim, *(d for d in range(x.rank) if d != dim)]
        at = e.constant(np.array(indices, np.int64)[:, None])
        scattered = e.add("ScatterND", [_transposed(e, e.operand(0), order), at, _transposed(e, src, order)])
        _transposed(e, scattered, [order.index(d) for d in range(x.rank)], out=True)
        return
    parts = [src]
    if indices.start:
        parts.insert(0, e.add("Slice", [e.operand(0), e.ints([0]), e.ints([indices.start]), e.ints([dim])]))
    if indices.stop != e.spec().shape[dim]:
        bounds = [e.ints([indices.stop]), e.ints([2**63 - 1]), e.ints([dim])]
        parts.append(e.add("Slice", [e.operand(0), *bounds]))
    e.add("Concat", parts, out=True, axis=dim)


def _im2col(e: NodeExport) -> None:
    """Write im2col as a Gather of each map's elements by an index table."""
    spec, n = e.spec(), len(e["kernel_size"])
    sizes = [d for d in spec.shape[2:] if isinstance(d, int)]
    if len(sizes) < n or not isinstance(spec.shape[1], int):
        raise e.no("windows over maps of symbolic size")
    padding = list(e["padding"]) * (1 if len(e["padding"]) == 2 * n else 2)
    x = e.operand(0)
    if any(padding):
        pads = [0, 0, *padding[:n], 0, 0, *padding[n:]]
        x = e.add("Pad", [x, e.ints(pads), e.constant(0, spec.dtype)], mode="constant")
        sizes = [s + padding[i] + padding[n + i] for i, s in enumerate(sizes)]
    attrs = {k: e[k] for k in ("kernel_size", "stride", "dilation")}
    numbers = np.arange(math.prod(sizes), dtype=np.int64).reshape(1, 1, *sizes)
    (table,) = interp.apply("im2col", numbers, padding=[0] * n, **attrs)
    columns = e.add(
        "Gather", [_shaped(e, x, [spec.shape[0], spec.shape[1], -1]), _table(e, table[0])], axis=2
    )
    e.add("Reshape", [columns, e.builder.dims(list(_open_first(e.node.spec.shape)))], out=True)


def _diagonal(e: NodeExport) -> None:
    spec, dims = e.spec(), (e["dim1"], e["dim2"])
    sizes = [s for d in dims if isinstance(s := spec.shape[d], int)]
    if len(sizes) < 2:
        raise e.no("the diagonal of dims of symbolic size")
    other_dims = [d for d in range(spec.rank) if d not in dims]
    lines = _transposed(e, e.operand(0), [*other_dims, *dims])
    lines = _shaped(e, lines, [*(spec.shape[d] for d in other_dims), math.prod(sizes)])
    numbers = np.arange(math.prod(sizes), dtype=np.int64).reshape(sizes)
    table = np.diagonal(numbers, e["offset"])
    e.add("Gather", [lines, _table(e, table)], out=True, axis=len(other_dims))


def _as_strided(e: NodeExport) -> None:
    """Write as_strided as a Gather by an index table, along the dims that it does not keep."""
    shape, size, stride, offset = e.spec().shape, e["size"], e["stride"], e["offset"]
    kept = next((k for k in range(len(shape), -1, -1) if _keeps(k, shape, size, stride, offset)), None)
    if kept is None:
        raise e.no("strides over dims of symbolic size")
    table = np.full(size[kept:], offset, np.int64)
    for axis, step in enumerate(stride[kept:]):
        steps = np.arange(table.shape[axis]) * step
        table = table + steps.reshape([-1 if i == axis else 1 for i in range(table.ndim)])
    lines = _shaped(e, e.operand(0), [*shape[:kept], math.prod(shape[kept:])])
    e.add("Gather", [lines, _table(e, table)], out=True, axis=kept)


def _keeps(
    count: int, shape: Sequence[DimLike], size: Sequence[DimLike], stride: Sequence[DimLike], offset: DimLike
) -> bool:
    """Return whether as_strided keeps the first dims, so that each of their elements has its own, equal windows."""
    if count > len(size) or not isinstance(offset, int):
        return False
    if any(shape[i] != size[i] or stride[i] != math.prod(shape[i + 1 :]) for i in range(count)):
        return False
    sizes, steps, inner = ([d for d in row[count:] if isinstance(d, int)] for row in (size, stride, shape))
    if len(sizes) + count < len(size) or len(steps) < len(sizes) or len(inner) + count < len(shape):
        return False
    return offset + sum((s - 1) * step for s, step in zip(sizes, steps, strict=True)) < math.prod(inner)


def _masked_select(e: NodeExport) -> None:
    """Write masked_select as Compress of the flat operand."""
    x, mask = e.operand(0), e.operand(1)
    if e.spec(0).shape != e.spec(1).shape:
        size = e.builder.dims(_broadcast(e, [e.spec(0).shape, e.spec(1).shape]))
        x, mask = e.add("Expand", [x, size]), e.add("Expand", [mask, size])
    e.add("Compress", [x, e.add("Reshape", [mask, e.ints([-1])])], out=True)


def _embedding_bag(e: NodeExport) -> None:
    """Write embedding_bag as rows that are scattered to the bags of their positions."""
    spec, dtype, mode = e.spec(1), e.spec().dtype, e["mode"]
    count, bags = spec.shape[0], e.node.spec.shape[0]
    if spec.rank != 1 or not isinstance(count, int) or not isinstance(bags, int):
        raise e.no("bags of indices whose number is symbolic")
    if (mode == "max" and len(e.outs) > 3) or e.opset < 18:
        raise e.no("the indices of maxima, or opsets below 18")
    offsets, positions = e.operand(2, DType.INT64), e.constant(np.arange(count)[:, None], DType.INT64)
    starts = e.add("Slice", [offsets, e.ints([0]), e.ints([bags]), e.ints([0])])
    began = e.cast(e.add("LessOrEqual", [starts, positions]), DType.INT64)
    bag = e.add("Sub", [e.add("ReduceSum", [began, e.ints([1])], keepdims=1), e.ints([1])])
    valid = e.constant(np.ones((count, 1), bool))
    if e["include_last_offset"]:
        end = e.add("Slice", [offsets, e.ints([bags]), e.ints([bags + 1]), e.ints([0])])
        valid = e.add("Less", [positions, end])
    if e["padding_idx"] >= 0:
        index = _unsqueezed(e, e.operand(1, DType.INT64), 1)
        other = e.add("Not", [e.add("Equal", [index, e.ints([e["padding_idx"]])])])
        valid = e.add("And", [valid, other])
    rows = e.add("Gather", [e.operand(0), e.operand(1)], axis=0)
    if e.has(3):
        rows = e.add("Mul", [rows, _unsqueezed(e, e.operand(3, dtype), 1)])
    neutral = -math.inf if mode == "max" else 0
    rows = e.add("Where", [valid, rows, e.constant(neutral, dtype)])
    first = e.add("Expand", [e.constant(neutral, dtype), e.builder.dims(list(e.node.spec.shape))])
    total = e.add("ScatterND", [first, bag, rows], reduction="max" if mode == "max" else "add")
    zeros, ones = e.constant(np.zeros(bags), DType.INT64), e.cast(valid, DType.INT64)
    ones = e.add("Reshape", [ones, e.ints([-1])])
    size = e.add("ScatterND", [zeros, bag, ones], reduction="add")
    number = _unsqueezed(e, size, 1)
    if mode == "mean":
        total = e.add("Div", [total, e.cast(e.add("Max", [number, e.ints([1])]), dtype)])
    elif mode == "max":
        filled = e.add("Less", [e.ints([0]), number])
        total = e.add("Where", [filled, total, e.constant(0, dtype)])
    flat = e.add("Reshape", [bag, e.ints([-1])])
    for value, out in zip((total, flat, size, zeros), e.outs, strict=False):
        e.builder.add("Identity", [value], [out])


def _table(e: NodeExport, indices: Array) -> str:
    if indices.size > _MAX_TABLE_ELEMENTS:
        raise e.no(f"an index table of {indices.size:,} elements")
    return e.constant(indices.copy(), DType.INT64)


def _shaped(e: NodeExport, value: str, size: Sequence[DimLike]) -> str:
    if 0 in size:
        raise e.no("dims of size 0 are not supported")
    return e.add("Reshape", [value, e.builder.dims(list(_open_first(size)))])


def _open_first(size: Sequence[DimLike]) -> Sequence[DimLike]:
    """Return the size with -1 for a symbolic first dim, unless another dim is -1."""
    return [-1, *size[1:]] if not isinstance(size[0], int) and -1 not in size else size


def _masked_scatter(e: NodeExport) -> None:
    """Write masked_scatter: each true element of the mask takes the source element of its rank; the others keep x.

    An element before the source is what is read before the first true one, since the source may be empty.
    """
    if not e.spec(0).rank or not e.spec(1).rank:
        raise e.no("a scalar")
    shape = e.builder.dims(list(e.node.spec.shape))
    mask = e.add("Expand", [e.operand(1), shape])
    flat = e.add("Reshape", [e.cast(mask, DType.INT64), e.ints([-1])])
    number = e.add("CumSum", [flat, e.constant(0, DType.INT64)])
    source = e.add("Reshape", [e.operand(2), e.ints([-1])])
    source = e.add("Concat", [e.constant([0], e.spec(2).dtype), source], axis=0)
    selected = e.add("Reshape", [e.add("Gather", [source, number], axis=0), shape])
    e.add("Where", [mask, selected, e.operand(0)], out=True)


def _cdist(e: NodeExport) -> None:
    a, b, p = e.spec(0), e.spec(1), float(e["p"])
    size = math.prod(d for d in (*e.node.spec.shape, a.shape[-1]) if isinstance(d, int))
    if size > _MAX_TABLE_ELEMENTS:
        raise e.no(f"an intermediate value of {size:,} differences")
    left = _unsqueezed(e, e.operand(0), a.rank - 1)
    right = _unsqueezed(e, e.operand(1), b.rank - 2)
    apart = e.add("Abs", [e.add("Sub", [left, right])])
    if a.shape[-1] == 0 or p == 0 or e.opset < 13:
        raise e.no("distances of empty rows, of p = 0, or below opset 13")
    last = e.ints([-1])
    if p in (1, 2):
        total = apart if p == 1 else e.add("Mul", [apart, apart])
        total = e.add("ReduceSum", [total, last], keepdims=0)
        e.add("Identity" if p == 1 else "Sqrt", [total], out=True)
    elif math.isinf(p):
        if e.opset >= 18:
            e.add("ReduceMax", [apart, last], out=True, keepdims=0)
        else:
            e.add("ReduceMax", [apart], out=True, keepdims=0, axes=[-1])
    else:
        total = e.add("Pow", [apart, e.constant(p, a.dtype)])
        e.add("Pow", [e.add("ReduceSum", [total, last], keepdims=0), e.constant(1 / p, a.dtype)], out=True)


EXPORTERS: dict[str, Exporter] = {
    "as_strided": _as_strided,
    "cdist": _cdist,
    "diagonal": _diagonal,
    "embedding_bag": _embedding_bag,
    "im2col": _im2col,
    "index": _index,
    "index_copy": _index_copy,
    "index_put": _index_put,
    "masked_scatter": _masked_scatter,
    "masked_select": _masked_select,
    "select_scatter": _select_scatter,
    "slice_scatter": _slice_scatter,
}
