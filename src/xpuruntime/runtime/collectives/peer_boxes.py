"""PeerBoxes: memory through which the GPUs of one process exchange small tensors inside of kernels (``templates/cuda/peer_reduce.cuh``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...protocols import Array
from ...types import DType, TensorSpec
from ..backends.base import RuntimeBackend
from ..backends.cuda import CudaBackend
from ..memory.buffer import DeviceBuffer, backend_of

__all__ = ["PeerBoxes", "reach_each_other"]

_HEADER = 256
"""Bytes before the words: whether the group has ended, and the number of the last exchange, once for each block of a launch."""


def reach_each_other(devices: Sequence[Any]) -> bool:
    """Return True for several GPUs of which each writes to the memory of every other. Raises DeviceUnavailable, RunError."""
    backends = [backend_of(d) for d in devices]
    return len(backends) > 1 and all(
        isinstance(a, CudaBackend) and isinstance(b, CudaBackend) and a.reaches_peer(b)
        for a in backends
        for b in backends
    )


class PeerBoxes:
    """A box on each GPU of a group. largest: bytes of the largest tensor that is exchanged."""

    def __init__(self, backends: Sequence[RuntimeBackend], largest: int) -> None:
        words = (largest + 3) // 4
        size = _HEADER + 2 * len(backends) * words * 8
        self._boxes = [DeviceBuffer.zeros(TensorSpec((size,), DType.UINT8), b) for b in backends]

    def table(self, rank: int) -> Array:
        """Return what a kernel of a rank reads: the rank, then the address of each box."""
        return np.array([rank, *(box.address for box in self._boxes)], np.int64)

    def end(self) -> None:
        """Let kernels that wait for another rank return. Their results are undefined."""
        for box in self._boxes:
            box.backend.upload(box.native_handle, np.array([1], np.uint32).view(np.uint8))
