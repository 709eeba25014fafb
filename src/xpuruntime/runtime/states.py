"""States: what a program keeps from run to run, such as a cache of keys and values."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _core
from ..errors import InputError
from ..program.program import CompiledProgram
from .buffer import DeviceBuffer

__all__ = ["States"]


class States(Mapping[str, DeviceBuffer]):
    """Buffers that live from run to run. Hand them to a second executor of the same program to share them (prefill and decode)."""

    def __init__(self, program: CompiledProgram, backend: Any) -> None:
        self._refs = program.states
        self._buffers = {s.name: DeviceBuffer.zeros(s.spec, backend) for s in program.states}
        self._started = False
        self._first: _core.WeightBindings | None = None
        self._lock = threading.RLock()

    def __getitem__(self, name: str) -> DeviceBuffer:
        return self._buffers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._buffers)

    def __len__(self) -> int:
        return len(self._buffers)

    def reset(self, weights: Mapping[str, DeviceBuffer]) -> None:
        """Back to what the program starts from: each state's ``init`` among the weight buffers, or zeros. Not while a run is in flight."""
        with self._lock:
            for ref in self._refs:
                buffer = self._buffers[ref.name]
                data = np.zeros(buffer.size_bytes, np.uint8)
                if ref.init:
                    start = weights[ref.init]
                    data = start.backend.download(start.native_handle, buffer.size_bytes)
                buffer.backend.upload(buffer.native_handle, data)
            self._started = True

    def start(self, weights: Mapping[str, DeviceBuffer]) -> None:
        """``reset``, unless the states hold something already."""
        with self._lock:
            if not self._started:
                self.reset(weights)

    def take_turns(self, bindings: _core.WeightBindings) -> None:
        """Runs over ``bindings`` wait for all others over these states."""
        with self._lock:
            self._first = self._first or bindings
            bindings.share_state_lock(self._first)

    def write(self, name: str, array: NDArray[Any]) -> None:
        """Set one state. Not while a run is in flight. Raises KeyError, InputError."""
        buffer = self._buffers[name]
        made = DeviceBuffer.from_numpy(array, buffer.backend, spec=buffer.spec)
        buffer.backend.upload(
            buffer.native_handle, made.backend.download(made.native_handle, made.size_bytes)
        )

    def fit(self, program: CompiledProgram, who: str) -> None:
        """Hold these to what ``program`` keeps: kernels trust the sizes of what they are handed. Raises InputError, which ``who`` raises."""
        for ref in program.states:
            got, want = self[ref.name].spec if ref.name in self else None, ref.spec
            if got is None or (got.shape, got.dtype, got.layout) != (want.shape, want.dtype, want.layout):
                raise InputError(
                    who,
                    f"state {ref.name!r} must be {want}",
                    got="none of that name" if got is None else got,
                    do="Hand in states of an executor of this program.",
                )
