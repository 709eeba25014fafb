"""CUDA streams and events with the methods of the host's (``host_queue``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from ... import _core
from ...errors import RunError
from ..memory.buffer import DeviceBuffer

if TYPE_CHECKING:
    from ..execution.executor import Executor

__all__ = ["CudaQueue", "CudaStreamEvent"]

_T = TypeVar("_T")
# Unused streams by device. They are reused and never destroyed, because buffers refer to a stream by its number.
_IDLE: dict[int, list[_core.CudaStream]] = {}


def _good(result: _T | _core.Status, problem: str) -> _T:
    if isinstance(result, _core.Status) and not result.ok:
        raise RunError("device cuda", problem, got=result.message, do=result.advice)
    return result  # type: ignore[return-value]


class CudaStreamEvent:
    """A CUDA event."""

    def __init__(self, device: _core.CudaBackend) -> None:
        self._event: _core.CudaEvent = _good(device.event(True), "cannot create an event")
        self._recorded = False

    def record(self, to: CudaQueue) -> None:
        """Record the event after all work queued on the stream so far."""
        _good(self._event.record(to.stream), "cannot record an event")
        self._recorded = True

    def synchronize(self) -> None:
        """Wait until the stream reaches the event."""
        if self._recorded:
            _good(self._event.synchronize(), "failed")

    @property
    def done(self) -> bool:
        """Return True once the stream has reached the event."""
        return not self._recorded or bool(_good(self._event.done(), "failed"))

    def since(self, start: CudaStreamEvent) -> float:
        """Return the milliseconds since another event, by the device's clock."""
        return float(_good(self._event.since(start._event), "cannot time events"))


class CudaQueue:
    """A CUDA stream. It returns to a pool when the object is deleted."""

    def __init__(self, device: _core.CudaBackend) -> None:
        self._device = device
        self._idle = _IDLE.setdefault(device.index, [])
        self.stream: _core.CudaStream = (
            self._idle.pop() if self._idle else _good(device.stream(), "cannot create a stream")
        )

    def __del__(self) -> None:
        if hasattr(self, "stream"):
            self._idle.append(self.stream)

    @property
    def handle(self) -> int:
        """Return ``cudaStream_t`` as a number."""
        return self.stream.handle

    def run(
        self,
        executor: Executor,
        inputs: Mapping[str, Any],
        weights: Any,
        out: Mapping[str, DeviceBuffer] | None,
    ) -> dict[str, DeviceBuffer]:
        """Queue a run."""
        return executor.run(inputs, weights=weights, out=out, stream=self.handle)

    def wait(self, mark: CudaStreamEvent) -> None:
        """Make later work on this stream wait for an event."""
        if mark._recorded:
            _good(mark._event.wait(self.stream), "cannot wait for an event")

    def synchronize(self) -> None:
        """Wait for all queued work."""
        _good(self.stream.synchronize(), "failed")
        _good(self._device.reported(), "failed")

    @property
    def done(self) -> bool:
        """Return True if all queued work is done."""
        return bool(_good(self.stream.done(), "failed"))
