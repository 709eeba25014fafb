"""Gradient ops of core ATen. Each is the transpose of its forward op's Jacobian."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..ops._shapes import pads
from .conv import convolve, convolve_transposed
from .indexing import from_start
from .numbers import Array
from .pool import adaptive_edges, divisors, windows_of
from .rule import InterpRule, wide
from .windows import last, pad, taps

__all__ = ["RULES"]


def convolution_backward(
    grad: Array,
    x: Array,
    weight: Array,
    *,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    transposed: bool,
    output_padding: Sequence[int],
) -> tuple[Array, Array, Array]:
    """Compute the gradients of x, weight and bias."""
    n = x.ndim - 2
    begins, ends = pads(padding, n)
    space = grad.shape[2:] if transposed else x.shape[2:]
    bias = grad.sum(axis=(0, *range(2, grad.ndim)))
    if transposed:
        extra = tuple(output_padding) or (0,) * n
        padding_of_both_sides = (*begins, *(e - o for e, o in zip(ends, extra, strict=True)))
        grad_x = convolve(
            grad, weight, stride=stride, padding=padding_of_both_sides, dilation=dilation, groups=groups
        )
        grad_x = grad_x[last(slice(0, d) for d in x.shape[2:])]
        grad_weight = _weight_gradient(x, grad, weight.shape, stride, begins, dilation, groups)
        return grad_x, grad_weight, bias
    spans = [(k - 1) * w + 1 for k, w in zip(weight.shape[2:], dilation, strict=True)]
    # elements that the stride skips at the end get no gradient, so pad the transpose
    left_over = [
        (d + b + e - span) % s for d, b, e, span, s in zip(space, begins, ends, spans, stride, strict=True)
    ]
    grad_x = convolve_transposed(
        grad,
        weight,
        stride=stride,
        padding=(*begins, *ends),
        dilation=dilation,
        groups=groups,
        output_padding=left_over,
    )
    return grad_x, _weight_gradient(grad, x, weight.shape, stride, begins, dilation, groups), bias


def _weight_gradient(
    strided: Array,
    windowed: Array,
    shape: Sequence[int],
    stride: Sequence[int],
    begins: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Array:
    """Sum, for each kernel position, the products of the strided operand (``few``) with the other operand's window elements."""
    size = strided.shape[2:]
    reach = [
        (o - 1) * s + (k - 1) * w + 1 for o, s, k, w in zip(size, stride, shape[2:], dilation, strict=True)
    ]
    ends = [r - b - d for r, b, d in zip(reach, begins, windowed.shape[2:], strict=True)]
    full = pad(windowed, begins, ends, 0)
    batch, rows, columns = strided.shape[0], strided.shape[1] // groups, windowed.shape[1] // groups
    flat = strided.reshape(batch, groups, rows, -1)
    grad = np.zeros((groups, rows, columns, *shape[2:]))
    for tap, where in taps(shape[2:], size, stride, dilation):
        met = full[last(where)].reshape(batch, groups, columns, -1)
        grad[last(tap)] = np.einsum("ngol,ngil->goi", flat, met, optimize=True)
    return grad.reshape(shape)


