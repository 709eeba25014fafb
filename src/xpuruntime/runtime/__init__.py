"""Devices, buffers, weights, and the executor that runs programs on them. Reads programs without the compiler's world.

Importing this package loads no vendor library and reads no device; the functions do, when called. Profiling is offered here, too
(``profile``, ``Trace``, ``Receipt``); it is defined in ``profiler`` and loads on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_names
from ..protocols import Backend, DispatchStrategy
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

if TYPE_CHECKING:
    from ..profiler.receipt import Receipt
    from ..profiler.trace import Profiler, Trace, profile

__all__ = [
    "Backend",
    "Cache",
    "CpuBackend",
    "CpuFacts",
    "CudaBackend",
    "CudaDevice",
    "CudaReport",
    "Device",
    "DeviceBuffer",
    "DispatchStrategy",
    "Event",
    "Executor",
    "LibraryStatus",
    "LinearDispatch",
    "MemoryPool",
    "MemoryStatistics",
    "NPUBuffer",
    "NullBackend",
    "Profiler",
    "PythonBackend",
    "Receipt",
    "States",
    "Status",
    "Stream",
    "Trace",
    "Weights",
    "cpu",
    "cuda",
    "cuda_devices",
    "libraries",
    "load_weights",
    "profile",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Profiler": "xpuruntime.profiler.trace",
        "Receipt": "xpuruntime.profiler.receipt",
        "Trace": "xpuruntime.profiler.trace",
        "profile": "xpuruntime.profiler.trace",
    },
)
