"""Lowerings of gather, scatter, sorting, and search by value."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ....types import Dim, DType, TensorSpec
from ...not_lowered import NotLowered
from .context import AtenLoweringContext, OpLowering, Results
from .elementwise import call

__all__ = ["LOWERINGS"]

_MODES = {"sum": "add", "prod": "mul", "amax": "amax", "amin": "amin", "mean": "mean"}
_OLD_MODES = {"add": "add", "multiply": "mul"}


def _indices(n: AtenLoweringContext) -> list[str | None]:
    indices = n.ts("indices")
    while indices and indices[-1] is None:
        indices.pop()
    if any(i is not None and n.spec(i).dtype is DType.BOOL for i in indices):
        raise NotLowered(
            "the number of elements that a mask selects is known only at run time, and other indices are next to it;"
            " write each mask as indices, mask.nonzero()[:, 0]"
        )
    return indices


def _index(n: AtenLoweringContext) -> Results:
    present = [(at, i) for at, i in enumerate(n.ts("indices")) if i is not None]
    if len(present) == 1 and n.spec(present[0][1]).dtype is DType.BOOL:
        return _selected(n, *present[0])
    if found := _mask_and_indices(n):
        return _selected_and_indexed(n, *found)
    return str(n.b.index(n.x, *_indices(n)))


_MaskAndIndices = tuple[str, int, str, dict[int, str]]
"""A tensor, the dim of its mask, the mask of that dim, and the other indices by their dims."""


def _mask_and_indices(n: AtenLoweringContext) -> _MaskAndIndices | None:
    """Return the parts of an index of one mask and vectors or scalars (``x[mask, i]``), with the mask's dims as one; None for another."""
    present = {at: i for at, i in enumerate(n.ts("indices")) if i is not None}
    masks = [at for at, i in present.items() if n.spec(i).dtype is DType.BOOL]
    if len(present) < 2 or len(masks) != 1 or not n.spec(present[masks[0]]).rank:
        return None
    (at,) = masks
    mask = present.pop(at)
    if any(n.spec(i).rank > 1 for i in present.values()):
        return None
    x, shape, rank = n.x, n.spec().shape, n.spec(mask).rank
    if rank > 1:
        rows = math.prod(n.spec(mask).shape, start=1)
        mask = str(n.b.view(mask, size=[rows]))
        x = str(n.b.view(x, size=[*shape[:at], rows, *shape[at + rank :]]))
    return x, at, mask, present


def _indexed_dim(at: int, others: dict[int, str]) -> int:
    """Return the dim of a result that has the indexed elements: that of the first index, or 0 if the indices are not next to each other."""
    dims = sorted([at, *others])
    return dims[0] if dims == list(range(dims[0], dims[0] + len(dims))) else 0


def _selected_and_indexed(n: AtenLoweringContext, x: str, at: int, mask: str, others: dict[int, str]) -> str:
    """Lower ``x[mask, i]`` with indices of one element: select them, then what the mask selects."""
    if any(n.spec(i).shape not in ((), (1,)) for i in others.values()):
        raise NotLowered("reading by a mask next to indices of several elements is not supported")
    goal = _indexed_dim(at, others)
    count = _count(n.out(), goal)
    for dim, index in others.items():
        x = str(n.b.index_select(x, n.b.view(index, size=[1]), dim=dim))
    x = str(n.b.squeeze(n.b.compress(x, mask, count=count, dim=at), dims=sorted(others)))
    place = at - sum(dim < at for dim in others)
    order = [d for d in range(n.out().rank) if d != place]
    order.insert(goal, place)
    return x if place == goal else str(n.b.permute(x, dims=order))


