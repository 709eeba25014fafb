"""MemoryPool: the allocator of a device's buffers, with its statistics and the release of cached blocks."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from ...targets import DeviceId
from ...types import DType, TensorSpec
from .buffer import DeviceBuffer, backend_of

__all__ = ["MemoryPool", "MemoryStatistics", "empty_pinned"]


@dataclass(frozen=True, slots=True)
class MemoryStatistics:
    """Sizes of a pool in bytes, and counts of its allocations.

    live_bytes:   bytes in use. peak_bytes: maximum of ``live_bytes`` so far.
    cached_bytes: free bytes, kept for later allocations.
    allocations:  number of blocks allocated from the system. reuses: number of blocks taken from the cache.
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
    """The memory pool of a device, which every buffer, arena and weight of this process is allocated from. It is thread-safe.

    device: a Device, its name, or a backend. A process has one pool per device, whichever object it is used through.
    Raises DeviceUnavailable for a device without a pool.
    """

    def __init__(self, device: Any = "cpu") -> None:
        self.backend = backend_of(device)
        self.statistics()

    @property
    def device(self) -> DeviceId:
        """Return the pool's device."""
        return self.backend.device

    def statistics(self) -> MemoryStatistics:
        """Return the current sizes and the counts since the process began."""
        return MemoryStatistics(**self.backend.memory())

    def pinned_statistics(self) -> MemoryStatistics:
        """Return the same of page-locked host memory: of ``empty_pinned``, and of copies. Raises DeviceUnavailable for a device without it."""
        return MemoryStatistics(**self.backend.pinned_memory())

    def trim(self) -> int:
        """Release cached blocks to the system. Return the number of bytes."""
        return self.backend.trim()

    def allocate(self, shape: tuple[int, ...], dtype: Any = DType.FLOAT32) -> DeviceBuffer:
        """Allocate a buffer with undefined content; it returns to the pool when it is deleted. Raises MemoryError (OutOfMemory on a GPU)."""
        return DeviceBuffer.empty(TensorSpec(tuple(shape), DType.of(dtype)), self.backend)

    def __repr__(self) -> str:
        statistics = self.statistics()
        return f"MemoryPool({str(self.device)!r}, {statistics.live_bytes} bytes in use, {statistics.cached_bytes} cached)"


def empty_pinned(
    shape: int | tuple[int, ...], dtype: Any = DType.FLOAT32, device: Any = "cuda:0"
) -> NDArray[Any]:
    """Return an array with undefined content in page-locked host memory of a GPU.

    Runs copy such an array to the GPU, and outputs into it, in one step at the full speed of the bus. Other arrays are first copied to
    page-locked memory. Do not write to an input before its run is done, which it is when the run returns. The memory returns to the pool
    when the last array over it is deleted. Page-locked memory cannot be swapped, so allocate no more of it than needed.
    Raises InputError for an invalid shape or a type below a byte, OutOfMemory, DeviceUnavailable for a device without page-locked memory.
    """
    dims = (shape,) if isinstance(shape, int) else tuple(shape)
    kind = DType.of(dtype)
    if any(not isinstance(d, int) or d < 0 for d in dims):
        raise InputError(
            "empty_pinned", "needs a shape of whole numbers", got=repr(shape), do="Give (1, 3, 224, 224)."
        )
    if kind.bits % 8:
        do = "Use int8 or a wider type."
        raise InputError("empty_pinned", "has no arrays of types below a byte", got=kind.value, do=do)
    size = int(np.prod(dims, dtype=np.int64)) * (kind.bits // 8)
    block = backend_of(device).allocate_pinned(max(size, 1))
    return block[:size].view(kind.numpy).reshape(dims)
