"""Attention and rotary embedding."""

from __future__ import annotations

import math

import numpy as np

from .activation import softmax_wide
from .numbers import Array, dtype_of, to, widen
from .rule import InterpRule, plain, wide

__all__ = ["RULES"]


def attention(
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None,
    *,
    causal: bool,
    causal_offset: int,
    scale: float | None,
    softcap: float,
) -> Array:
    """Compute softmax(softcap(q @ k.T * scale) + mask) @ v per head.

    The softcap is applied before the mask, so that -inf still masks. A query without any visible key gives 0, as in PyTorch and ONNX.
    """
    repeats = q.shape[1] // max(k.shape[1], 1)
    keys, values = np.repeat(k, repeats, axis=1), np.repeat(v, repeats, axis=1)
    factor = 1 / math.sqrt(q.shape[3]) if scale is None else scale
    scores = np.matmul(q, keys.swapaxes(2, 3)) * factor
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    if causal:
        visible = np.arange(k.shape[2]) <= np.arange(q.shape[2])[:, None] + causal_offset
        scores = np.where(visible, scores, -np.inf)
    blind = np.all(scores == -np.inf, axis=3, keepdims=True)
    weights = np.where(blind, 0.0, softmax_wide(scores, 3))
    return np.asarray(np.matmul(weights, values))


def rope(x: Array, cos: Array, sin: Array, positions: Array | None, *, interleaved: bool, size: int) -> Array:
    """Rotate pairs of the first ``size`` elements (0: all) by an angle per position: (a, b) -> (a cos - b sin, b cos + a sin).

    A pair is (x[i], x[i + size/2]), or with ``interleaved`` (x[2i], x[2i + 1]) (Su et al., 2021).
    """
    size = size or x.shape[-1]
    if positions is not None:
        cos, sin = cos[positions.astype(np.int64)], sin[positions.astype(np.int64)]
    if cos.ndim == 3:  # one table per sample, shared by all heads
        cos, sin = (np.expand_dims(t, 1) for t in (cos, sin)) if x.ndim == 4 else (cos, sin)
    pairs, unrotated = widen(x[..., :size]), x[..., size:]
    cos, sin = widen(cos[..., : size // 2]), widen(sin[..., : size // 2])
    half = size // 2
    a, b = (pairs[..., 0::2], pairs[..., 1::2]) if interleaved else (pairs[..., :half], pairs[..., half:])
    first, second = a * cos - b * sin, b * cos + a * sin
    if interleaved:
        y = np.stack([first, second], axis=-1).reshape(pairs.shape)
    else:
        y = np.concatenate([first, second], axis=-1)
    return np.concatenate([to(y, dtype_of(x)), unrotated], axis=-1)


RULES: dict[str, InterpRule] = {"attention": wide(attention), "rope": plain(rope)}