def _put_by_mask_and_indices(
    n: AtenLoweringContext, x: str, at: int, mask: str, others: dict[int, str], values: str, accumulate: bool
) -> str:
    """Lower ``x[mask, i] = values``: every row of the mask is written once, those that it does not select with what they have.

    Element k of an index, or of the values, is for the k-th selected row.
    """
    b, rows = n.b, n.spec(x).shape[at]
    ones = b.cast(mask, dtype=DType.INT64)
    rank, count = b.sub(b.cumsum(ones, dim=0), 1), b.sum(ones, dim=[0])

    def by_row(value: str, dim: int) -> str:
        length = n.spec(value).shape[dim]
        if not isinstance(length, int) or not length:
            raise NotLowered("a mask next to an index without a fixed number of elements is not supported")
        # Another number of elements than the mask selects leads to an index that is reported.
        chosen = b.where(b.eq(count, length), rank, length)
        return str(b.index_select(value, b.where(mask, chosen, 0), dim=dim))

    indices: list[str | None] = [None] * (max(at, *others) + 1)
    indices[at] = str(b.arange(start=0, end=rows, dtype=DType.INT64))
    for dim, index in others.items():
        one = n.spec(index).shape in ((), (1,))
        indices[dim] = str(b.expand(index, size=[rows])) if one else by_row(index, 0)
    behind = n.spec(x).rank - len(others) - 1 - _indexed_dim(at, others)
    shape = n.spec(values).shape
    if len(shape) > behind and shape[-behind - 1] != 1:
        values = by_row(values, len(shape) - behind - 1)
    wide = b.view(mask, size=[rows, *[1] * behind])
    written = b.where(wide, values, n.like(0, n.spec().dtype) if accumulate else b.index(x, *indices))
    return str(b.view(b.index_put(x, written, *indices, accumulate=accumulate), size=n.spec().shape))


def _selected(n: AtenLoweringContext, at: int, mask: str) -> str:
    """Lower ``x[..., mask, ...]`` with a mask of the dims from ``at`` on: those that it selects, in one dim."""
    x, m = n.x, n.spec(mask)
    count = _count(n.out(), at)
    if m.rank == 0:
        raise NotLowered("a mask without dims is not supported")
    if m.rank > 1:
        shape = n.spec().shape
        size = math.prod(m.shape, start=1)
        mask = str(n.b.view(mask, size=[size]))
        x = str(n.b.view(x, size=[*shape[:at], size, *shape[at + m.rank :]]))
    return str(n.b.compress(x, mask, count=count, dim=at))


def _index_put(n: AtenLoweringContext) -> Results:
    accumulate, values = n["accumulate"], n.cast(n.t("values"), n.spec().dtype)
    present = [i for i in n.ts("indices") if i is not None]
    masks = [i for i in present if n.spec(i).dtype is DType.BOOL]
    if masks and present == masks[:1]:
        return _masked(n, masks[0], values, accumulate, n.ts("indices").index(masks[0]))
    if found := _mask_and_indices(n):
        return _put_by_mask_and_indices(n, *found, values, accumulate)
    return str(n.b.index_put(n.x, values, *_indices(n), accumulate=accumulate))


def _masked(n: AtenLoweringContext, mask: str, values: str, accumulate: bool, at: int) -> str:
    """Lower ``x[..., mask, ...] = values``: as a where with one value for every element that the mask selects, else in the order of the elements.

    at: number of dims before those of the mask.
    """
    x, m, shape = n.spec(), n.spec(mask), list(n.spec(values).shape)
    behind = x.rank - m.rank - at
    wide = mask if not behind else str(n.b.unsqueeze(mask, dims=list(range(m.rank, m.rank + behind))))
    base = str(n.b.full(size=x.shape, value=0, dtype=x.dtype)) if accumulate else n.x
    if len(shape) <= behind or shape[-behind - 1] == 1:  # one row for all selected elements
        if len(shape) > behind:
            row = [*shape[: -behind - 1], *[1] * m.rank, *shape[len(shape) - behind :]]
            values = str(n.b.view(values, size=row))
        written = str(n.b.where(wide, values, base))
    else:
        order = [*range(at, at + m.rank), *range(at), *range(at + m.rank, x.rank)]
        trailing = [x.shape[d] for d in order[m.rank :]]
        count, k = shape[-behind - 1], len(shape) - behind - 1
        if at:  # the selected elements first, as the mask's dims of x
            missing = at - k
            values = str(n.b.view(values, size=[*[1] * missing, *shape])) if missing else values
            values = str(n.b.permute(values, dims=[at, *range(at), *range(at + 1, at + 1 + behind)]))
            base = str(n.b.permute(base, dims=order))
        if list(n.spec(values).shape[1:]) != trailing:
            values = str(n.b.expand(values, size=[count, *trailing]))
        wide = mask if not trailing else str(n.b.unsqueeze(mask, dims=list(range(m.rank, x.rank))))
        if trailing:
            wide = str(n.b.expand(wide, size=n.spec(base).shape))
        written = str(n.b.masked_scatter(base, wide, values))
        if at:
            written = str(n.b.permute(written, dims=[order.index(d) for d in range(x.rank)]))
    return str(n.b.add(n.x, written) if accumulate else written)


