"""States: values that a program keeps between runs, such as a key-value cache."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ... import _core
from ...errors import InputError
from ...program.program import CompiledProgram
from ..memory.buffer import DeviceBuffer

if TYPE_CHECKING:
    from ..backends.base import RuntimeBackend

__all__ = ["States"]


class States(Mapping[str, DeviceBuffer]):
    """Buffers that persist between runs. Pass them to another executor of the same program to share them (prefill and decode)."""

    def __init__(self, program: CompiledProgram, backend: Any) -> None:
        self._refs = program.states
        self._buffers = {s.name: DeviceBuffer.zeros(s.spec, backend) for s in program.states}
        self._started = False
        self._first: _core.WeightBindings | None = None
        self._lock = threading.RLock()

    def include(self, program: CompiledProgram, backend: Any) -> None:
        """Add the states that another program has and these lack, as zeros. The other states are shared."""
        with self._lock:
            added = [s for s in program.states if s.name not in self._buffers]
            self._refs = (*self._refs, *added)
            self._buffers |= {s.name: DeviceBuffer.zeros(s.spec, backend) for s in added}

    def __getitem__(self, name: str) -> DeviceBuffer:
        return self._buffers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._buffers)

    def __len__(self) -> int:
        return len(self._buffers)

    def reset(self, weights: Mapping[str, DeviceBuffer]) -> None:
        """Set each state to its initial value: its weight buffer ``init``, or zeros. Must not be called during a run."""
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
        """Call ``reset`` if the states have no values yet."""
        with self._lock:
            if not self._started:
                self.reset(weights)

    def take_turns(self, bindings: _core.WeightBindings) -> None:
        """Serialize runs over ``bindings`` with all other runs over these states."""
        with self._lock:
            self._first = self._first or bindings
            bindings.share_state_lock(self._first)

    def write(self, name: str, array: NDArray[Any]) -> None:
        """Set one state. Must not be called during a run. Raises KeyError, InputError."""
        buffer = self._buffers[name]
        staged = DeviceBuffer.from_numpy(array, buffer.backend, spec=buffer.spec)
        buffer.backend.upload(
            buffer.native_handle, staged.backend.download(staged.native_handle, staged.size_bytes)
        )

    def fit(self, program: CompiledProgram, who: str, backend: RuntimeBackend) -> None:
        """Raise InputError unless these states match those of ``program`` and are on its device: kernels do not check buffers. ``who``: subject of
        the error.
        """
        for ref in program.states:
            if ref.name in self and not backend.shares_memory(self[ref.name].backend):
                place = self[ref.name].backend.device
                do = f"Pass the states of an executor on {backend.device}."
                raise InputError(who, f"state {ref.name!r} must be on {backend.device}", got=place, do=do)
            actual, expected = self[ref.name].spec if ref.name in self else None, ref.spec
            if actual is None or (actual.shape, actual.dtype, actual.layout) != (
                expected.shape,
                expected.dtype,
                expected.layout,
            ):
                raise InputError(
                    who,
                    f"state {ref.name!r} must be {expected}",
                    got="no state of that name" if actual is None else actual,
                    do="Pass the states of an executor of this program.",
                )
