"""Devices, buffers, weights, and the executor that runs programs on them. Running a program needs no compiler.

Most names are imported on first use. Importing this package loads no vendor library and queries no device; the functions do, when called.
Profiling (``profile``, ``Trace``, ``Receipt``) is defined in ``profiler`` and exported here, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_names
from ..protocols import Backend, DispatchStrategy

if TYPE_CHECKING:
    from ..profiler.receipt import Receipt
    from ..profiler.trace import Profiler, Trace, profile
    from .backends import CpuBackend, CudaBackend, NullBackend, PythonBackend
    from .collectives.communicator import Communicator
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
    from .execution.executor import Executor
    from .execution.states import States
    from .memory.buffer import DeviceBuffer, NPUBuffer
    from .memory.pool import MemoryPool, MemoryStatistics, empty_pinned
    from .streams.stream import Event, Stream
    from .weights.load import Weights, load_weights

__all__ = [
    "Backend",
    "Cache",
    "Communicator",
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
    "empty_pinned",
    "libraries",
    "load_weights",
    "profile",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Cache": "xpuruntime.runtime.device",
        "Communicator": "xpuruntime.runtime.collectives.communicator",
        "CpuBackend": "xpuruntime.runtime.backends",
        "CpuFacts": "xpuruntime.runtime.device",
        "CudaBackend": "xpuruntime.runtime.backends",
        "CudaDevice": "xpuruntime.runtime.device",
        "CudaReport": "xpuruntime.runtime.device",
        "Device": "xpuruntime.runtime.device",
        "DeviceBuffer": "xpuruntime.runtime.memory.buffer",
        "Event": "xpuruntime.runtime.streams.stream",
        "Executor": "xpuruntime.runtime.execution.executor",
        "LibraryStatus": "xpuruntime.runtime.device",
        "LinearDispatch": "xpuruntime.runtime.dispatch",
        "MemoryPool": "xpuruntime.runtime.memory.pool",
        "MemoryStatistics": "xpuruntime.runtime.memory.pool",
        "NPUBuffer": "xpuruntime.runtime.memory.buffer",
        "NullBackend": "xpuruntime.runtime.backends",
        "Profiler": "xpuruntime.profiler.trace",
        "PythonBackend": "xpuruntime.runtime.backends",
        "Receipt": "xpuruntime.profiler.receipt",
        "States": "xpuruntime.runtime.execution.states",
        "Status": "xpuruntime.runtime.device",
        "Stream": "xpuruntime.runtime.streams.stream",
        "Trace": "xpuruntime.profiler.trace",
        "Weights": "xpuruntime.runtime.weights.load",
        "cpu": "xpuruntime.runtime.device",
        "cuda": "xpuruntime.runtime.device",
        "cuda_devices": "xpuruntime.runtime.device",
        "empty_pinned": "xpuruntime.runtime.memory.pool",
        "libraries": "xpuruntime.runtime.device",
        "load_weights": "xpuruntime.runtime.weights.load",
        "profile": "xpuruntime.profiler.trace",
    },
)