def _put(n: AtenLoweringContext) -> Results:
    """Lower put: index_put of the flat tensor."""
    b, spec = n.b, n.spec()
    flat, index, source = (
        str(b.view(value, size=[math.prod(n.spec(value).shape, start=1)]))
        for value in (n.x, n.t("index"), n.cast(n.t("source"), spec.dtype))
    )
    return str(b.view(b.index_put(flat, source, index, accumulate=n["accumulate"]), size=spec.shape))


def _repeat_interleave(n: AtenLoweringContext) -> Results:
    """Lower the indices of repeat_interleave. Of a known number, index j is the number of elements that end at or before j."""
    b, repeats = n.b, n.t("repeats")
    n.ignore("output_size")
    (count,) = n.out().shape
    if isinstance(count, Dim) and n["output_size"] is None:
        return str(b.repeat_interleave(repeats, count=count))
    wide = n.cast(repeats, DType.INT64)
    # A negative repeat, or another sum than output_size, leads to an index that is reported.
    other = b.ne(b.sum(wide, dim=[0], keepdim=True, dtype=DType.INT64), count)
    ends = b.where(b.logical_or(b.lt(wide, 0), other), count + 1, b.cumsum(wide, dim=0))
    zeros = b.full(size=[count + 1], value=0, dtype=DType.INT64)
    ones = b.full(size=n.spec().shape, value=1, dtype=DType.INT64)
    ended = b.scatter(zeros, ends, ones, dim=0, reduce="add", include_self=True)
    counts = str(b.cumsum(b.slice(ended, dim=0, start=0, end=count, step=1), dim=0))
    return n.cast(counts, n.out().dtype)


def _scatter(mode: str | None, source: str) -> OpLowering:
    """Return the lowering of a scatter. Without a mode, the argument ``reduce`` has it."""

    def lower(n: AtenLoweringContext) -> Results:
        reduce = mode if mode is not None else (_MODES | _OLD_MODES)[n["reduce"]]
        x, index, src = n.x, n.t("index"), n.typed(n.operand(source), n.spec().dtype)
        itself = bool(n["include_self"]) if "include_self" in n.args else True
        if isinstance(src, bool | int | float):
            src = n.like(src, n.spec().dtype)
            src = str(n.b.expand(src, size=n.spec(index).shape)) if n.spec(index).rank else src
        return str(n.b.scatter(x, index, src, dim=n["dim"], reduce=reduce, include_self=itself))

    return lower


def _index_reduce(n: AtenLoweringContext) -> Results:
    """Lower index_reduce: a scatter whose index is the same in all dims but one."""
    source, dim, rank = n.t("source"), n["dim"], n.spec().rank
    index = n.t("index")
    if rank:
        dim %= rank
        shape = [-1 if i == dim else 1 for i in range(rank)]
        index = str(n.b.expand(n.b.view(index, size=shape), size=n.spec(source).shape))
    attrs = {"reduce": _MODES[n["reduce"]], "include_self": bool(n["include_self"])}
    return str(n.b.scatter(n.x, index, source, dim=n["dim"], **attrs))


