"""How a grid of thread groups covers the tasks of a kernel."""

from __future__ import annotations

from typing import Any

from ..program.program import KernelCall
from ..protocols import DispatchStrategy
from ..targets import TargetConfig

__all__ = ["LinearDispatch"]


class LinearDispatch(DispatchStrategy):
    """One thread a task, in groups of at most ``config.max_threadgroup_1d`` in a row (a DispatchStrategy)."""

    def __init__(self, config: TargetConfig) -> None:
        self.config = config

    def compute_dispatch(
        self, call: KernelCall, pipeline: Any
    ) -> tuple[tuple[int, int, int], tuple[int, int, int]] | None:
        """(groups, threads of a group); None when the call has no tasks."""
        if call.tasks <= 0:
            return None
        threads = min(call.tasks, max(1, self.config.max_threadgroup_1d))
        return (-(-call.tasks // threads), 1, 1), (threads, 1, 1)
