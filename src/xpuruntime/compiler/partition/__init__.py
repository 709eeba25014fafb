"""Partitioning of a graph into regions with one engine each. Public names load on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...lazy import lazy_names

if TYPE_CHECKING:
    from .partitioner import partition
    from .plan import PartitionPlan
    from .support import is_op_supported

__all__ = ["PartitionPlan", "is_op_supported", "partition"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "PartitionPlan": "xpuruntime.compiler.partition.plan",
        "is_op_supported": "xpuruntime.compiler.partition.support",
        "partition": "xpuruntime.compiler.partition.partitioner",
    },
)
