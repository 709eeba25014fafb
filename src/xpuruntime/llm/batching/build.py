"""The graphs of a batch: one step of a decoder over a paged cache, for several numbers of tokens."""

from __future__ import annotations

from typing import Any

from ...ir import Graph
from ...types import DType
from ..build import ENCODE, SAMPLE
from ..checkpoint.config import DecoderConfig
from ..decoder import SOURCE, decoder_graph
from ..encoder import encoder_graph
from ..paged import PagedCache

__all__ = ["batch_entry_graph", "cache_bytes_per_token", "entry_name", "step_sizes"]

_FEW = 8
"""Rows that products read in the time of one, as the weights are read once."""


def entry_name(kind: str, tokens: int) -> str:
    """Return the name of the entry point of a step of ``tokens`` tokens."""
    return f"{kind}_{tokens}"


def step_sizes(step_tokens: int) -> tuple[int, ...]:
    """Return the numbers of tokens for which steps are compiled: 1, 8, 16, 32 ... and ``step_tokens``."""
    sizes, size = [1] if step_tokens > 1 else [], _FEW
    while size < step_tokens:
        sizes.append(size)
        size *= 2
    return (*sizes, step_tokens)


def batch_entry_graph(
    entry: str, config: DecoderConfig, *, cache: PagedCache, results: int, **words: Any
) -> Graph:
    """Return the graph of a step by its name: ``decode_N`` returns logits, ``sample_N`` samples, and ``encode_N`` reads a source. ``words``: as for ``decoder_graph``."""
    kind, _, size = entry.partition("_")
    if kind == ENCODE:
        return encoder_graph(
            config, length=int(size), paged=cache, **{k: v for k, v in words.items() if k != "cache"}
        )
    return decoder_graph(
        config,
        length=1,
        capacity=cache.capacity,
        batch=int(size),
        paged=cache,
        texts=min(int(size), results),
        sampling=kind == SAMPLE,
        **words,
    )


def cache_bytes_per_token(config: DecoderConfig, dtype: DType) -> int:
    """Return the bytes of one token in the cache of all layers, as the graph's states have them."""
    cache = PagedCache(2, 1, 1, sources=1)
    graph = decoder_graph(config, length=1, capacity=1, batch=1, dtype=dtype, paged=cache, texts=1)
    states = [s for s in graph.states if s.name.partition(".")[0] not in SOURCE]
    return sum((s.spec.size_bytes or 0) for s in states) // cache.rows
