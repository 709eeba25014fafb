"""MemoryPool: the memory that buffers of a device come from: how much is in use, what is kept for the next caller, and giving it back."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ..targets import DeviceId
from ..types import DType, TensorSpec
from .buffer import DeviceBuffer, backend_of

__all__ = ["MemoryPool", "MemoryStatistics"]


@dataclass(frozen=True, slots=True)
class MemoryStatistics:
    """What a pool holds, in bytes, and what it has done.

    live_bytes: in use now; ``peak_bytes``: most that ever was; ``cached_bytes``: free, kept for the next caller.
    allocations: blocks asked of the system; ``reuses``: blocks that came from the cache instead.
    """

    live_bytes: int
    peak_bytes: int
    cached_bytes: int
    allocations: int
    reuses: int

    def to_json(self) -> dict[str, int]:
        """Plain data."""
        return asdict(self)


class MemoryPool:
    """The pool of a device: every buffer, arena and weight of this process lies in it. Safe from several threads.

    device: a Device, its name, or a backend. Pools are the process's own: two objects for one device are one pool.
    Raises DeviceUnavailable for a device that keeps none.
    """

    def __init__(self, device: Any = "cpu") -> None:
        self.backend = backend_of(device)
        self.statistics()

    @property
    def device(self) -> DeviceId:
        """Whose memory it is."""
        return self.backend.device

    def statistics(self) -> MemoryStatistics:
        """What it holds now, and since the process began."""
        return MemoryStatistics(**self.backend.memory())

    def trim(self) -> int:
        """Give cached blocks back to the system; returns how many bytes."""
        return self.backend.trim()

    def allocate(self, shape: tuple[int, ...], dtype: Any = DType.FLOAT32) -> DeviceBuffer:
        """A buffer of arbitrary content; it goes back to the pool when nobody holds it. Raises MemoryError (OutOfMemory on a GPU)."""
        return DeviceBuffer.empty(TensorSpec(tuple(shape), DType.of(dtype)), self.backend)

    def __repr__(self) -> str:
        found = self.statistics()
        return f"MemoryPool({str(self.device)!r}, {found.live_bytes} bytes in use, {found.cached_bytes} kept)"