def avg_pool_backward(
    grad: Array,
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
    """Distribute each window's gradient equally to its elements."""
    w = windows_of(x, kernel_size, stride, padding, dilation, ceil_mode)
    share = grad / divisors(w, count_include_pad, divisor)
    full = w.padded(np.zeros(x.shape), 0)
    for _, where in w.taps():
        full[last(where)] += share
    return w.crop(full)


def max_pool_backward(grad: Array, x: Array, indices: Array, *, kernel_size: Sequence[int]) -> Array:
    """Route each window's gradient to the element of its maximum (indices within the plane)."""
    n = len(kernel_size)
    planes = int(np.prod(x.shape[: x.ndim - n]))
    total = np.zeros((planes, int(np.prod(x.shape[x.ndim - n :]))))
    rows = np.arange(planes)[:, None]
    np.add.at(total, (rows, indices.reshape(planes, -1)), grad.reshape(planes, -1))
    return total.reshape(x.shape)


def adaptive_avg_pool_backward(grad: Array, x: Array) -> Array:
    """Distribute each window's gradient equally to its elements."""
    n = x.ndim - 2
    edges = [adaptive_edges(d, o) for d, o in zip(x.shape[2:], grad.shape[2:], strict=True)]
    total = np.zeros(x.shape)
    for position in np.ndindex(*grad.shape[2:]):
        box = [edges[i][position[i]] for i in range(n)]
        count = np.prod([b - a for a, b in box])
        total[last([slice(a, b) for a, b in box])] += (grad[last(position)] / count).reshape(
            *x.shape[:2], *[1] * n
        )
    return total


def layer_norm_backward(
    grad: Array,
    x: Array,
    mean: Array,
    rstd: Array,
    weight: Array | None,
    bias: Array | None,
    *,
    normalized_shape: Sequence[int],
) -> tuple[Array, Array, Array]:
    """Compute the gradients of x, weight and bias."""
    n = len(normalized_shape)
    axes, lead = tuple(range(-n, 0)), tuple(range(x.ndim - n))
    normal = (x - mean) * rstd
    scaled = grad if weight is None else grad * weight
    grad_x = rstd * (
        scaled
        - scaled.mean(axis=axes, keepdims=True)
        - normal * (scaled * normal).mean(axis=axes, keepdims=True)
    )
    return grad_x, (grad * normal).sum(axis=lead), grad.sum(axis=lead)


def layer_norm_backward_add(
    grad: Array,
    x: Array,
    mean: Array,
    rstd: Array,
    weight: Array,
    residual: Array,
    *,
    normalized_shape: Sequence[int],
) -> tuple[Array, Array, Array, Array]:
    """Compute the gradients, with the residual added to that of x; the last result is rounded to fewer bits."""
    grad_x, *sums = layer_norm_backward(grad, x, mean, rstd, weight, None, normalized_shape=normalized_shape)
    total = grad_x + residual
    return total, sums[0], sums[1], total


def group_norm_backward(
    grad: Array, x: Array, mean: Array, rstd: Array, weight: Array | None, *, groups: int
) -> tuple[Array, Array, Array]:
    """Compute the gradients of x, weight and bias; mean and rstd are [N, groups]."""
    batch, channels = x.shape[:2]
    scaled = grad if weight is None else grad * weight.reshape(-1, *[1] * (x.ndim - 2))
    normal = (x.reshape(batch, groups, -1) - mean[..., None]) * rstd[..., None]
    parts = scaled.reshape(batch, groups, -1)
    grad_x = rstd[..., None] * (
        parts - parts.mean(axis=2, keepdims=True) - normal * (parts * normal).mean(axis=2, keepdims=True)
    )
    per_channel = (grad * normal.reshape(x.shape)).reshape(batch, channels, -1).sum(axis=(0, 2))
    return grad_x.reshape(x.shape), per_channel, grad.reshape(batch, channels, -1).sum(axis=(0, 2))


def embedding_backward(
    grad: Array, indices: Array, *, num_weights: int, padding_idx: int, scale_by_freq: bool
) -> Array:
    """Sum the gradients of each row (divided by its frequency, if scaled); the padding row gets none."""
    rows_of_weight = from_start(indices, num_weights).reshape(-1)
    rows = grad.reshape(-1, grad.shape[-1])
    mask = rows_of_weight != padding_idx
    rows_of_weight, rows = rows_of_weight[mask], rows[mask]
    if scale_by_freq:
        rows = rows / np.bincount(rows_of_weight, minlength=num_weights)[rows_of_weight][:, None]
    total = np.zeros((num_weights, grad.shape[-1]))
    np.add.at(total, rows_of_weight, rows)
    return total


RULES: dict[str, InterpRule] = {
    "convolution_backward": wide(convolution_backward),
    "avg_pool_backward": wide(avg_pool_backward),
    "max_pool_backward": wide(max_pool_backward),
    "adaptive_avg_pool_backward": wide(adaptive_avg_pool_backward),
    "layer_norm_backward": wide(layer_norm_backward),
    "layer_norm_backward_add": wide(layer_norm_backward_add),
    "group_norm_backward": wide(group_norm_backward),
    "embedding_backward": wide(embedding_backward),
}
