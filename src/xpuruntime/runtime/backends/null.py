"""NullBackend: a device that computes nothing and records every dispatch."""

from __future__ import annotations

from ... import _core
from ...program.program import CompiledProgram, ExecutionPlan
from .cpu import HostBackend

__all__ = ["NullBackend"]


class NullBackend(HostBackend):
    """A backend that accepts plans of any target and needs no binary. The content of outputs is undefined.

    ``dispatches`` lists the kernel calls of all its executors in order: kernel, symbol, tasks, args (their number), params.
    """

    kind = ""

    def __init__(self) -> None:
        self._core = _core.null_backend()

    def core(self, program: CompiledProgram, plan: ExecutionPlan, threads: int) -> _core.Backend:
        return self._core

    @property
    def dispatches(self) -> list[_core.Dispatch]:
        """Return the kernel calls so far."""
        return self._core.dispatches()

    def forget(self) -> None:
        """Clear the record."""
        self._core.forget()
