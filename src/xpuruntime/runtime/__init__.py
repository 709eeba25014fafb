"""Devices, buffers, weights, and the executor that runs programs on them. Reads programs without the compiler's world.

Importing this package loads no vendor library and reads no device; the functions do, when called.
"""

from __future__ import annotations

from .backends import CpuBackend, CudaBackend, NullBackend, PythonBackend
from .buffer import DeviceBuffer, NPUBuffer
from .device import (
    Cache,
    CpuFacts,
    CudaDevice,
    CudaReport,
    Device,
    LibraryStatus,
    Status,
    cpu,
    cuda,
    cuda_devices,
    libraries,
)
from .dispatch import LinearDispatch
from .executor import Executor
from .memory import MemoryPool, MemoryStatistics
from .states import States
from .stream import Event, Stream
from .weights import Weights, load_weights

__all__ = [
    "Cache",
    "CpuBackend",
    "CpuFacts",
    "CudaBackend",
    "CudaDevice",
    "CudaReport",
    "Device",
    "DeviceBuffer",
    "Event",
    "Executor",
    "LibraryStatus",
    "LinearDispatch",
    "MemoryPool",
    "MemoryStatistics",
    "NPUBuffer",
    "NullBackend",
    "PythonBackend",
    "States",
    "Status",
    "Stream",
    "Weights",
    "cpu",
    "cuda",
    "cuda_devices",
    "libraries",
    "load_weights",
]
