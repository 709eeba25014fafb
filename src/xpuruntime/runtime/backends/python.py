"""PythonBackend: a device driven from Python. A porter writes five methods; the core supplies executor, contexts, states and counters.

    class MyBackend(PythonBackend):
        kind = "npu-sim"
        def allocate(self, size_bytes): ...              # a handle: any object
        def upload(self, handle, data): ...
        def download(self, handle, size_bytes): ...
        def prepare(self, call, specs, binary): ...      # KernelCall -> anything, once
        def submit(self, calls, memory): ...             # once per run, with every kernel of it

No method is entered once per kernel while running.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ... import _core
from ...program.program import Binary, CompiledProgram, ExecutionPlan, KernelCall
from ...protocols import DispatchStrategy
from ...types import TensorSpec
from .base import RuntimeBackend

__all__ = ["MemoryRef", "PreparedCall", "PythonBackend"]


@dataclass(frozen=True, slots=True)
class MemoryRef:
    """The location of an argument: ``memory[slot]`` of ``submit``, at ``offset`` bytes."""

    slot: int
    offset: int


@dataclass(frozen=True, slots=True)
class PreparedCall:
    """One dispatch of a recording: the result of ``prepare``, the locations of its arguments (inputs, then outputs), and the grid from the
    backend's strategy (None without a strategy or without tasks).
    """

    call: KernelCall
    kernel: Any
    args: tuple[MemoryRef, ...]
    dispatch: tuple[tuple[int, int, int], tuple[int, int, int]] | None = None


class PythonBackend(RuntimeBackend):
    """Base class of drivers in Python. ``strategy`` computes grids, once per call."""

    strategy: DispatchStrategy | None = None

    @abstractmethod
    def prepare(self, call: KernelCall, specs: tuple[TensorSpec, ...], binary: Binary | None) -> Any:
        """Look up or compile what one kernel call needs. Called once per call when an executor is created.

        specs: those of its arguments (inputs, then outputs). ``binary``: what the target's ``assemble`` made, None for a library's call.
        """

    @abstractmethod
    def submit(self, calls: Any, memory: Sequence[Any]) -> None:
        """Run a recording over memory by slot (handles of ``allocate``; None for a slot without bytes)."""

    def record(self, calls: Sequence[PreparedCall]) -> Any:
        """Return calls in the form that ``submit`` takes; by default the calls themselves."""
        return tuple(calls)

    def copy(self, to: Any, to_offset: int, source: Any, offset: int, size_bytes: int) -> None:
        """Copy within the device, for outputs that are an input or a state passed through."""
        data = self.download(to, to_offset + size_bytes).copy()
        data[to_offset:] = self.download(source, offset + size_bytes)[offset:]
        self.upload(to, data)

    def address(self, handle: Any) -> int:
        return id(handle)

    def core(self, program: CompiledProgram, plan: ExecutionPlan, threads: int) -> _core.Backend:
        return _core.python_backend(_Driver(self, program, plan))


class _Driver:
    """The interface for the core's trampoline: positions become kernel calls."""

    def __init__(self, backend: PythonBackend, program: CompiledProgram, plan: ExecutionPlan) -> None:
        self._backend, self._plan = backend, plan
        self._specs = {b.name: b.spec for b in plan.buffers}
        self._binaries = program.binaries
        self.allocate, self.copy = backend.allocate, backend.copy
        self.submit, self.synchronize = backend.submit, backend.synchronize

    def prepare(self, position: int) -> tuple[KernelCall, Any]:
        call = self._plan.calls[position]
        specs = tuple(self._specs[n] for n in (*call.inputs, *call.outputs))
        index = self._plan.binary_of(call)
        return call, self._backend.prepare(call, specs, self._binaries[index] if index >= 0 else None)

    def record(self, calls: list[tuple[tuple[KernelCall, Any], tuple[tuple[int, int], ...]]]) -> Any:
        strategy = self._backend.strategy
        prepared = []
        for (call, kernel), args in calls:
            grid = None if strategy is None else strategy.compute_dispatch(call, kernel)
            prepared.append(PreparedCall(call, kernel, tuple(MemoryRef(*a) for a in args), grid))
        return self._backend.record(prepared)
