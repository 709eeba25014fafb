"""MemoryPool: the allocator of a device's buffers, with its statistics and the release of cached blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from ...targets import DeviceId
from ...types import DType, TensorSpec
from .buffer import DeviceBuffer, backend_of

__all__ = ["MemoryPool", "MemoryStatistics", "empty_pinned"]

_MAX_BYTES = 1 << 62


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
        """Allocate a buffer with undefined content; it returns to the pool when it is deleted. Raises InputError for an invalid shape or type,
        MemoryError (OutOfMemory on a GPU).
        """
        return DeviceBuffer.empty(TensorSpec(*_array("MemoryPool.allocate", shape, dtype)), self.backend)

    def __repr__(self) -> str:
        statistics = self.statistics()
        return f"MemoryPool({str(self.device)!r}, {statistics.live_bytes} bytes in use, {statistics.cached_bytes} cached)"


def empty_pinned(
    shape: int | Sequence[int], dtype: Any = DType.FLOAT32, device: Any = "cuda:0"
) -> NDArray[Any]:
    """Return an array with undefined content in page-locked host memory of a GPU.

    Runs copy such an array to the GPU, and outputs into it, in one step at the full speed of the bus. Other arrays are first copied to
    page-locked memory. Do not write to an input before its run is done, which it is when the run returns. The memory returns to the pool
    when the last array over it is deleted. Page-locked memory cannot be swapped, so allocate no more of it than needed.
    Raises InputError for an invalid shape or type, OutOfMemory, DeviceUnavailable for a device without page-locked memory.
    """
    who = "empty_pinned"
    dims, kind = _array(who, shape, dtype)
    if kind is DType.STRING or kind.bits % 8:
        do = "Use int8 or a wider type of numbers."
        raise InputError(who, "has no arrays of text or of types below a byte", got=kind.value, do=do)
    size = math.prod(dims) * (kind.bits // 8)
    block = backend_of(device).allocate_pinned(max(size, 1))
    return block[:size].view(kind.numpy).reshape(dims)


def _array(who: str, shape: object, dtype: object) -> tuple[tuple[int, ...], DType]:
    """Return shape and type of an array that a user asks for. Raises InputError."""
    dims = shape if isinstance(shape, Sequence) and not isinstance(shape, str | bytes) else (shape,)
    if any(isinstance(d, bool) or not isinstance(d, int | np.integer) or d < 0 for d in dims):
        do = "Give (1, 3, 224, 224)."
        raise InputError(who, "needs a shape of whole numbers", got=repr(shape)[:80], do=do)
    try:
        sizes, kind = tuple(map(int, dims)), DType.of(dtype)
    except ValueError as error:
        do = "Give a name such as 'float32', or a NumPy dtype."
        raise InputError(who, "needs a type of elements", got=repr(dtype)[:80], do=do) from error
    size = math.prod(sizes) * kind.bits // 8
    if size > _MAX_BYTES:
        problem = "needs more bytes than a process can have"
        raise InputError(who, problem, got=repr(shape)[:80], do="Give a smaller shape.")
    return sizes, kind
