"""Benchmarks of engines: runs, statistics, report and plot. Public names load on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...lazy import lazy_names

if TYPE_CHECKING:
    from .engines import bench
    from .report import BenchReport, RankedEngine

__all__ = ["BenchReport", "RankedEngine", "bench"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "BenchReport": "xpuruntime.workbench.bench.report",
        "RankedEngine": "xpuruntime.workbench.bench.report",
        "bench": "xpuruntime.workbench.bench.engines",
    },
)
