"""Facts about this machine's devices, and (as it grows) the executor that runs programs on them.

Importing this package loads no vendor library and reads no device; the functions do, when called.
"""

from __future__ import annotations

from .device import (
    Cache,
    CpuFacts,
    CudaDevice,
    CudaReport,
    LibraryStatus,
    Status,
    cpu,
    cuda,
    cuda_devices,
    libraries,
)

__all__ = [
    "Cache",
    "CpuFacts",
    "CudaDevice",
    "CudaReport",
    "LibraryStatus",
    "Status",
    "cpu",
    "cuda",
    "cuda_devices",
    "libraries",
]