def _gather(n: AtenLoweringContext) -> Results:
    n.ignore("sparse_grad")
    return str(n.b.gather(n.x, n.t("index"), dim=n["dim"]))


def _embedding(n: AtenLoweringContext) -> Results:
    n.ignore("padding_idx", "scale_grad_by_freq", "sparse")  # these affect gradients only
    return str(n.b.embedding(n.x, n.t("indices")))


def _embedding_bag(n: AtenLoweringContext) -> Results:
    n.ignore("scale_grad_by_freq", "sparse")
    bags: Any = n.b.embedding_bag(
        n.x,
        n.t("indices"),
        n.t("offsets"),
        n.opt("per_sample_weights"),
        mode=("sum", "mean", "max")[n["mode"]],
        include_last_offset=n["include_last_offset"],
        padding_idx=n["padding_idx"],
        outputs=1,
    )
    if any(n.has_readers(i) for i in (1, 2, 3)):
        raise NotLowered("only the bags are supported as results")
    return [str(bags), None, None, None]


def _topk(n: AtenLoweringContext) -> Results:
    attrs = {k: n[k] for k in ("k", "dim", "largest", "sorted")}
    return list(n.b.topk(n.x, **attrs))


def _sort(n: AtenLoweringContext) -> Results:
    stable = bool(n["stable"]) if "stable" in n.args else False
    return list(n.b.sort(n.x, dim=n["dim"], descending=n["descending"], stable=stable))


def _argsort(n: AtenLoweringContext) -> Results:
    return _sort(n)[1] or ""


def _ranked(n: AtenLoweringContext, rank_of: Callable[[str, int], str | int]) -> Results:
    """Lower a selection by rank along a dim, with its index. rank_of: (sorted line, length) -> the rank, a number or a value per line."""
    x, spec = n.x, n.spec()
    dim = n["dim"] % max(spec.rank, 1) if "dim" in n.args else 0
    keep = bool(n["keepdim"]) if "keepdim" in n.args else False
    if "dim" not in n.args and spec.rank != 1:
        x = str(n.b.view(x, size=[-1]))
    elif not spec.rank:
        x, keep = str(n.b.view(x, size=[1])), False
    length = n.spec(x).shape[dim]
    if not isinstance(length, int) or not length:
        raise NotLowered(f"a dim of {length} elements is not supported")
    values, indices = (str(v) for v in n.b.sort(x, dim=dim, descending=False, stable=True))
    at = rank_of(values, length)
    results = []
    for line in (values, indices) if "dim" in n.args and n.has_readers(1) else (values,):
        if isinstance(at, str):
            element = str(n.b.gather(line, at, dim=dim))
        else:
            element = str(n.b.slice(line, dim=dim, start=at, end=at + 1, step=1))
        results.append(element if keep else str(n.b.squeeze(element, dims=[dim])))
    return [*results, None][:2] if "dim" in n.args else results[0]


def _kth(n: AtenLoweringContext) -> Results:
    k = n["k"]
    return _ranked(n, lambda line, length: k - 1)


def _median(n: AtenLoweringContext) -> Results:
    """Lower median: the lower of two middle elements; the first NaN of a line with NaN, which sorts directly behind all numbers."""

    def rank_of(line: str, length: int) -> str | int:
        middle = (length - 1) // 2
        if not n.spec(line).dtype.is_float:
            return middle
        numbers = _numbers(n, line)
        return str(n.b.where(n.b.lt(numbers, length), numbers, middle))

    return _ranked(n, rank_of)


def _nanmedian(n: AtenLoweringContext) -> Results:
    """Lower nanmedian: the median of the numbers; the first NaN if there are none."""

    def rank_of(line: str, length: int) -> str | int:
        if not n.spec(line).dtype.is_float:
            return (length - 1) // 2
        last = n.b.clamp(n.b.sub(_numbers(n, line), 1), 0, None)
        return str(n.b.div(last, 2, rounding_mode="floor"))

    return _ranked(n, rank_of)


