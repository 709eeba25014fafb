"""MemoryPool: the allocator behind a device's buffers: its statistics, and releasing cached blocks."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ...targets import DeviceId
from ...types import DType, TensorSpec
from .buffer import DeviceBuffer, backend_of

__all__ = ["MemoryPool", "MemoryStatistics"]


@dataclass(frozen=True, slots=True)
class MemoryStatistics:
    """Bytes that a pool holds, and counts of its allocations.

    live_bytes: in use now; ``peak_bytes``: most that ever was; ``cached_bytes``: free, kept for the next caller.
    allocations: blocks asked of the system; ``reuses``: blocks that came from the cache instead.
    """

    live_bytes: int
    peak_bytes: int
    cached_bytes: int
    allocations: int
    reuses: int

    def to_json(self) -> dict[str, int]:
        """Return plain data."""
        return asdict(self)


class MemoryPool:
    """The pool of a device. It holds every buffer, arena and weight of this process. Safe from several threads.

    device: a Device, its name, or a backend. Pools are the process's own: two objects for one device are one pool.
    Raises DeviceUnavailable for a device that keeps none.
    """

    def __init__(self, device: Any = "cpu") -> None:
        self.backend = backend_of(device)
        self.statistics()

    @property
    def device(self) -> DeviceId:
        """Return the device whose memory it is."""
        return self.backend.device

    def statistics(self) -> MemoryStatistics:
        """Return the current sizes and the counts since the process began."""
        return MemoryStatistics(**self.backend.memory())

    def trim(self) -> int:
        """Release cached blocks to the system. Return the number of bytes."""
        return self.backend.trim()

    def allocate(self, shape: tuple[int, ...], dtype: Any = DType.FLOAT32) -> DeviceBuffer:
        """Allocate a buffer with undefined content; it returns to the pool when it is deleted. Raises MemoryError (OutOfMemory on a GPU)."""
        return DeviceBuffer.empty(TensorSpec(tuple(shape), DType.of(dtype)), self.backend)

    def __repr__(self) -> str:
        statistics = self.statistics()
        return f"MemoryPool({str(self.device)!r}, {statistics.live_bytes} bytes in use, {statistics.cached_bytes} kept)"
