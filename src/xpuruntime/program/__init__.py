"""Plans and compiled programs, as data. This package imports neither the IR nor the policies."""

from __future__ import annotations

from .plan import Plan, PlanNode, Region, Transfer
from .program import BufferAllocation, CompiledProgram, ExecutionPlan, KernelCall, WeightTransformRecipe

__all__ = [
    "BufferAllocation",
    "CompiledProgram",
    "ExecutionPlan",
    "KernelCall",
    "Plan",
    "PlanNode",
    "Region",
    "Transfer",
    "WeightTransformRecipe",
]
