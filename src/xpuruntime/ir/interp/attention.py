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
    scores = _scores(q, k, mask, causal, causal_offset, scale, softcap)
    blind = np.all(scores == -np.inf, axis=3, keepdims=True)
    weights = np.where(blind, 0.0, softmax_wide(scores, 3))
    return np.asarray(np.matmul(weights, _of_heads(v, q)))


def paged_attention(
    q: Array,
    keys: Array,
    values: Array,
    tables: Array,
    positions: Array,
    biases: Array | None = None,
    *,
    block_size: int,
    window: int,
    scale: float | None,
    softcap: float,
    by_key: bool = False,
) -> Array:
    """Compute the attention of each text over the rows of both caches that its table names. Raises IndexError for a block out of range."""
    blocks, visible = keys.shape[0] // block_size, tables.shape[1] * block_size
    y = np.zeros((*q.shape[:3], values.shape[2]), np.result_type(q, values))
    places = np.arange(visible)
    for b, (table, at) in enumerate(zip(tables.astype(np.int64), positions.astype(np.int64), strict=True)):
        if at.max(initial=-1) >= visible:
            raise IndexError(
                f"position {at.max()} is out of range for {tables.shape[1]} blocks of {block_size}"
            )
        seen = places <= at[:, None]
        if window:
            seen &= places > at[:, None] - window
        used = seen.any(axis=0).reshape(-1, block_size).any(axis=1)
        outside = table[used & ((table < 0) | (table >= blocks))]
        if outside.size:
            raise IndexError(f"block {outside[0]} is out of range for a cache of {blocks}")
        rows = (np.where(used, table, 0)[:, None] * block_size + np.arange(block_size)).ravel()
        k, v = (x[rows].swapaxes(0, 1)[None] for x in (keys, values))
        mask = seen[None, None]
        if biases is not None:
            distances = places if by_key else at[:, None] - places
            index = np.broadcast_to(np.clip(distances, 0, biases.shape[1] - 1), seen.shape)
            mask = np.where(mask, biases[:, index][None], -np.inf)
        y[b] = attention(
            q[b : b + 1], k, v, mask, causal=False, causal_offset=0, scale=scale, softcap=softcap
        )
    return y


def attention_train(
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None,
    *,
    causal: bool,
    causal_offset: int,
    scale: float | None,
) -> tuple[Array, Array]:
    """Compute attention, and the log of the sum of each query's exponentials."""
    scores = _scores(q, k, mask, causal, causal_offset, scale)
    row_max = np.max(scores, axis=3, keepdims=True, initial=-np.inf)
    shift = np.where(row_max == -np.inf, 0.0, row_max)
    with np.errstate(divide="ignore", invalid="ignore"):
        lse = np.log(np.sum(np.exp(scores - shift), axis=3, keepdims=True)) + shift
    return np.asarray(np.matmul(_weights(scores, lse), _of_heads(v, q))), lse[..., 0]


def attention_backward(
    grad: Array,
    q: Array,
    k: Array,
    v: Array,
    y: Array,
    lse: Array,
    mask: Array | None,
    *,
    causal: bool,
    causal_offset: int,
    scale: float | None,
) -> tuple[Array, Array, Array]:
    """Compute the gradients of q, k and v (Dao, 2023, algorithm 2)."""
    factor = 1 / math.sqrt(q.shape[3]) if scale is None else scale
    weights = _weights(_scores(q, k, mask, causal, causal_offset, scale), lse[..., None])
    delta = np.sum(grad * y, axis=3, keepdims=True)
    slopes = weights * (np.matmul(grad, _of_heads(v, q).swapaxes(2, 3)) - delta) * factor
    grad_k = np.matmul(slopes.swapaxes(2, 3), q)
    grad_v = np.matmul(weights.swapaxes(2, 3), grad)
    return np.matmul(slopes, _of_heads(k, q)), _sum_heads(grad_k, k), _sum_heads(grad_v, v)


def _of_heads(x: Array, q: Array) -> Array:
    """Repeat the heads of keys or values for the heads of queries."""
    return np.repeat(x, q.shape[1] // max(x.shape[1], 1), axis=1)


def _sum_heads(grad: Array, x: Array) -> Array:
    """Sum gradients over the query heads that share a head."""
    batch, heads, length, size = x.shape
    return np.asarray(grad.reshape(batch, heads, grad.shape[1] // max(heads, 1), length, size).sum(axis=2))


def _scores(
    q: Array,
    k: Array,
    mask: Array | None,
    causal: bool,
    causal_offset: int,
    scale: float | None,
    softcap: float = 0.0,
) -> Array:
    factor = 1 / math.sqrt(q.shape[3]) if scale is None else scale
    scores = np.matmul(q, _of_heads(k, q).swapaxes(2, 3)) * factor
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    if causal:
        visible = np.arange(k.shape[2]) <= np.arange(q.shape[2])[:, None] + causal_offset
        scores = np.where(visible, scores, -np.inf)
    return np.asarray(scores)


def _weights(scores: Array, lse: Array) -> Array:
    with np.errstate(invalid="ignore"):
        return np.where(lse == -np.inf, 0.0, np.exp(scores - lse))


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


RULES: dict[str, InterpRule] = {
    "attention": wide(attention),
    "paged_attention": wide(paged_attention),
    "attention_train": wide(attention_train),
    "attention_backward": wide(attention_backward),
    "rope": plain(rope),
}
