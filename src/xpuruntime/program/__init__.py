"""Plans and programs: what will run, as data. Knows neither the graph nor the policies."""

from __future__ import annotations

from .plan import Plan, PlanNode, Region, Transfer
from .program import CompiledProgram

__all__ = ["CompiledProgram", "Plan", "PlanNode", "Region", "Transfer"]
