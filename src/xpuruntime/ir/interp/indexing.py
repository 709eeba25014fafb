"""Gather and scatter ops. Negative indices count from the end; an index out of range is an error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .numbers import Array, dtype_of, highest, lowest, to, widen
from .rule import InterpRule, Operand, plain, wide

__all__ = ["RULES", "from_start"]


def from_start(index: Array, size: int, wrap: bool = True) -> Array:
    """Wrap negative indices. Raises IndexError for an index out of range, which a negative one is without ``wrap``."""
    indices = index.astype(np.int64)
    outside = indices[(indices < (-size if wrap else 0)) | (indices >= size)]
    if outside.size:
        raise IndexError(f"index {outside[0]} is out of range for a dim of {size}")
    return np.where(indices < 0, indices + size, indices)


def _along(index: Array, dim: int, shape: Sequence[int]) -> tuple[Array, ...]:
    """Return the coordinates of each element of ``index``, with the coordinate of ``dim`` replaced by the element."""
    coordinates: list[Array] = list(np.indices(index.shape, sparse=True))
    coordinates[dim] = from_start(index, shape[dim])
    return tuple(coordinates)


def gather(x: Array, index: Array, *, dim: int) -> Array:
    """Compute y[i, j] = x[index[i, j], j] for dim 0; the index may be smaller than x along other dims."""
    if not index.size:
        return np.empty(index.shape, x.dtype)
    rows, indices = np.atleast_1d(x), np.atleast_1d(index)
    return rows[_along(indices, dim, rows.shape)].reshape(index.shape)


def index_select(x: Array, index: Array, *, dim: int, wrap: bool) -> Array:
    """Compute numpy.take. Without ``wrap``, a negative index is out of range."""
    rows = np.atleast_1d(x)
    y = np.take(rows, from_start(index, rows.shape[dim], wrap), axis=dim)
    return y if x.ndim else y.reshape(())


def gather_nd(x: Array, indices: Array, *, batch_dims: int) -> Array:
    """Gather slices of x; the last dim of indices has coordinates in the dims after the batch dims."""
    depth = indices.shape[-1]
    lead = indices.shape[:-1]
    batch_coordinates = [
        np.broadcast_to(np.arange(lead[i]).reshape([-1 if j == i else 1 for j in range(len(lead))]), lead)
        for i in range(batch_dims)
    ]
    coordinates = [from_start(indices[..., i], x.shape[batch_dims + i]) for i in range(depth)]
    all_coordinates = (*batch_coordinates, *coordinates)
    return x[all_coordinates] if all_coordinates else np.broadcast_to(x, (*lead, *x.shape))


# ── writing ──

_UFUNCS = {"add": np.add, "mul": np.multiply, "amax": np.maximum, "amin": np.minimum, "mean": np.add}


def _reduce_at(y: Array, positions: Any, values: Array, how: str, include_self: bool = True) -> Array:
    """Write or reduce values into positions of ``y`` in place, in y's own type."""
    if how == "none":
        y[positions] = values
        return y
    dtype = y.dtype
    wide_y, wide_values = widen(y), widen(values)
    if not include_self:
        start = {"mul": 1, "amax": lowest(wide_y.dtype), "amin": highest(wide_y.dtype)}.get(how, 0)
        wide_y[positions] = start
    _UFUNCS[how].at(wide_y, positions, wide_values)
    if how == "mean":
        count = np.full(y.shape, int(include_self), np.int64)
        np.add.at(count, positions, 1)
        count = np.maximum(count, 1)
        wide_y = wide_y / count if wide_y.dtype.kind in "fc" else np.floor_divide(wide_y, count)
    return to(wide_y, dtype_of(y)) if wide_y.dtype != dtype else wide_y


def scatter(x: Array, index: Array, src: Operand, *, dim: int, reduce: str, include_self: bool) -> Array:
    """Write src into x at the positions that gather would read; src may be larger than the index. The last of duplicate writes wins."""
    y = np.atleast_1d(x).copy()
    indices = np.atleast_1d(index)
    if not indices.size:
        return x.copy()
    if isinstance(src, np.ndarray):
        values = np.atleast_1d(src)[tuple(slice(0, d) for d in indices.shape)]
    else:
        values = np.full(indices.shape, src).astype(x.dtype)
    return _reduce_at(y, _along(indices, dim, y.shape), values, reduce, include_self).reshape(x.shape)


def scatter_nd(x: Array, indices: Array, updates: Array, *, reduce: str) -> Array:
    """Write updates into x at the coordinates in the last dim of indices."""
    coordinates = tuple(from_start(indices[..., i], x.shape[i]) for i in range(indices.shape[-1]))
    y = x.copy()
    if coordinates:
        return _reduce_at(y, coordinates, updates, reduce)
    for update in updates.reshape(-1, *x.shape):  # empty coordinates select the whole tensor
        y = _reduce_at(y, ..., update, reduce)
    return y


