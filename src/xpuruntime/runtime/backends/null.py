"""A device that computes nothing and remembers every dispatch."""

from __future__ import annotations

from ... import _core
from ...program.program import CompiledProgram, ExecutionPlan
from .cpu import HostBackend

__all__ = ["NullBackend"]


class NullBackend(HostBackend):
    """Takes plans of any target, needs no binary. Outputs hold whatever their memory held.

    ``dispatches`` lists what every executor made by it was asked to run, in order: kernel, symbol, tasks, args (how many), params.
    """

    kind = ""

    def __init__(self) -> None:
        self._core = _core.null_backend()

    def core(self, program: CompiledProgram, plan: ExecutionPlan, threads: int) -> _core.Backend:
        return self._core

    @property
    def dispatches(self) -> list[_core.Dispatch]:
        """Kernel calls so far."""
        return self._core.dispatches()

    def forget(self) -> None:
        """Start the list anew."""
        self._core.forget()
