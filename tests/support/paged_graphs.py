"""Graphs of one ``paged_attention`` with operands whose unused table entries may be anything."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from xpuruntime.ir import Graph, GraphBuilder

__all__ = ["graph_of", "paged"]


def paged(case: Any, dtype: str = "float32", seed: int = 0) -> tuple[Graph, dict[str, Any]]:
    """``places`` of the attributes: biases of a head."""
    batch, heads, kv, length, d, dv, blocks, listed, size, attrs = case
    rng = np.random.default_rng(seed)
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    positions = rng.integers(0, listed * size, (batch, length))
    positions[0, 0] = listed * size - 1
    if batch > 2:
        positions[2, 0] = -1
    tables = rng.integers(0, blocks, (batch, listed)).astype(np.int32)
    for b in range(batch):  # entries beyond the last position may be anything
        tables[b, positions[b].max() // size + 1 :] = -7
    feeds = {
        "q": rng.standard_normal((batch, heads, length, d)).astype(kind),
        "keys": rng.standard_normal((blocks * size, kv, d)).astype(kind),
        "values": rng.standard_normal((blocks * size, kv, dv)).astype(kind),
        "tables": tables,
        "positions": positions.astype(np.int64),
    }
    if places := attrs.get("places"):
        feeds["biases"] = rng.standard_normal((heads, places)).astype(np.float32)
    return graph_of(feeds, size, attrs), feeds


def graph_of(feeds: dict[str, Any], block_size: int, attrs: dict[str, Any]) -> Graph:
    b, attrs = GraphBuilder("paged"), {k: v for k, v in attrs.items() if k != "places"}
    names = [b.input(n, f"{a.dtype}[{', '.join(map(str, a.shape))}]") for n, a in feeds.items()]
    b.output("y", b.paged_attention(*names, block_size=block_size, **attrs))
    return b.build()
