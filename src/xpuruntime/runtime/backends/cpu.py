"""The host processor: object code on a pool of threads."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ... import _core
from ...program.program import Binary, CompiledProgram, ExecutionPlan
from ..device import cpu
from ..streams.host_queue import HostEvent, HostQueue, wait_for
from .base import RuntimeBackend

__all__ = ["CpuBackend", "HostBackend"]


class HostBackend(RuntimeBackend):
    """Memory of the host: a handle is a byte array over a 64-byte aligned block of the core's pool."""

    core_is_host = True

    def allocate(self, size_bytes: int) -> NDArray[np.uint8]:
        return _core.host_block(size_bytes)

    def upload(self, handle: NDArray[np.uint8], data: NDArray[np.uint8]) -> None:
        handle[: data.size] = data

    def download(self, handle: NDArray[np.uint8], size_bytes: int) -> NDArray[np.uint8]:
        return handle[:size_bytes]

    def memory(self) -> dict[str, int]:
        statistics = _core.host_memory()
        names = ("live_bytes", "peak_bytes", "cached_bytes", "allocations", "reuses")
        return {n: int(getattr(statistics, n)) for n in names}

    def trim(self) -> int:
        return _core.trim_host_memory()

    def new_stream(self) -> HostQueue:
        return HostQueue()

    def new_event(self) -> HostEvent:
        return HostEvent()

    def wait(self, stream: int) -> None:
        wait_for(stream)

    def address(self, handle: NDArray[np.uint8]) -> int:
        return _core.address(handle)


class CpuBackend(HostBackend):
    """Runs plans whose target is ``cpu:...``."""

    kind = "cpu"

    def arena_pool(self) -> _core.ArenaPool:
        return _core.ArenaPool(_core.cpu_backend(1))

    def core(self, program: CompiledProgram, plan: ExecutionPlan, threads: int) -> _core.Backend:
        return _core.cpu_backend(threads)

    def foreign(self, format: str) -> str:  # noqa: A002
        machine = cpu().architecture
        architecture = format.removeprefix("elf-").replace("-", "_")
        is_other = format.startswith("elf-") and architecture != machine
        return f"it is code for {architecture}, this machine is {machine}" if is_other else ""

    def load_code(self, binary: Binary) -> _core.Module | _core.Status:
        return _core.load_module(binary.data)
