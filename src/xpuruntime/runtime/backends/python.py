"""PythonBackend: a device driven from Python. A porter writes five methods; the core supplies executor, contexts, states and counters.

    class MyBackend(PythonBackend):
        kind = "npu-sim"
        def allocate(self, size_bytes): ...              # returns a handle: any object
        def upload(self, handle, data): ...
        def download(self, handle, size_bytes): ...
        def prepare(self, call, specs, binary): ...      # once per KernelCall; returns any object
        def submit(self, calls, memory): ...             # once per run, with all its kernels

A run calls ``submit`` once, not once per kernel.
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
    """One dispatch of a recording.

    kernel:   the result of ``prepare``.
    args:     locations of the arguments: inputs, then outputs.
    dispatch: the grid that the backend's strategy returns; None without a strategy or without tasks.
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
        """Look up or compile the kernel of one call. The executor's constructor calls this once per kernel call.

        specs:  specs of the call's arguments: inputs, then outputs.
        binary: the result of the target's ``assemble``; None for a library's call.
        """

    @abstractmethod
    def submit(self, calls: Any, memory: Sequence[Any]) -> None:
        """Run a recording. ``memory`` holds the handle of each slot (from ``allocate``); None for a slot without bytes."""

    def record(self, calls: Sequence[PreparedCall]) -> Any:
        """Return calls in the form that ``submit`` takes; by default the calls themselves."""
        return tuple(calls)

    def copy(self, to: Any, to_offset: int, source: Any, offset: int, size_bytes: int) -> None:
        """Copy within the device, for outputs that alias an input or a state."""
        data = self.download(to, to_offset + size_bytes).copy()
        data[to_offset:] = self.download(source, offset + size_bytes)[offset:]
        self.upload(to, data)

    def address(self, handle: Any) -> int:
        return id(handle)

    def core(self, program: CompiledProgram, plan: ExecutionPlan, threads: int) -> _core.Backend:
        return _core.python_backend(_Driver(self, program, plan))


class _Driver:
    """The object that the core calls. It translates the core's call positions into kernel calls."""

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
