"""latent_attention: multi-head latent attention in a decoder's graph, over its compressed cache.

The cache has one row for all heads: the compressed keys and values after their norm, then the rotated part of the keys. Queries are multiplied by
the matrices that expand the keys, and results by those that expand the values (arXiv 2405.04434, section 2.1.2), so that no key or value of a
head is computed or stored. Scores are those of the expanded form up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ..ir import GraphBuilder
from .checkpoint.latent import LatentSizes

__all__ = ["LatentParts", "latent_attention"]


class LatentParts(Protocol):
    """Parts of a layer, which the caller builds."""

    def linear(self, part: str, x: str) -> str:
        """Return a linear layer of ``x``."""
        ...

    def norm(self, part: str, x: str) -> str:
        """Return a norm of ``x``."""
        ...

    def rotated(self, x: str) -> str:
        """Return rotated heads."""
        ...

    def cached(self, rows: str) -> str:
        """Return the layer's cache with new rows."""
        ...


def latent_attention(
    b: GraphBuilder,
    sizes: LatentSizes,
    parts: LatentParts,
    x: str,
    expand: str,
    attend: Callable[[str, str, str], str],
    heads: int,
) -> str:
    """Return the values of all heads, [batch, length, heads * value].

    expand: the weight that expands a compressed row to keys and values, [heads * (plain + value), rank].
    attend: attention of queries over keys and values of one head.
    """
    batch, length, _ = b.spec(x).shape
    q = parts.norm("q_a_norm", parts.linear("q_a", x)) if sizes.query_rank else x
    q = parts.linear("q_b" if sizes.query_rank else "q", q)
    q = b.permute(b.view(q, size=[batch, length, heads, sizes.head]), dims=[0, 2, 1, 3])
    plain, rotated = b.split(q, sizes=[sizes.plain, sizes.rotated], dim=3)
    row, key = b.split(parts.linear("kv_a", x), sizes=[sizes.rank, sizes.rotated], dim=2)
    row = b.view(parts.norm("kv_a_norm", row), size=[batch, 1, length, sizes.rank])
    key = parts.rotated(b.view(key, size=[batch, 1, length, sizes.rotated]))
    cache = parts.cached(b.cat(row, key, dim=3))

    matrices = b.view(expand, size=[heads, sizes.plain + sizes.value, sizes.rank])
    of_keys = b.slice(matrices, dim=1, start=0, end=sizes.plain)
    of_values = b.slice(matrices, dim=1, start=sizes.plain, end=sizes.plain + sizes.value)
    queries = b.cat(b.matmul(plain, of_keys), parts.rotated(rotated), dim=3)
    y = attend(queries, cache, b.slice(cache, dim=b.spec(cache).rank - 1, start=0, end=sizes.rank))
    y = b.matmul(y, b.permute(of_values, dims=[0, 2, 1]))
    return str(b.view(b.permute(y, dims=[0, 2, 1, 3]), size=[batch, length, heads * sizes.value]))
