"""Resampling: resizing axis by axis, and sampling at a grid."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .numbers import Array
from .rule import InterpRule, wide

__all__ = ["RULES"]

# ── input coordinate of each output index ──


def _half_pixel(y: Array, scale: float, size: int, out: int) -> Array:
    return (y + 0.5) / scale - 0.5


def _symmetric(y: Array, scale: float, size: int, out: int) -> Array:
    """Compute half_pixel coordinates around the input's center, corrected for the rounded output size."""
    return size / 2 * (1 - out / (scale * size)) + _half_pixel(y, scale, size, out)


def _pytorch(y: Array, scale: float, size: int, out: int) -> Array:
    return _half_pixel(y, scale, size, out) if out > 1 else np.full(y.shape, -0.5)


def _corners(y: Array, scale: float, size: int, out: int) -> Array:
    """Compute align_corners coordinates. The output size before rounding counts, as in ONNX."""
    last = scale * size - 1
    return y * (size - 1) / last if last else np.zeros(y.shape)


_COORDINATES: dict[str, Callable[[Array, float, int, int], Array]] = {
    "half_pixel": _half_pixel,
    "half_pixel_symmetric": _symmetric,
    "pytorch_half_pixel": _pytorch,
    "align_corners": _corners,
    "asymmetric": lambda y, scale, size, out: y / scale,
    "tf_half_pixel_for_nn": lambda y, scale, size, out: (y + 0.5) / scale,
}


def _cropped(y: Array, scale: float, size: int, start: float, end: float) -> Array:
    """Compute coordinates within a region of interest, which is given as fractions of the input."""
    last = scale * size - 1
    inside = (
        y * (end - start) * (size - 1) / last if last else np.full(y.shape, (end - start) * (size - 1) / 2)
    )
    return start * (size - 1) + inside


_NEAREST: dict[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}

# ── interpolation weights ──


def _triangle(distance: Array) -> Array:
    return np.asarray(np.clip(1 - np.abs(distance), 0, 1))


def _keys(distance: Array, a: float) -> Array:
    """Return the cubic convolution kernel (Keys, 1981)."""
    d = np.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, np.where(np.isnan(d), d, 0.0)))


_KERNELS: dict[str, Callable[[float], tuple[Callable[[Array], Array], int]]] = {
    "linear": lambda a: (_triangle, 1),
    "cubic": lambda a: (lambda d: _keys(d, a), 2),
}
"""Kernels of interpolations, by cubic_a, and how far they reach."""


@dataclass(frozen=True, slots=True)
class Taps:
    """The taps of a resize along one axis, per output index.

    steps: [out, taps], consecutive input indices; those outside of the input read its border.
    share: [out, taps], their weights.
    read:  [out, taps], whether a tap is read. One that is read counts if its weight is zero, too: NaN and Inf times zero are NaN.
    """

    steps: Array
    share: Array
    read: Array


def taps_of(
    coordinates: Array,
    size: int,
    kernel: Callable[[Array], Array],
    reach: int,
    shrink: float,
    exclude_outside: bool,
) -> Taps:
    """Return the taps of an axis of ``size``, as PyTorch reads them: from past the kernel's low end to its high end.

    shrink: a scale below 1 widens the kernel by it (antialiasing).
    """
    span = int(np.ceil(reach / shrink))
    steps = np.floor(coordinates)[:, None] + np.arange(1 - span, span + 1)
    center, support = coordinates[:, None], reach / shrink
    read = (steps > center - support) & (steps <= center + support)
    if exclude_outside:
        read &= (steps >= 0) & (steps < size)
    share = np.where(read, kernel((steps - center) * shrink), 0.0)
    if exclude_outside or shrink < 1:
        share = share / share.sum(axis=1, keepdims=True)
    return Taps(steps, share, read)


def _blended(x: Array, axis: int, taps: Taps) -> Array:
    """Return the sums of the taps along an axis. An element that no tap reads has no effect, not even NaN."""
    shape = [-1 if i == axis else 1 for i in range(x.ndim)]
    index = np.clip(taps.steps, 0, x.shape[axis] - 1).astype(np.int64)
    parts = (
        np.where(read.reshape(shape), np.take(x, at, axis=axis) * weight.reshape(shape), 0.0)
        for at, weight, read in zip(index.T, taps.share.T, taps.read.T, strict=True)
    )
    return np.asarray(sum(parts))


def resize(
    x: Array,
    *,
    size: Sequence[int],
    scales: Sequence[float],
    roi: Sequence[float],
    mode: str,
    coordinates: str,
    nearest: str,
    cubic_a: float,
    exclude_outside: bool,
    extrapolation_value: float,
    antialias: bool,
) -> Array:
    """Compute ONNX's Resize; every dim is resized by weighted taps, or (nearest) by indices."""
    y, outside = x, np.zeros(tuple(size), bool)
    crop = coordinates == "tf_crop_and_resize"
    for axis, (old, out) in enumerate(zip(x.shape, size, strict=True)):
        scale = scales[axis] if scales else out / max(old, 1)
        if old == out and scale == 1 and not crop:
            continue
        at = np.arange(out, dtype=np.float64)
        if crop:
            positions = _cropped(at, scale, old, roi[axis], roi[axis + x.ndim])
            beyond = (positions < 0) | (positions > old - 1)
            outside |= beyond.reshape([-1 if i == axis else 1 for i in range(x.ndim)])
        else:
            positions = _COORDINATES[coordinates](at, scale, old, out)
        if mode == "nearest":
            nearest_index = np.clip(_NEAREST[nearest](positions), 0, max(old - 1, 0)).astype(np.int64)
            y = np.take(y, nearest_index, axis=axis)
            continue
        shrink = min(scale, 1.0) if antialias else 1.0
        kernel, reach = _KERNELS[mode](cubic_a)
        y = _blended(y, axis, taps_of(positions, old, kernel, reach, shrink, exclude_outside))
    y = np.where(outside, extrapolation_value, y) if crop else y
    return y if x.dtype.kind == "f" or y.dtype == x.dtype else _rounded(y, x.dtype)


