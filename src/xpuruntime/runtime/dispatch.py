"""Grids of thread groups for the tasks of a kernel."""

from __future__ import annotations

from typing import Any

from ..program.program import KernelCall
from ..protocols import DispatchStrategy
from ..targets import TargetConfig

__all__ = ["LinearDispatch"]


class LinearDispatch(DispatchStrategy):
    """One thread per task, in groups of at most ``config.max_threadgroup_1d`` (a DispatchStrategy)."""

    def __init__(self, config: TargetConfig) -> None:
        self.config = config

    def compute_dispatch(
        self, call: KernelCall, pipeline: Any
    ) -> tuple[tuple[int, int, int], tuple[int, int, int]] | None:
        """Return (groups, threads per group); None for a call without tasks."""
        if call.tasks <= 0:
            return None
        threads = min(call.tasks, max(1, self.config.max_threadgroup_1d))
        return (-(-call.tasks // threads), 1, 1), (threads, 1, 1)