def _indices(x: Array, indices: Sequence[Array | None]) -> tuple[Any, ...]:
    return tuple(
        slice(None) if index is None else from_start(index, x.shape[i]) for i, index in enumerate(indices)
    )


def index(x: Array, *indices: Array | None) -> Array:
    """Apply NumPy's advanced indexing."""
    return np.asarray(x[_indices(x, indices)])


def index_put(x: Array, values: Array, *indices: Array | None, accumulate: bool) -> Array:
    """Write values into x where ``index`` would read; accumulate adds them."""
    positions = _indices(x, indices)
    y = x.copy()
    return _reduce_at(
        y, positions, np.broadcast_to(values, y[positions].shape), "add" if accumulate else "none"
    )


def index_copy(x: Array, index: Array, source: Array, *, dim: int) -> Array:
    """Write slices of source into x at indices along dim."""
    y = np.atleast_1d(x).copy()
    positions = from_start(np.atleast_1d(index), y.shape[dim])
    at: Any = (*[slice(None)] * dim, positions)
    y[at] = np.atleast_1d(source)
    return y.reshape(x.shape)


def masked_scatter(x: Array, mask: Array, source: Array) -> Array:
    """Write the first elements of source into x where the mask is true, in row-major order."""
    shape = np.broadcast_shapes(x.shape, mask.shape)
    y, where = np.broadcast_to(x, shape).copy(), np.broadcast_to(mask, shape)
    count = int(where.sum())
    if count > source.size:
        raise ValueError(f"the mask selects {count} elements, but source has {source.size}")
    y[where] = source.reshape(-1)[:count]
    return y


def tensor_scatter(past: Array, update: Array, starts: Array | None, *, dim: int, mode: str) -> Array:
    """Write update into past along dim, from starts[i] for batch i; circular wraps around."""
    y = past.copy()
    size, length = past.shape[dim], update.shape[dim]
    for i in range(past.shape[0]):
        positions = np.arange(length) + (0 if starts is None else int(starts[i]))
        positions = positions % size if mode == "circular" else from_start(positions, size)
        y[i][(*[slice(None)] * (dim - 1), positions)] = update[i]
    return y


# ── embedding ──


def embedding(weight: Array, indices: Array) -> Array:
    """Look up rows of the weight."""
    return weight[from_start(indices, weight.shape[0])]


def embedding_bag(
    weight: Array,
    indices: Array,
    offsets: Array,
    per_sample_weights: Array | None,
    *,
    mode: str,
    include_last_offset: bool,
    padding_idx: int,
) -> tuple[Array, Array, Array, Array]:
    """Reduce rows of the weight over bags: bag i is indices[offsets[i]:offsets[i + 1]] without padding_idx.

    Further results: each index's bag, the size of each bag, and (mode max) the index that gave each maximum.
    """
    ends = [*offsets.tolist(), indices.shape[0]]
    bags = len(ends) - 1 - include_last_offset
    row_indices = from_start(indices, weight.shape[0])
    padding = padding_idx + weight.shape[0] if padding_idx < -1 else padding_idx
    y = np.zeros((bags, weight.shape[1]), weight.dtype)
    bag_of, size = np.zeros(indices.shape, np.int64), np.zeros(bags, np.int64)
    best = np.zeros((bags, weight.shape[1]) if mode == "max" else (bags,), np.int64)
    for bag in range(bags):
        inside = slice(ends[bag], ends[bag + 1])
        bag_of[inside] = bag
        mask = row_indices[inside] != padding
        size[bag] = np.count_nonzero(mask)
        if not size[bag]:
            continue
        rows = weight[row_indices[inside][mask]]
        if mode == "max":
            best[bag] = row_indices[inside][mask][np.argmax(rows, axis=0)]
            y[bag] = rows.max(axis=0)
            continue
        if per_sample_weights is not None:
            rows = rows * per_sample_weights[inside][mask][:, None]
        y[bag] = rows.sum(axis=0) / (size[bag] if mode == "mean" else 1)
    return y, bag_of, size, best


def one_hot(indices: Array, values: Array, *, depth: int, dim: int) -> Array:
    """Write values[1] at each index along a new dim of length depth, values[0] elsewhere."""
    classes = np.expand_dims(np.trunc(widen(indices)).astype(np.int64), dim)
    steps = np.arange(depth).reshape([-1 if i == dim else 1 for i in range(classes.ndim)])
    counted = np.where(classes < 0, classes + depth, classes)
    return np.asarray(np.where(steps == counted, values[1], values[0]))


RULES: dict[str, InterpRule] = {
    "gather": plain(gather),
    "index_select": plain(index_select),
    "gather_nd": plain(gather_nd),
    "scatter": plain(scatter),
    "scatter_nd": plain(scatter_nd),
    "index": plain(index),
    "index_put": plain(index_put),
    "index_copy": plain(index_copy),
    "masked_scatter": plain(masked_scatter),
    "tensor_scatter": plain(tensor_scatter),
    "embedding": plain(embedding),
    "embedding_bag": wide(embedding_bag),
    "one_hot": plain(one_hot),
}