def _numbers(n: AtenLoweringContext, line: str) -> str:
    """Return how many elements along the sorted dim are numbers."""
    dim = n["dim"] % max(n.spec(line).rank, 1) if "dim" in n.args else 0
    return str(n.b.sum(n.b.logical_not(n.b.isnan(line)), dim=[dim], keepdim=True, dtype=DType.INT64))


def _count(spec: TensorSpec, axis: int = 0) -> Dim:
    """Return the fresh symbol for the number of elements found."""
    count = spec.shape[axis]
    if not isinstance(count, Dim):
        raise NotLowered("the number of elements found has no symbol")
    return count


def _found(op: str, *operands: str) -> OpLowering:
    return lambda n: str(n.b.call(op, *(n.t(o) for o in operands), count=_count(n.out())))


def _unique(n: AtenLoweringContext) -> Results:
    """Lower unique, of all elements or along a dim."""
    dim = n["dim"] if "dim" in n.args else None
    count = _count(n.out(), dim or 0)
    y, _, inverse, counts = n.b.unique(n.x, count=count, dim=dim, sorted=n["sorted"], outputs=4)
    if dim is None and n["return_inverse"]:
        inverse = str(n.b.view(inverse, size=n.spec().shape))
    return [y, inverse if n["return_inverse"] else None, counts if n["return_counts"] else None]


def _unique_consecutive(n: AtenLoweringContext) -> Results:
    """Lower unique_consecutive of a vector: elements that differ from the one before. A NaN differs from all."""
    if n["dim"] is not None and n.spec().rank != 1:
        raise NotLowered("slices along a dim are not supported")
    b, count = n.b, _count(n.out())
    x = n.x if n.spec().rank == 1 else str(b.view(n.x, size=[math.prod(n.spec().shape, start=1)]))
    (length,) = n.spec(x).shape
    place = b.arange(start=0, end=length, dtype=DType.INT64)
    first = b.eq(place, 0)
    new = str(b.logical_or(first, b.ne(x, b.roll(x, shifts=[1], dims=[0]))))
    inverse = counts = None
    if n["return_inverse"]:
        inverse = str(b.sub(b.cumsum(b.cast(new, dtype=DType.INT64), dim=0), 1))
        inverse = str(b.view(inverse, size=n.spec().shape))
    if n["return_counts"]:
        # A run ends before the next one begins; the last ends with the vector.
        begins = b.compress(place, new, count=count, dim=0)
        last = b.roll(new, shifts=[-1], dims=[0])
        ends = b.compress(place, b.logical_or(last, b.eq(place, length - 1)), count=count, dim=0)
        counts = str(b.add(b.sub(ends, begins), 1))
    return [str(b.compress(x, new, count=count, dim=0)), inverse, counts]


def _nonzero(n: AtenLoweringContext) -> Results:
    """Lower nonzero. If the model fixes the number of elements, another number of them gives indices that are reported."""
    size = n.out().shape[0]
    if isinstance(size, Dim):
        return str(n.b.nonzero(n.x, count=size))
    b = n.b
    zero = n.like(0, n.spec().dtype)
    found = b.sum(b.cast(b.ne(n.x, zero), dtype=DType.INT64), dim=None, keepdim=False)
    places = _first_places(n, size, 0)
    return str(b.where(b.eq(found, size), places, np.iinfo(np.int64).max))


def _nonzero_static(n: AtenLoweringContext) -> Results:
    return _first_places(n, n["size"], n["fill_value"])


