"""Convolutions as one matrix product per kernel position, for any rank, stride, dilation and grouping."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..ops._shapes import pads
from .activation import ACTIVATIONS
from .numbers import Array
from .rule import InterpRule, plain, wide
from .windows import Windows, last, pad, taps

__all__ = ["RULES", "convolve", "convolve_transposed"]


def convolve(
    x: Array,
    weight: Array,
    *,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Array:
    """Convolve ``x`` [N, C, space] with weight [O, C/groups, kernel], with zero padding."""
    w = Windows(x.shape[2:], weight.shape[2:], stride, padding, dilation)
    full = w.padded(x, 0)
    batch, channels, out = x.shape[0], x.shape[1] // groups, weight.shape[0] // groups
    total = np.zeros((batch, groups, out, int(np.prod(w.size))), x.dtype)
    for tap, where in w.taps():
        met = full[last(where)].reshape(batch, groups, channels, int(np.prod(w.size)))
        total += np.matmul(weight[last(tap)].reshape(groups, out, channels), met)
    return total.reshape(batch, groups * out, *w.size)


def convolve_transposed(
    x: Array,
    weight: Array,
    *,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    output_padding: Sequence[int],
) -> Array:
    """Compute the transposed convolution of ``x`` [N, C, space] with weight [C, O/groups, kernel], then crop the padding."""
    n = x.ndim - 2
    begins, ends = pads(padding, n)
    extra = tuple(output_padding) or (0,) * n
    kernel, size = weight.shape[2:], x.shape[2:]
    spread = [
        max((d - 1) * s + (k - 1) * w + 1, 0)
        for d, s, k, w in zip(size, stride, kernel, dilation, strict=True)
    ]
    batch, channels, out = x.shape[0], x.shape[1] // groups, weight.shape[1]
    full = np.zeros((batch, groups * out, *spread), x.dtype)
    grouped = x.reshape(batch, groups, channels, int(np.prod(size)))
    for tap, where in taps(kernel, size, stride, dilation):
        part = np.matmul(weight[last(tap)].reshape(groups, channels, out).swapaxes(1, 2), grouped)
        full[last(where)] += part.reshape(batch, groups * out, *size)
    return pad(full, [-b for b in begins], [o - e for o, e in zip(extra, ends, strict=True)], 0)


def _with_bias(y: Array, bias: Array | None) -> Array:
    return y if bias is None else y + bias.reshape(-1, *[1] * (y.ndim - 2))


def convolution(
    x: Array,
    weight: Array,
    bias: Array | None,
    *,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    transposed: bool,
    output_padding: Sequence[int],
) -> Array:
    """Compute a convolution or transposed convolution, plus bias."""
    if transposed:
        y = convolve_transposed(
            x,
            weight,
            stride=stride,
            padding=padding,
            dilation=dilation,
            groups=groups,
            output_padding=output_padding,
        )
    else:
        y = convolve(x, weight, stride=stride, padding=padding, dilation=dilation, groups=groups)
    return _with_bias(y, bias)


def fused_convolution(
    x: Array,
    weight: Array,
    bias: Array | None,
    residual: Array | None,
    *,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    transposed: bool,
    output_padding: Sequence[int],
    act: str,
) -> Array:
    """Compute act(convolution + bias + residual)."""
    y = convolution(
        x,
        weight,
        bias,
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
        transposed=transposed,
        output_padding=output_padding,
    )
    return ACTIVATIONS[act](y if residual is None else y + residual)


def deform_convolution(
    x: Array,
    weight: Array,
    offset: Array,
    bias: Array | None,
    mask: Array | None,
    *,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    offset_groups: int,
) -> Array:
    """Compute a deformable convolution: x is read at offset positions with linear interpolation, zero outside (Dai et al., 2017).

    offset is [N, offset_groups * kernel * n, positions], mask [N, offset_groups * kernel, positions].
    """
    w = Windows(x.shape[2:], weight.shape[2:], stride, padding, dilation)
    batch, channels = x.shape[:2]
    count = int(np.prod(w.kernel))
    shifts = offset.reshape(batch, offset_groups, count, w.n, *w.size)
    scale = (
        np.ones((batch, offset_groups, count, *w.size))
        if mask is None
        else mask.reshape(batch, offset_groups, count, *w.size)
    )
    groups_of_x = x.reshape(batch, offset_groups, channels // offset_groups, *w.space)
    out = weight.shape[0]
    total = np.zeros((batch, groups, out // groups, int(np.prod(w.size))))
    positions = np.indices(w.size)
    for number, tap in enumerate(np.ndindex(*w.kernel)):
        base = [positions[i] * w.stride[i] - w.begins[i] + tap[i] * w.dilation[i] for i in range(w.n)]
        at = [base[i] + shifts[:, :, number, i] for i in range(w.n)]
        met = _interpolated(groups_of_x, at) * scale[:, :, number, None]
        met = met.reshape(batch, groups, channels // groups, -1)
        total += np.matmul(weight[last(tap)].reshape(groups, out // groups, -1), met)
    return _with_bias(total.reshape(batch, out, *w.size), bias)


def _interpolated(x: Array, at: Sequence[Array]) -> Array:
    """Read ``x`` [N, G, C, space] at real positions [N, G, ...] per spatial dim. The result is [N, G, C, ...], zero outside."""
    space = x.shape[3:]
    floors = [np.floor(a) for a in at]
    total = np.zeros((*x.shape[:3], *at[0].shape[2:]))
    flat = x.reshape(*x.shape[:3], -1)
    for corner in np.ndindex(*[2] * len(at)):
        share = np.ones(at[0].shape)
        index = np.zeros(at[0].shape, np.int64)
        for a, low, step, size in zip(at, floors, corner, space, strict=True):
            position = low + step
            inside = (position >= 0) & (position < size)
            share = share * np.where(inside, a - low if step else 1 - (a - low), 0.0)
            index = index * size + np.where(inside, position, 0).astype(np.int64)
        read = np.take_along_axis(flat, index.reshape(*index.shape[:2], 1, -1), 3)
        total += read.reshape(total.shape) * share[:, :, None]
    return total


# ── the matrix of windows ──


def im2col(
    x: Array,
    *,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Array:
    """Return [N, C * kernel, windows], with one column per window."""
    w = Windows(x.shape[2:], kernel_size, stride, padding, dilation)
    windows = w.view(x, 0)  # [N, C, places, kernel]
    order = (0, 1, *range(2 + w.n, 2 + 2 * w.n), *range(2, 2 + w.n))
    count = int(np.prod(w.kernel))
    return np.ascontiguousarray(windows.transpose(order)).reshape(
        x.shape[0], x.shape[1] * count, int(np.prod(w.size))
    )


def col2im(
    x: Array,
    *,
    output_size: Sequence[int],
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Array:
    """Add columns at their positions, the transpose of im2col."""
    w = Windows(output_size, kernel_size, stride, padding, dilation)
    lead = x.shape[:-2]
    channels = x.shape[-2] // int(np.prod(w.kernel))
    columns = x.reshape(*lead, channels, *w.kernel, *w.size)
    full = w.padded(np.zeros((*lead, channels, *output_size), x.dtype), 0)
    for tap, where in w.taps():
        full[last(where)] += columns[last((*tap, *[slice(None)] * w.n))]
    return w.crop(full)


RULES: dict[str, InterpRule] = {
    "convolution": wide(convolution),
    "fused_convolution": wide(fused_convolution),
    "deform_convolution": wide(deform_convolution),
    "im2col": plain(im2col),
    "col2im": wide(col2im),
}
