"""Sorting and searching. NaN counts as the largest value; of equal values the first one wins."""

from __future__ import annotations

import numpy as np

from .numbers import Array, widen
from .rule import InterpRule, plain

__all__ = ["RULES"]


def _order(x: Array, dim: int, descending: bool) -> Array:
    """Return the indices of a stable sort along dim."""
    keys = widen(x)
    if not descending:
        return np.asarray(np.argsort(keys, axis=dim, kind="stable"))
    backwards = np.argsort(np.flip(keys, dim), axis=dim, kind="stable")
    return np.asarray(x.shape[dim] - 1 - np.flip(backwards, dim))


def sort(x: Array, *, dim: int, descending: bool) -> tuple[Array, Array]:
    """Return sorted values and their indices; the sort is always stable."""
    rows = np.atleast_1d(x)
    order = _order(rows, dim, descending)
    return np.take_along_axis(rows, order, dim).reshape(x.shape), order.reshape(x.shape)


def topk(x: Array, *, k: int, dim: int, largest: bool) -> tuple[Array, Array]:
    """Return the k largest (or smallest) values in order, and their indices."""
    rows = np.atleast_1d(x)
    order = np.take(_order(rows, dim, largest), range(k), axis=dim)
    values = np.take_along_axis(rows, order, dim)
    return (values, order) if x.ndim else (values.reshape(()), order.reshape(()))


def nonzero(x: Array) -> Array:
    """Return [count, rank], the coordinates of nonzero elements in row-major order."""
    return np.argwhere(widen(x) != 0)


def masked_select(x: Array, mask: Array) -> Array:
    """Return the elements where the mask is true, in row-major order."""
    shape = np.broadcast_shapes(x.shape, mask.shape)
    return np.asarray(np.broadcast_to(x, shape)[np.broadcast_to(mask, shape)])


def compress(x: Array, condition: Array, *, dim: int | None) -> Array:
    """Return the slices along dim (or elements of the flattened operand) where the condition, which may be shorter, is true."""
    return np.compress(condition, x, axis=dim)


def unique(x: Array, *, dim: int | None, sorted: bool) -> tuple[Array, Array, Array, Array]:  # noqa: A002
    """Return distinct values (or slices along dim), their first indices, the inverse indices, and the counts.

    The values are in ascending order, or in order of first occurrence.
    """
    keys = x if x.dtype == object else widen(x)
    if x.dtype == object and dim is None:
        keys = keys.astype(str)
    _, first, inverse, counts = np.unique(
        keys, return_index=True, return_inverse=True, return_counts=True, axis=dim
    )
    inverse = inverse.reshape(-1)
    if not sorted:
        order = np.argsort(first)
        rank = np.empty_like(order)
        rank[order] = np.arange(order.size)
        first, inverse, counts = first[order], rank[inverse], counts[order]
    values = x.reshape(-1)[first] if dim is None else np.take(x, first, axis=dim)
    return values, first, inverse, counts


def bincount(x: Array, weights: Array | None, *, minlength: int) -> Array:
    """Return how often each number from 0 on occurs, or the sum of its weights. Raises IndexError for a negative number."""
    indices = x.astype(np.int64)
    if indices.size and indices.min() < 0:
        raise IndexError(f"index {indices.min()} is negative")
    if weights is None:
        return np.bincount(indices, minlength=minlength).astype(np.int64)
    return np.bincount(indices, widen(weights), minlength).astype(weights.dtype)


def repeat_interleave(repeats: Array) -> Array:
    """Return each index as often as its element says. Raises IndexError for a negative number."""
    if repeats.size and repeats.min() < 0:
        raise IndexError(f"repeat {repeats.min()} is negative")
    return np.repeat(np.arange(repeats.size, dtype=repeats.dtype), repeats)


def non_max_suppression(
    boxes: Array,
    scores: Array,
    max_output: Array | None,
    iou_threshold: Array | None,
    score_threshold: Array | None,
    *,
    center_point_box: bool,
) -> Array:
    """Return [count, 3]: batch, class and box of the selected boxes, greedily by score within each class of each batch.

    A box is dropped if its intersection over union with a selected one is above the threshold.
    """
    most = 0 if max_output is None else int(max_output.reshape(-1)[0])
    overlap = 0.0 if iou_threshold is None else float(iou_threshold.reshape(-1)[0])
    corners = _corners(boxes.astype(np.float64), center_point_box)
    selected = []
    for batch, kind in np.ndindex(*scores.shape[:2]):
        score = scores[batch, kind].astype(np.float64)
        order = np.argsort(-score, kind="stable")
        if score_threshold is not None:
            order = order[score[order] > float(score_threshold.reshape(-1)[0])]
        boxes_kept: list[int] = []
        for box in order.tolist():
            if len(boxes_kept) >= most:
                break
            if all(_iou(corners[batch, box], corners[batch, other]) <= overlap for other in boxes_kept):
                boxes_kept.append(box)
        selected += [(batch, kind, box) for box in boxes_kept]
    return np.array(selected, np.int64).reshape(-1, 3)


def _corners(boxes: Array, center: bool) -> Array:
    """Return [y1, x1, y2, x2] with y1 <= y2, from any two opposite corners or from [x, y, width, height]."""
    if center:
        x, y, width, height = np.moveaxis(boxes, -1, 0)
        return np.stack([y - height / 2, x - width / 2, y + height / 2, x + width / 2], -1)
    a, b = boxes[..., :2], boxes[..., 2:]
    return np.concatenate([np.minimum(a, b), np.maximum(a, b)], -1)


def _iou(a: Array, b: Array) -> float:
    sides = np.maximum(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0.0)
    inter = float(sides[0] * sides[1])
    union = float(np.prod(a[2:] - a[:2]) + np.prod(b[2:] - b[:2])) - inter
    return inter / union if union > 0 else 0.0


RULES: dict[str, InterpRule] = {
    "sort": plain(sort),
    "topk": plain(topk),
    "nonzero": plain(nonzero),
    "masked_select": plain(masked_select),
    "compress": plain(compress),
    "unique": plain(unique),
    "bincount": plain(bincount),
    "repeat_interleave": plain(repeat_interleave),
    "non_max_suppression": plain(non_max_suppression),
}
