"""Pooling ops."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from .numbers import Array, lowest
from .rule import InterpRule, plain, wide
from .windows import Windows, last, pad

__all__ = ["RULES", "adaptive_edges", "divisors", "windows_of"]


def windows_of(
    x: Array,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> Windows:
    """Return the windows over the last dims of x."""
    return Windows(x.shape[x.ndim - len(kernel_size) :], kernel_size, stride, padding, dilation, ceil_mode)


def _kernel_axes(w: Windows) -> tuple[int, ...]:
    return tuple(range(-w.n, 0))


def divisors(w: Windows, count_include_pad: bool, divisor: int | None) -> Array:
    """Return each window's divisor: ``divisor``, else its number of elements inside x (and in the padding, if that counts)."""
    if divisor is not None:
        return np.full(w.size, float(divisor))
    inside = np.ones(w.space)
    if count_include_pad:
        inside = pad(pad(inside, w.begins, w.ends, 1.0), [0] * w.n, w.beyond, 0.0)
    else:
        inside = w.padded(inside, 0.0)
    return np.asarray(w.over(inside).sum(axis=_kernel_axes(w)))


def avg_pool(
    x: Array,
    *,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor: int | None,
) -> Array:
    """Return the mean of each window."""
    w = windows_of(x, kernel_size, stride, padding, dilation, ceil_mode)
    total = w.view(x, 0).sum(axis=_kernel_axes(w))
    count = divisors(w, count_include_pad, divisor)
    if x.dtype.kind in "iu":  # PyTorch divides integers towards zero
        return np.asarray(np.trunc(total / count))
    return np.asarray(total / count)


def lp_pool(
    x: Array,
    *,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    p: float,
) -> Array:
    """Compute sum(|x|**p)**(1/p) over each window."""
    w = windows_of(x, kernel_size, stride, padding, dilation, ceil_mode)
    return np.asarray((np.abs(w.view(x, 0)) ** p).sum(axis=_kernel_axes(w)) ** (1 / p))


def max_pool(
    x: Array,
    *,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    indices_over: str,
) -> tuple[Array, Array]:
    """Return the maximum of each window (NaN if it has one) and the index of its first occurrence (of NaN the last), never in the padding."""
    w = windows_of(x, kernel_size, stride, padding, dilation, ceil_mode)
    bottom = lowest(x.dtype)
    lead = x.shape[: x.ndim - w.n]
    count = int(np.prod(w.kernel))
    values = w.view(x, bottom).reshape(*lead, *w.size, count)
    real = w.view(np.ones(w.space, bool), False).reshape(*w.size, count)
    best = _places(values)
    top = np.take_along_axis(values, best[..., None], -1)[..., 0]
    best = np.where(top == bottom, np.argmax(real, axis=-1), best)  # the padding is equally low
    within = np.unravel_index(best, w.kernel)
    coordinates = [
        within[i] * w.dilation[i]
        + np.arange(w.size[i]).reshape([-1 if j == i else 1 for j in range(w.n)]) * w.stride[i]
        - w.begins[i]
        for i in range(w.n)
    ]
    return top, _flat(coordinates, w.space, lead, indices_over)


def _places(values: Array) -> Array:
    """Return the place of the first maximum along the last axis, or that of the last NaN."""
    nan = values != values
    last_nan = values.shape[-1] - 1 - np.argmax(nan[..., ::-1], axis=-1)
    return np.asarray(np.where(nan.any(axis=-1), last_nan, np.argmax(values, axis=-1)))


def _flat(coordinates: Sequence[Array], space: Sequence[int], lead: Sequence[int], over: str) -> Array:
    """Flatten coordinates in a plane to indices within the plane or the tensor."""
    order = range(len(space) - 1, -1, -1) if over == "tensor_column_major" else range(len(space))
    index = np.zeros(coordinates[0].shape, np.int64)
    for i in order:
        index = index * space[i] + coordinates[i]
    if over == "plane":
        return index
    planes = np.arange(int(np.prod(lead))).reshape(*lead, *[1] * len(space))
    return np.asarray(planes * int(np.prod(space)) + index)


# ── adaptive: a given number of windows of nearly equal size ──


def adaptive_edges(size: int, out: int) -> list[tuple[int, int]]:
    """Return begin and end of each window: floor(i*size/out) and ceil((i+1)*size/out)."""
    return [(i * size // out, -(-(i + 1) * size // out)) for i in range(out)]


def _boxes(x: Array, output_size: Sequence[int]) -> Iterator[tuple[tuple[int, ...], list[tuple[int, int]]]]:
    """Yield each output position, and the begin and end of its window along each dim."""
    n = len(output_size)
    edges = [adaptive_edges(d, o) for d, o in zip(x.shape[x.ndim - n :], output_size, strict=True)]
    for position in np.ndindex(*output_size):
        yield position, [edges[i][position[i]] for i in range(n)]


def adaptive_avg_pool(x: Array, *, output_size: Sequence[int]) -> Array:
    """Return the mean of each window."""
    n = len(output_size)
    y = np.empty((*x.shape[: x.ndim - n], *output_size), x.dtype)
    for position, box in _boxes(x, output_size):
        y[last(position)] = x[last([slice(a, b) for a, b in box])].mean(axis=tuple(range(-n, 0)))
    return y


def adaptive_max_pool(x: Array, *, output_size: Sequence[int]) -> tuple[Array, Array]:
    """Return the maximum of each window and its first index in the plane."""
    n = len(output_size)
    space, lead = x.shape[x.ndim - n :], x.shape[: x.ndim - n]
    y = np.empty((*lead, *output_size), x.dtype)
    indices = np.zeros((*lead, *output_size), np.int64)
    for position, box in _boxes(x, output_size):
        part = x[last([slice(a, b) for a, b in box])]
        flat = part.reshape(*lead, -1)
        best = _places(flat)
        y[last(position)] = np.take_along_axis(flat, best[..., None], -1)[..., 0]
        within = np.unravel_index(best, part.shape[part.ndim - n :])
        indices[last(position)] = _flat(
            [w + a for w, (a, _) in zip(within, box, strict=True)], space, lead, "plane"
        )
    return y, indices


def max_unpool(x: Array, indices: Array, *, output_size: Sequence[int], indices_over: str) -> Array:
    """Write each value at its index, zeros elsewhere. The last of duplicate writes wins."""
    lead = x.shape[: x.ndim - len(output_size)]
    y = np.zeros((*lead, *output_size), x.dtype)
    if indices_over == "tensor":
        _check(indices, y.size)
        y.reshape(-1)[indices.ravel()] = x.ravel()
        return y
    _check(indices, int(np.prod(output_size)))
    planes = y.reshape(int(np.prod(lead)), -1)
    rows = np.arange(planes.shape[0])[:, None]
    planes[rows, indices.reshape(planes.shape[0], -1)] = x.reshape(planes.shape[0], -1)
    return y


def _check(indices: Array, size: int) -> None:
    if indices.size and (indices.min() < 0 or indices.max() >= size):
        raise IndexError(f"an index is outside the output of {size} elements")


RULES: dict[str, InterpRule] = {
    "avg_pool": wide(avg_pool),
    "lp_pool": wide(lp_pool),
    "max_pool": wide(max_pool),
    "adaptive_avg_pool": wide(adaptive_avg_pool),
    "adaptive_max_pool": wide(adaptive_max_pool),
    "max_unpool": plain(max_unpool),
}
