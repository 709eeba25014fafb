"""Fused ops of decoders, computed by their constituent ops."""

from __future__ import annotations

import numpy as np

from .activation import ACTIVATIONS
from .attention import attention, rope
from .matmul import linear
from .norm import rms_norm
from .numbers import Array, widen
from .rule import InterpRule, plain, wide

__all__ = ["RULES"]


def norm_linear(
    x: Array,
    weight: Array,
    bias: Array | None,
    residual: Array | None,
    scale: Array | None,
    *,
    act: str,
    eps: float,
    gated: bool,
) -> Array:
    """Compute a linear layer of the RMS-normalized ``x``; gated: act(first half) * second half."""
    n = x if scale is None else rms_norm(x, scale, normalized_shape=x.shape[-1:], eps=eps)[0]
    y = linear(n, weight, bias)
    if gated:
        gate, through = np.split(y, 2, axis=-1)
        return np.asarray(ACTIVATIONS[act](gate) * through)
    return np.asarray(ACTIVATIONS[act](y if residual is None else y + residual))


def rope_append(
    q: Array,
    k: Array,
    v: Array,
    cos: Array,
    sin: Array,
    keys: Array,
    values: Array,
    places: Array,
    positions: Array | None,
    *,
    size: int,
) -> tuple[Array, Array, Array]:
    """Return the rotated queries, and both caches with the new rows written."""
    q, k = (rope(x, cos, sin, positions, interleaved=False, size=size) for x in (q, k))
    at = np.broadcast_to(places.astype(np.int64), (q.shape[0], q.shape[2]))
    keys, values = keys.copy(), values.copy()
    for b, row in enumerate(at):
        keys[b][:, row] = k[b]
        values[b][:, row] = v[b]
    return q, keys, values


def rope_attention(
    q: Array,
    k: Array,
    v: Array,
    cos: Array,
    sin: Array,
    keys: Array,
    values: Array,
    places: Array,
    positions: Array | None,
    mask: Array | None,
    *,
    size: int,
    causal: bool,
    causal_offset: int,
    scale: float | None,
    softcap: float,
) -> tuple[Array, Array, Array]:
    """Compute attention over both updated caches, and return the caches, too. The rotated queries are rounded to their own type, as if stored."""
    q, keys, values = rope_append(q, k, v, cos, sin, keys, values, places, positions, size=size)
    y = attention(
        widen(q), widen(keys), widen(values), None if mask is None else widen(mask),
        causal=causal, causal_offset=causal_offset, scale=scale, softcap=softcap,
    )  # fmt: skip
    return y, keys, values


RULES: dict[str, InterpRule] = {
    "norm_linear": wide(norm_linear),
    "rope_append": plain(rope_append),
    "rope_attention": plain(rope_attention),
}
