"""Normalizations in float64; statistics are only rounded as outputs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .numbers import Array
from .rule import InterpRule, wide

__all__ = ["RULES"]


def _scaled(y: Array, weight: Array | None, bias: Array | None) -> Array:
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def _per_channel(x: Array, value: Array | None) -> Array | None:
    """Return a value per channel, in the shape that broadcasts with [N, C, ...]."""
    return None if value is None else value.reshape(-1, *[1] * (x.ndim - 2))


def _standard(x: Array, axes: tuple[int, ...], eps: float) -> tuple[Array, Array, Array]:
    """Return (x - mean) * rstd, mean and rstd over axes, with the dims kept."""
    mean = x.mean(axis=axes, keepdims=True)
    variance = np.square(np.abs(x - mean)).mean(axis=axes, keepdims=True)
    rstd = 1 / np.sqrt(variance + eps)
    return (x - mean) * rstd, mean, rstd


def layer_norm(
    x: Array, weight: Array | None, bias: Array | None, *, normalized_shape: Sequence[int], eps: float
) -> tuple[Array, Array, Array]:
    """Normalize over the last dims, scale and shift; also return mean and 1/std."""
    y, mean, rstd = _standard(x, tuple(range(-len(normalized_shape), 0)), eps)
    return _scaled(y, weight, bias), mean, rstd


def rms_norm(
    x: Array, weight: Array | None, *, normalized_shape: Sequence[int], eps: float
) -> tuple[Array, Array]:
    """Divide x by its root mean square over the last dims, and scale."""
    axes = tuple(range(-len(normalized_shape), 0))
    rstd = 1 / np.sqrt((x * x).mean(axis=axes, keepdims=True) + eps)
    return _scaled(x * rstd, weight, None), rstd


def group_norm(
    x: Array, weight: Array | None, bias: Array | None, *, groups: int, eps: float
) -> tuple[Array, Array, Array]:
    """Normalize over each group of channels; statistics are [N, groups]."""
    parts = x.reshape(x.shape[0], groups, int(np.prod(x.shape[1:])) // groups)
    y, mean, rstd = _standard(parts, (2,), eps)
    scaled = _scaled(y.reshape(x.shape), _per_channel(x, weight), _per_channel(x, bias))
    return scaled, mean[..., 0], rstd[..., 0]


def instance_norm(x: Array, weight: Array | None, bias: Array | None, *, eps: float) -> Array:
    """Normalize over the spatial dims of each channel of each sample."""
    y, _, _ = _standard(x, tuple(range(2, x.ndim)), eps)
    return _scaled(y, _per_channel(x, weight), _per_channel(x, bias))


def batch_norm(
    x: Array, weight: Array | None, bias: Array | None, mean: Array, var: Array, *, eps: float
) -> Array:
    """Normalize with the given statistics."""
    shape = (-1, *[1] * (x.ndim - 2))
    center, spread = mean.reshape(shape), var.reshape(shape)
    return _scaled((x - center) / np.sqrt(spread + eps), _per_channel(x, weight), _per_channel(x, bias))


def batch_norm_train(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    *,
    momentum: float,
    eps: float,
) -> tuple[Array, Array, Array, Array, Array]:
    """Normalize with the batch's statistics. Running statistics are updated with momentum, the variance by its unbiased estimate."""
    axes = (0, *range(2, x.ndim))
    y, mean, rstd = _standard(x, axes, eps)
    scaled = _scaled(y, _per_channel(x, weight), _per_channel(x, bias))
    count = x.size // max(x.shape[1], 1)
    center = mean.reshape(-1)
    spread = np.square(np.abs(x - mean)).sum(axis=axes) / np.float64(count - 1)
    updated = [
        now if old is None else (1 - momentum) * old + momentum * now
        for old, now in ((running_mean, center), (running_var, spread))
    ]
    return scaled, center, rstd.reshape(-1), updated[0], updated[1]


def local_response_norm(x: Array, *, size: int, alpha: float, beta: float, k: float) -> Array:
    """Compute x / (k + alpha / size * sum of squares over neighboring channels)**beta."""
    back, on = (size - 1) // 2, size // 2
    square = np.zeros(x.shape)
    for c in range(x.shape[1]):
        square[:, c] = np.square(x[:, max(c - back, 0) : c + on + 1]).sum(axis=1)
    return np.asarray(x / (k + alpha / size * square) ** beta)


RULES: dict[str, InterpRule] = {
    "layer_norm": wide(layer_norm),
    "rms_norm": wide(rms_norm),
    "group_norm": wide(group_norm),
    "instance_norm": wide(instance_norm),
    "batch_norm": wide(batch_norm),
    "batch_norm_train": wide(batch_norm_train),
    "local_response_norm": wide(local_response_norm),
}
