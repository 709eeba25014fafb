"""batch_graphs: one step of a decoder over a paged cache, for several numbers of tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...ir import Graph
from ...types import DType
from ..build import DECODE, SAMPLE
from ..checkpoint.config import DecoderConfig
from ..decoder import decoder_graph
from ..paged import PagedCache

__all__ = ["batch_graphs", "cache_bytes_per_token", "entry_name", "step_sizes"]

_GROWTH = 8
"""Factor between step sizes."""


def entry_name(kind: str, tokens: int) -> str:
    """Return the name of the entry point of a step of ``tokens`` tokens."""
    return f"{kind}_{tokens}"


def step_sizes(step_tokens: int) -> tuple[int, ...]:
    """Return the numbers of tokens for which steps are compiled: 1, 8, 64 ... and ``step_tokens``."""
    sizes, size = [], 1
    while size < step_tokens:
        sizes.append(size)
        size *= _GROWTH
    return (*sizes, step_tokens)


def batch_graphs(
    config: DecoderConfig, cache: PagedCache, *, sizes: Sequence[int], texts: int, **words: Any
) -> Mapping[str, Graph]:
    """Return a graph per entry point: for each size one that returns logits, and one that samples. ``words``: as for ``decoder_graph``."""
    return {
        entry_name(kind, size): decoder_graph(
            config,
            length=1,
            capacity=cache.capacity,
            batch=size,
            paged=cache,
            texts=min(size, texts),
            sampling=kind == SAMPLE,
            **words,
        )
        for kind in (DECODE, SAMPLE)
        for size in sizes
    }


def cache_bytes_per_token(config: DecoderConfig, dtype: DType) -> int:
    """Return the bytes of one token in the cache of all layers, as the graph's states have them."""
    cache = PagedCache(2, 1, 1)
    graph = decoder_graph(config, length=1, capacity=1, batch=1, dtype=dtype, paged=cache, texts=1)
    return sum((s.spec.size_bytes or 0) for s in graph.states) // cache.rows
