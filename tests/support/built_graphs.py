"""Graphs that a test builds for given arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from xpuruntime.ir import Graph, GraphBuilder
from xpuruntime.protocols import Array
from xpuruntime.types import DType

__all__ = ["Feeds", "graph_of"]

Feeds = dict[str, Array]


def graph_of(build: Callable[..., Iterable[Any]], feeds: Mapping[str, Array]) -> Graph:
    """Return the graph that ``build(builder, **inputs)`` writes for inputs of these shapes and dtypes. Its results are outputs ``y0``, ``y1`` ..."""
    b = GraphBuilder("g")
    values = {n: b.input(n, f"{DType.of(a.dtype).value}{list(a.shape)}") for n, a in feeds.items()}
    for i, value in enumerate(build(b, **values)):
        b.output(f"y{i}", value)
    return b.build()
