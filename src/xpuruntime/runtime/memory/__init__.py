"""Memory of devices: buffers, layouts, the pool behind them, and arrays that the core reads in place. Public names load on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...lazy import lazy_names

if TYPE_CHECKING:
    from .pool import MemoryPool, MemoryStatistics, empty_pinned

__all__ = ["MemoryPool", "MemoryStatistics", "empty_pinned"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "MemoryPool": "xpuruntime.runtime.memory.pool",
        "MemoryStatistics": "xpuruntime.runtime.memory.pool",
        "empty_pinned": "xpuruntime.runtime.memory.pool",
    },
)
