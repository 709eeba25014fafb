"""Gather and scatter ops, embedding, one-hot, and searches by value.

Negative indices count from the end unless noted otherwise. An index out of range is an error at run time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...types import DimLike, DType, TensorSpec
from ..schema import Mismatch, OpCall, OpEntry, Operand, op
from ._shapes import broadcast, like, same, text
from .matmul import one_dtype

__all__ = ["ROWS"]

_REDUCE = "reduce: none|add|mul|amax|amin|mean = none"


def _index(spec: TensorSpec, who: str = "the index") -> TensorSpec:
    if not spec.dtype.is_integer:
        raise Mismatch(f"{who} must hold integers", spec.dtype.value)
    return spec


def _gather(c: OpCall) -> TensorSpec:
    x, index = c.tensor(0), _index(c.tensor(1))
    if max(x.rank, 1) != max(index.rank, 1) and 0 not in index.shape:
        raise Mismatch("x and index must have one rank", f"{x} and {index}")
    return like(x, index.shape)


def _index_select(c: OpCall) -> TensorSpec:
    x, index, dim = c.tensor(0), _index(c.tensor(1)), c["dim"]
    if not x.rank:  # PyTorch accepts a scalar as a vector of one element
        if index.shape not in ((), (1,)):
            raise Mismatch("a scalar has only one element to select", str(index))
        return like(x)
    return like(x, (*x.shape[:dim], *index.shape, *x.shape[dim + 1 :]))


def _embedding(c: OpCall) -> TensorSpec:
    weight, indices = c.tensor(0), _index(c.tensor(1))
    if weight.rank != 2:
        raise Mismatch("the weight must have rank 2", str(weight))
    return like(weight, (*indices.shape, weight.shape[1]))


def _embedding_bag(c: OpCall) -> list[TensorSpec]:
    weight, indices, offsets = c.tensor(0), _index(c.tensor(1)), _index(c.tensor(2), "offsets")
    bags = offsets.shape[0] - 1 if c["include_last_offset"] else offsets.shape[0]
    per_bag = TensorSpec((bags,), indices.dtype)
    return [like(weight, (bags, weight.shape[1])), like(indices), per_bag, per_bag]


def _gather_nd(c: OpCall) -> TensorSpec:
    x, indices, batch = c.tensor(0), _index(c.tensor(1)), c["batch_dims"]
    depth = indices.shape[-1] if indices.rank else None
    if not isinstance(depth, int) or batch < 0 or batch >= indices.rank or batch + depth > x.rank:
        raise Mismatch(
            "the last dim of indices must be known and at most x's rank",
            f"{indices} for {x}, batch_dims {batch}",
        )
    lead = tuple(
        same(a, b, "the batch dims") for a, b in zip(x.shape[:batch], indices.shape[:batch], strict=True)
    )
    return like(x, (*lead, *indices.shape[batch:-1], *x.shape[batch + depth :]))


def _scatter(c: OpCall) -> TensorSpec:
    x, index = c.tensor(0), _index(c.tensor(1))
    src = c.operands[2]
    if x.rank != index.rank and x.rank and index.rank:
        raise Mismatch("x and index must have one rank", f"{x} and {index}")
    if isinstance(src, TensorSpec):
        one_dtype(x, src)
        if src.rank != index.rank and src.rank and index.rank:
            raise Mismatch("src and index must have one rank", f"{src} and {index}")
        for a, b in zip(src.shape, index.shape, strict=False):
            if isinstance(a, int) and isinstance(b, int) and a < b:
                raise Mismatch("src must be at least as large as index", f"{src} and {index}")
    return like(x)


def _scatter_nd(c: OpCall) -> TensorSpec:
    x, indices, updates = c.tensor(0), _index(c.tensor(1)), c.tensor(2)
    depth = indices.shape[-1] if indices.rank else None
    if not isinstance(depth, int) or depth > x.rank:
        raise Mismatch("the last dim of indices must be known and at most x's rank", f"{indices} for {x}")
    want = (*indices.shape[:-1], *x.shape[depth:])
    if len(want) != updates.rank:
        raise Mismatch("updates must fit the indices", f"{updates}, wanted {text(want)}")
    for a, b in zip(updates.shape, want, strict=True):
        same(a, b, "the shape of updates and of the indexed elements")
    one_dtype(x, updates)
    return like(x)


def _indexed(x: TensorSpec, indices: list[TensorSpec | None]) -> tuple[DimLike, ...]:
    """Return the shape of NumPy's advanced indexing. The indices broadcast to one shape.

    It replaces the indexed dims if they are adjacent; otherwise it comes first.
    """
    if len(indices) > x.rank:
        raise Mismatch("has more indices than dims", f"{len(indices)} for {x}")
    indexed_dims = [i for i, index in enumerate(indices) if index is not None]
    if not indexed_dims:
        return x.shape
    block = broadcast(*(_index(index).shape for index in indices if index is not None))
    other_dims = [d for i, d in enumerate(x.shape) if i not in indexed_dims]
    first = indexed_dims[0] if indexed_dims == list(range(indexed_dims[0], indexed_dims[-1] + 1)) else 0
    return (*other_dims[:first], *block, *other_dims[first:])


def _index_op(c: OpCall) -> TensorSpec:
    x = c.tensor()
    return like(x, _indexed(x, c.rest(1)))


def _index_put(c: OpCall) -> TensorSpec:
    x, values = c.tensor(0), c.tensor(1)
    shape = _indexed(x, c.rest(2))
    if broadcast(values.shape, shape) != shape:
        raise Mismatch(
            "values must broadcast to the shape of the indexed elements", f"{values} to {text(shape)}"
        )
    one_dtype(x, values)
    return like(x)


def _index_copy(c: OpCall) -> TensorSpec:
    x, index, source, dim = c.tensor(0), _index(c.tensor(1)), c.tensor(2), c["dim"]
    if index.rank > 1 or source.rank != x.rank:
        raise Mismatch("index must have rank 1 and source x's rank", f"{index}, {source}")
    for i, (a, b) in enumerate(zip(source.shape, x.shape, strict=True)):
        want = (index.shape[0] if index.rank else 1) if i == dim else b
        same(a, want, f"dim {i} of source and of the indexed elements")
    one_dtype(x, source)
    return like(x)


def _masked_scatter(c: OpCall) -> TensorSpec:
    x, mask, source = c.tensor(0), c.tensor(1), c.tensor(2)
    if mask.dtype is not DType.BOOL:
        raise Mismatch("the mask must be bool", mask.dtype.value)
    one_dtype(x, source)
    return like(x, broadcast(x.shape, mask.shape))


def _tensor_scatter(c: OpCall) -> TensorSpec:
    past, update = c.tensor(0), c.tensor(1)
    if past.rank != update.rank:
        raise Mismatch("past and update must have one rank", f"{past} and {update}")
    one_dtype(past, update)
    return like(past)


def _place_one_hot(attrs: dict[str, Any], operands: Sequence[Operand]) -> None:
    """Count a negative ``dim`` from the end of the result, which has one dim more than the indices."""
    indices = operands[0]
    if isinstance(indices, TensorSpec) and attrs["dim"] < 0:
        attrs["dim"] += indices.rank + 1


def _one_hot(c: OpCall) -> TensorSpec:
    indices, values, dim = c.tensor(0), c.tensor(1), c["dim"]
    if not 0 <= dim <= indices.rank:
        raise Mismatch("dim is outside the result's rank", f"{dim} for rank {indices.rank + 1}")
    if values.shape != (2,):
        raise Mismatch("values must be [off, on]", str(values))
    shape = list(indices.shape)
    shape.insert(dim, c["depth"])
    return TensorSpec(tuple(shape), values.dtype)


def _topk(c: OpCall) -> list[TensorSpec]:
    x, dim, k = c.tensor(), c["dim"], c["k"]
    size = x.shape[dim] if x.rank else 1
    if isinstance(size, int) and isinstance(k, int) and not 0 <= k <= size:
        raise Mismatch("k must be within the dim", f"{k} of {size}")
    shape = (*x.shape[:dim], k, *x.shape[dim + 1 :]) if x.rank else ()
    return [like(x, shape), TensorSpec(shape, DType.INT64)]


def _sort(c: OpCall) -> list[TensorSpec]:
    x = c.tensor()
    return [like(x), TensorSpec(x.shape, DType.INT64)]


def _nonzero(c: OpCall) -> TensorSpec:
    return TensorSpec((c["count"], c.tensor().rank), DType.INT64)


def _masked_select(c: OpCall) -> TensorSpec:
    return like(c.tensor(), (c["count"],))


def _compress(c: OpCall) -> TensorSpec:
    x, dim = c.tensor(), c["dim"]
    return like(x, (c["count"],) if dim is None else (*x.shape[:dim], c["count"], *x.shape[dim + 1 :]))


def _unique(c: OpCall) -> list[TensorSpec]:
    x, dim, count = c.tensor(), c["dim"], c["count"]
    values = like(x, (count,) if dim is None else (*x.shape[:dim], count, *x.shape[dim + 1 :]))
    total: DimLike = 1
    for d in x.shape:
        total = total * d
    inverse = total if dim is None else x.shape[dim]
    return [values, *(TensorSpec((n,), DType.INT64) for n in (count, inverse, count))]


def _bincount(c: OpCall) -> TensorSpec:
    x, weights = _index(c.tensor(0), "x"), c.optional(1)
    if x.rank != 1:
        raise Mismatch("x must have rank 1", str(x))
    if weights is None:
        return TensorSpec((c["count"],), DType.INT64)
    same(x.shape[0], weights.shape[0] if weights.rank == 1 else 0, "the sizes of x and weights")
    return like(weights, (c["count"],))


def _repeat_interleave(c: OpCall) -> TensorSpec:
    repeats = _index(c.tensor(0), "repeats")
    if repeats.rank != 1:
        raise Mismatch("repeats must have rank 1", str(repeats))
    return like(repeats, (c["count"],))


def _nms(c: OpCall) -> TensorSpec:
    boxes, scores = c.tensor(0), c.tensor(1)
    if boxes.rank != 3 or scores.rank != 3:
        raise Mismatch("boxes must be [N, B, 4] and scores [N, C, B]", f"{boxes} and {scores}")
    return TensorSpec((c["count"], 3), DType.INT64)


_D = "data_movement"
_COUNT = "the number of selected elements is only known at run time"

ROWS: tuple[OpEntry, ...] = (
    op(
        "gather(x, index; dim: axis) -> y",
        _D,
        _gather,
        aten="gather",
        onnx="GatherElements",
        meaning="y[i, j] = x[index[i, j], j] for dim 0",
    ),
    op(
        "index_select(x, index; dim: axis, wrap: bool = true) -> y",
        _D,
        _index_select,
        aten="index_select",
        onnx="Gather",
        meaning="numpy.take: the dim is replaced by the index's dims (of any rank); a negative index is an error without wrap",
    ),
    op("embedding(weight, indices; padding_idx: int = -1) -> y", "embedding", _embedding, aten="embedding"),
    op(
        "embedding_bag(weight, indices, offsets, per_sample_weights?; mode: sum|mean|max = sum,"
        " include_last_offset: bool = false, padding_idx: int = -1) -> y, offset2bag?, bag_size?, max_indices?",
        "embedding",
        _embedding_bag,
        aten="_embedding_bag",
    ),
    op("gather_nd(x, indices; batch_dims: int = 0) -> y", _D, _gather_nd, onnx="GatherND"),
    op(
        f"scatter(x, index, src#; dim: axis, {_REDUCE}, include_self: bool = true) -> y",
        _D,
        _scatter,
        aten="scatter.src scatter.value scatter_add scatter_reduce.two",
        onnx="Scatter ScatterElements",
    ),
    op(f"scatter_nd(x, indices, updates; {_REDUCE}) -> y", _D, _scatter_nd, onnx="ScatterND"),
    op("index(x, indices?*) -> y", _D, _index_op, aten="index.Tensor"),
    op("index_put(x, values, indices?*; accumulate: bool = false) -> y", _D, _index_put, aten="index_put"),
    op("index_copy(x, index, source; dim: axis) -> y", _D, _index_copy, aten="index_copy"),
    op("masked_scatter(x, mask, source) -> y", _D, _masked_scatter, aten="masked_scatter"),
    op(
        "tensor_scatter(past, update, starts?; dim: axis = -2, mode: linear|circular = linear) -> y",
        _D,
        _tensor_scatter,
        onnx="TensorScatter",
        meaning="writes update into past along dim, from starts[i] for batch i",
    ),
    op(
        "one_hot(indices, values; depth: dim, dim: int = -1) -> y",
        "create",
        _one_hot,
        place=_place_one_hot,
        onnx="OneHot",
        meaning="values is [off, on]; an index outside [-depth, depth) gives all off; dim is that of y",
    ),
    op(
        "topk(x; k: dim, dim: axis = -1, largest: bool = true, sorted: bool = true) -> values, indices",
        "search",
        _topk,
        aten="topk",
        onnx="TopK",
    ),
    op(
        "sort(x; dim: axis = -1, descending: bool = false, stable: bool = false) -> values, indices",
        "search",
        _sort,
        aten="sort",
    ),
    op(
        "nonzero(x; count: dim) -> y",
        "search",
        _nonzero,
        aten="nonzero",
        onnx="NonZero",
        data_dependent=_COUNT,
        meaning="[count, rank], one row per non-zero element (ONNX has it transposed); count is a new symbol",
    ),
    op(
        "masked_select(x, mask; count: dim) -> y",
        _D,
        _masked_select,
        aten="masked_select",
        data_dependent=_COUNT,
    ),
    op(
        "compress(x, condition; count: dim, dim: axis? = none) -> y",
        _D,
        _compress,
        onnx="Compress",
        data_dependent=_COUNT,
    ),
    op(
        "unique(x; count: dim, dim: axis? = none, sorted: bool = true) -> y, indices?, inverse?, counts?",
        "search",
        _unique,
        onnx="Unique",
        data_dependent=_COUNT,
    ),
    op(
        "bincount(x, weights?; count: dim, minlength: int = 0) -> y",
        "search",
        _bincount,
        aten="bincount",
        data_dependent=_COUNT,
        meaning="y[i] is how often x has i, or the sum of its weights; count is the larger of minlength and max(x) + 1."
        " A negative element is an error",
    ),
    op(
        "repeat_interleave(repeats; count: dim) -> y",
        _D,
        _repeat_interleave,
        aten="repeat_interleave.Tensor",
        data_dependent=_COUNT,
        meaning="index i repeats[i] times, in order; count is the sum of the repeats. A negative number is an error",
    ),
    op(
        "non_max_suppression(boxes, scores, max_output?, iou_threshold?, score_threshold?; count: dim,"
        " center_point_box: bool = false) -> y",
        "search",
        _nms,
        onnx="NonMaxSuppression",
        data_dependent=_COUNT,
    ),
)