def _first_places(n: AtenLoweringContext, size: Any, fill: int) -> str:
    """Return the places of the first ``size`` elements that are not zero, then ``fill``: a stable sort brings them to the front."""
    b, shape = n.b, n.spec().shape
    total = math.prod(shape, start=1)
    if not isinstance(total, int) or not isinstance(size, int):
        raise NotLowered("sizes that are not fixed are not supported")
    if not total or not n.spec().rank:
        return str(b.full(size=n.out().shape, value=fill, dtype=DType.INT64))
    zero = b.view(b.eq(n.x, 0), size=[total])
    _, order = b.sort(b.cast(zero, dtype=DType.INT32), dim=0, descending=False, stable=True)
    count = b.sum(b.cast(b.logical_not(zero), dtype=DType.INT64), dim=[0], keepdim=True)
    order = b.slice(order, dim=0, start=0, end=min(size, total), step=1)
    if size > total:
        order = b.pad(order, pads=[0, size - total], mode="constant", value=0)
    columns = []
    for length in reversed(shape):
        columns.append(b.unsqueeze(b.remainder(order, length), dims=[1]))
        order = b.div(order, length, rounding_mode="floor")
    places = b.cat(*columns[::-1], dim=1) if len(columns) > 1 else columns[0]
    known = b.unsqueeze(b.lt(b.arange(start=0, end=size, dtype=DType.INT64), count), dims=[1])
    return str(b.where(known, places, fill))


def _bincount(n: AtenLoweringContext) -> Results:
    """Lower bincount. If the program has the size ``minlength``, larger elements are out of range, as negative ones are."""
    spec, least = n.out(), n["minlength"]
    if not isinstance(least, int):
        raise NotLowered("minlength is known only at run time")
    x, weights, b = n.x, n.opt("weights"), n.b
    weights = None if weights is None else n.cast(weights, spec.dtype)
    (size,) = spec.shape
    if isinstance(size, Dim):
        return str(b.bincount(x, weights, count=size, minlength=least))
    if size != least:
        raise NotLowered(
            f"the model needs {size} counts, but its content decides the number; use minlength={size}"
        )
    index = n.cast(x, DType.INT64)
    index = str(b.where(b.lt(index, 0), size, index))
    if weights is None:
        weights = str(b.full(size=n.spec().shape, value=1, dtype=spec.dtype))
    zeros = b.full(size=spec.shape, value=0, dtype=spec.dtype)
    return str(b.scatter(zeros, index, weights, dim=0, reduce="add", include_self=True))


def _one_hot(n: AtenLoweringContext) -> Results:
    depth = n["num_classes"]
    if isinstance(depth, int) and depth < 1:
        raise NotLowered("the number of classes is known only at run time")
    values = n.b.constant(np.array([0, 1], np.int64))
    return str(n.b.one_hot(n.x, values, depth=depth))


def _masked_scatter(n: AtenLoweringContext) -> Results:
    return str(n.b.masked_scatter(n.x, n.t("mask"), n.t("source")))


LOWERINGS: dict[str, OpLowering] = {
    "_embedding_bag": _embedding_bag,
    "_embedding_bag_forward_only": _embedding_bag,
    "_unique2": _unique,
    "_unsafe_index.Tensor": _index,
    "_unsafe_index_put": _index_put,
    "argsort": _argsort,
    "argsort.stable": _argsort,
    "bincount": _bincount,
    "embedding": _embedding,
    "gather": _gather,
    "index.Tensor": _index,
    "index_copy": call("index_copy", "self", "index", "source", dim="dim"),
    "index_put": _index_put,
    "index_reduce": _index_reduce,
    "index_select": call("index_select", "self", "index", dim="dim"),
    "kthvalue": _kth,
    "masked_scatter": _masked_scatter,
    "masked_select": _found("masked_select", "self", "mask"),
    "median": _median,
    "median.dim": _median,
    "nanmedian": _nanmedian,
    "nanmedian.dim": _nanmedian,
    "nonzero": _nonzero,
    "nonzero_static": _nonzero_static,
    "one_hot": _one_hot,
    "put": _put,
    "repeat_interleave.Tensor": _repeat_interleave,
    "scatter.reduce": _scatter(None, "src"),
    "scatter.src": _scatter("none", "src"),
    "scatter.value": _scatter("none", "value"),
    "scatter.value_reduce": _scatter(None, "value"),
    "scatter_add": _scatter("add", "src"),
    "scatter_reduce.two": _scatter(None, "src"),
    "sort": _sort,
    "sort.stable": _sort,
    "topk": _topk,
    "unique_consecutive": _unique_consecutive,
    "unique_dim": _unique,
}
