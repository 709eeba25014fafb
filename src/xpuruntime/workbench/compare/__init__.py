"""Comparisons of engines on one model, and of two models. Public names load on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...lazy import lazy_names

if TYPE_CHECKING:
    from .engines import compare_engines
    from .models import compare_models
    from .nodes import NodeComparison, NodesReport, compare_engine_nodes, compare_nodes
    from .report import CompareReport, PairComparison

__all__ = [
    "CompareReport",
    "NodeComparison",
    "NodesReport",
    "PairComparison",
    "compare_engine_nodes",
    "compare_engines",
    "compare_models",
    "compare_nodes",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "CompareReport": "xpuruntime.workbench.compare.report",
        "NodeComparison": "xpuruntime.workbench.compare.nodes",
        "NodesReport": "xpuruntime.workbench.compare.nodes",
        "PairComparison": "xpuruntime.workbench.compare.report",
        "compare_engine_nodes": "xpuruntime.workbench.compare.nodes",
        "compare_engines": "xpuruntime.workbench.compare.engines",
        "compare_models": "xpuruntime.workbench.compare.models",
        "compare_nodes": "xpuruntime.workbench.compare.nodes",
    },
)
