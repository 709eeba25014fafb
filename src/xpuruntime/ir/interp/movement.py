"""Data movement ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .numbers import Array
from .rule import InterpRule, plain
from .windows import pad as pad_constant

__all__ = ["RULES"]


def view(x: Array, *, size: Sequence[int]) -> Array:
    """Return the same elements in row-major order."""
    return x.reshape(size)


def permute(x: Array, *, dims: Sequence[int]) -> Array:
    """Permute the axes."""
    return x.transpose(dims)


def expand(x: Array, *, size: Sequence[int]) -> Array:
    """Broadcast dims of 1."""
    return np.broadcast_to(x, tuple(size))


def squeeze(x: Array, *, dims: Sequence[int]) -> Array:
    """Remove dims of 1."""
    return np.squeeze(x, tuple(dims)) if x.ndim else x


def unsqueeze(x: Array, *, dims: Sequence[int]) -> Array:
    """Insert dims of 1, at positions in the result."""
    return np.expand_dims(x, tuple(dims))


def cat(*tensors: Array, dim: int) -> Array:
    """Concatenate along dim."""
    return np.concatenate(tensors, axis=dim)


def split(x: Array, *, sizes: Sequence[int], dim: int) -> list[Array]:
    """Split along dim."""
    ends = np.cumsum(sizes)
    if ends[-1] != x.shape[dim]:
        raise ValueError(f"the sizes add up to {ends[-1]}, but the dim is {x.shape[dim]}")
    return list(np.split(x, ends[:-1], axis=dim))


def _slice(x: Array, dim: int, start: int, end: int | None, step: int) -> tuple[slice, ...]:
    return (*[slice(None)] * dim, slice(start, end, step))


def slice_(x: Array, *, dim: int, start: int, end: int | None, step: int) -> Array:
    """Slice one dim with a positive step, as in Python."""
    return x[_slice(x, dim, start, end, step)]


def slice_scatter(x: Array, src: Array, *, dim: int, start: int, end: int | None, step: int) -> Array:
    """Replace a slice of x by src."""
    y = x.copy()
    y[_slice(x, dim, start, end, step)] = src
    return y


def select(x: Array, *, dim: int, index: int) -> Array:
    """Select one index of a dim."""
    return np.asarray(np.take(x, index, axis=dim))


def select_scatter(x: Array, src: Array, *, dim: int, index: int) -> Array:
    """Replace one index of a dim of x by src."""
    y = x.copy()
    at: Any = (*[slice(None)] * dim, index)
    y[at] = src
    return y


def flip(x: Array, *, dims: Sequence[int]) -> Array:
    """Reverse along dims."""
    return np.flip(x, tuple(dims)) if x.ndim else x


def roll(x: Array, *, shifts: Sequence[int], dims: Sequence[int]) -> Array:
    """Shift cyclically along dims; without dims, along the flattened tensor."""
    if not dims:
        return np.roll(x, shifts[0] if shifts else 0)
    return np.roll(x, tuple(shifts), tuple(dims)) if x.ndim else x


def repeat(x: Array, *, repeats: Sequence[int]) -> Array:
    """Tile the tensor."""
    return np.tile(x, tuple(repeats))


def pad(x: Array, *, pads: Sequence[int], mode: str, value: float) -> Array:
    """Pad every dim with a constant, by reflection, by replication, or circularly. Negative amounts crop."""
    n = x.ndim
    begins, ends = pads[:n], pads[n:]
    if mode == "constant":
        return pad_constant(
            x, begins, ends, np.asarray(value).astype(x.dtype) if x.dtype != object else value
        )
    if mode == "wrap":  # crop first: circular padding reads the cropped tensor
        x = pad_constant(x, [min(b, 0) for b in begins], [min(e, 0) for e in ends], 0)
        begins, ends = [max(b, 0) for b in begins], [max(e, 0) for e in ends]
    for axis, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        x = np.take(x, _source(x.shape[axis], begin, end, mode), axis=axis)
    return x


def _source(size: int, begin: int, end: int, mode: str) -> Array:
    """Return the source index of each index along a padded dim."""
    positions = np.arange(-begin, size + end)
    if mode == "replicate":
        return np.clip(positions, 0, size - 1)
    if mode == "wrap" or size < 2:
        return positions % max(size, 1)
    positions = positions % (2 * (size - 1))
    return np.minimum(positions, 2 * (size - 1) - positions)


def as_strided(x: Array, *, size: Sequence[int], stride: Sequence[int], offset: int) -> Array:
    """Read the dense operand at offset + index * stride."""
    elements = np.full(tuple(size), offset, np.int64)
    for axis, (length, step) in enumerate(zip(size, stride, strict=True)):
        elements += (np.arange(length) * step).reshape([-1 if i == axis else 1 for i in range(len(size))])
    if elements.size and (elements.min() < 0 or elements.max() >= x.size):
        raise IndexError(f"reads outside the operand's {x.size} elements")
    return x.reshape(-1)[elements]


def diagonal(x: Array, *, offset: int, dim1: int, dim2: int) -> Array:
    """Return the diagonal of two dims, as the last one."""
    return np.diagonal(x, offset, dim1, dim2)


def _triangle(x: Array, keep: Array) -> Array:
    return np.where(keep, x, np.zeros((), x.dtype))


def _distance(x: Array) -> Array:
    """Return column minus row for each element."""
    return np.arange(x.shape[-1]) - np.arange(x.shape[-2])[:, None]


def tril(x: Array, *, diagonal: int) -> Array:
    """Set elements above a diagonal to zero."""
    return _triangle(x, _distance(x) <= diagonal)


def triu(x: Array, *, diagonal: int) -> Array:
    """Set elements below a diagonal to zero."""
    return _triangle(x, _distance(x) >= diagonal)


def depth_to_space(x: Array, *, block_size: int, mode: str) -> Array:
    """Move blocks of channels to space. The block index is the slow part of the channels (DCR) or the fast part (CRD)."""
    *lead, channels, height, width = x.shape
    b, n = block_size, len(lead)
    if mode == "DCR":
        parts, order = x.reshape(*lead, b, b, channels // (b * b), height, width), (2, 3, 0, 4, 1)
    else:
        parts, order = x.reshape(*lead, channels // (b * b), b, b, height, width), (0, 3, 1, 4, 2)
    permuted = parts.transpose(*range(n), *(n + i for i in order))
    return permuted.reshape(*lead, channels // (b * b), height * b, width * b)


def space_to_depth(x: Array, *, block_size: int, mode: str) -> Array:
    """Move spatial blocks to channels, as the slow part (DCR) or the fast part (CRD)."""
    *lead, channels, height, width = x.shape
    b, n = block_size, len(lead)
    parts = x.reshape(*lead, channels, height // b, b, width // b, b)
    order = (2, 4, 0, 1, 3) if mode == "DCR" else (0, 2, 4, 1, 3)
    permuted = parts.transpose(*range(n), *(n + i for i in order))
    return permuted.reshape(*lead, channels * b * b, height // b, width // b)


def reverse_sequence(x: Array, lengths: Array, *, time_dim: int, batch_dim: int) -> Array:
    """Reverse the first lengths[i] steps of sample i."""
    steps = np.arange(x.shape[time_dim])
    count = lengths.astype(np.int64)[:, None]
    order = np.where(steps < count, count - 1 - steps, steps)  # [batch, time]
    shape = [1] * x.ndim
    shape[batch_dim], shape[time_dim] = order.shape
    index = (order if batch_dim < time_dim else order.T).reshape(shape)
    return np.take_along_axis(x, np.broadcast_to(index, x.shape), time_dim)


RULES: dict[str, InterpRule] = {
    "clone": plain(lambda x: x.copy()),
    "view": plain(view),
    "permute": plain(permute),
    "expand": plain(expand),
    "squeeze": plain(squeeze),
    "unsqueeze": plain(unsqueeze),
    "cat": plain(cat),
    "split": plain(split),
    "slice": plain(slice_),
    "slice_scatter": plain(slice_scatter),
    "select": plain(select),
    "select_scatter": plain(select_scatter),
    "flip": plain(flip),
    "roll": plain(roll),
    "repeat": plain(repeat),
    "pad": plain(pad),
    "as_strided": plain(as_strided),
    "diagonal": plain(diagonal),
    "tril": plain(tril),
    "triu": plain(triu),
    "depth_to_space": plain(depth_to_space),
    "space_to_depth": plain(space_to_depth),
    "reverse_sequence": plain(reverse_sequence),
}