def _rounded(y: Array, dtype: np.dtype[Any]) -> Array:
    """Round interpolated integers half to even, saturating."""
    limits = np.iinfo(dtype)
    return np.clip(np.rint(y), limits.min, limits.max)


# ── grids ──


def _unnormalized(grid: Array, size: int, align_corners: bool) -> Array:
    """Map [-1, 1] to coordinates between the centers of the border pixels, or (not aligned) their outer edges."""
    return (grid + 1) / 2 * (size - 1) if align_corners else ((grid + 1) * size - 1) / 2


def _reflected(x: Array, low: float, high: float) -> Array:
    span = high - low
    if span <= 0:
        return np.zeros(x.shape)
    folded = np.mod(np.abs(x - low), 2 * span)
    return np.where(folded > span, 2 * span - folded, folded) + low


def _placed(x: Array, size: int, padding_mode: str, align_corners: bool) -> Array:
    """Map a coordinate by the padding mode; zeros leaves it unchanged. NaN is the first place, as in PyTorch."""
    if padding_mode == "reflection":
        x = _reflected(x, 0, size - 1) if align_corners else _reflected(x, -0.5, size - 0.5)
    return x if padding_mode == "zeros" else np.where(np.isnan(x), 0, np.clip(x, 0, size - 1))


def grid_sample(x: Array, grid: Array, *, mode: str, padding_mode: str, align_corners: bool) -> Array:
    """Sample ``x`` [N, C, space] at grid [N, positions, n], whose last dim runs from the last spatial axis to the first.

    Nearest rounds half to even. Cubic (a = -0.75) applies the padding mode to each tap, as in PyTorch. The result is NaN at NaN and infinite
    positions, unless the padding mode or nearest maps them to a place.
    """
    space, n = x.shape[2:], x.ndim - 2
    at = [_unnormalized(grid[..., n - 1 - i], space[i], align_corners) for i in range(n)]
    if mode != "cubic":
        at = [_placed(a, d, padding_mode, align_corners) for a, d in zip(at, space, strict=True)]
    if mode == "nearest":
        return _read(x, [np.rint(a) for a in at])
    reach = range(-1, 3) if mode == "cubic" else range(2)
    lows = [np.floor(a) for a in at]
    total = np.zeros((*x.shape[:2], *grid.shape[1:-1]))
    for steps in np.ndindex(*[len(reach)] * n):
        share = np.ones(grid.shape[:-1])
        taps = []
        for a, low, step, size in zip(at, lows, steps, space, strict=True):
            tap = low + reach[step]
            distance = reach[step] - (a - low)  # beyond 2^53 all taps are one number
            share = share * (_keys(distance, -0.75) if mode == "cubic" else _triangle(distance))
            taps.append(_placed(tap, size, padding_mode, align_corners) if mode == "cubic" else tap)
        total += _read(x, taps) * share[:, None]
    return total


def _read(x: Array, at: Sequence[Array]) -> Array:
    """Read ``x`` [N, C, space] at integer positions [N, ...] per axis. The result is [N, C, ...], zero outside and for NaN positions."""
    index: Array = np.zeros(at[0].shape, np.int64)
    inside: Array = np.ones(at[0].shape, bool)
    for a, size in zip(at, x.shape[2:], strict=True):
        within = (a >= 0) & (a <= size - 1)
        inside &= within
        index = index * size + np.where(within, a, 0).astype(np.int64)
    flat = x.reshape(
        *x.shape[:2], math.prod(x.shape[2:])
    )  # without -1: the batch or the channels may be empty
    read = np.take_along_axis(flat, index.reshape(index.shape[0], 1, math.prod(index.shape[1:])), 2)
    return np.where(inside[:, None], read.reshape(*x.shape[:2], *at[0].shape[1:]), 0.0)


def affine_grid(theta: Array, *, size: Sequence[int], align_corners: bool) -> Array:
    """Transform the normalized coordinates of an output [N, C, space] by theta [N, n, n + 1]."""
    space = size[2:]
    ticks = [np.linspace(-1, 1, d) if d > 1 else np.zeros(d) for d in space]
    if not align_corners:
        ticks = [t * (d - 1) / d for t, d in zip(ticks, space, strict=True)]
    axes = np.meshgrid(*ticks, indexing="ij")
    points = np.stack([*reversed(axes), np.ones(tuple(space))], axis=-1)
    return np.asarray(np.einsum("nij,...j->n...i", theta, points))


RULES: dict[str, InterpRule] = {
    "resize": wide(resize),
    "grid_sample": wide(grid_sample),
    "affine_grid": wide(affine_grid),
}
