"""Device drivers: the host (``cpu``), NVIDIA GPUs (``cuda``), a device that computes nothing (``null``), and devices driven from Python (``python``)."""

from __future__ import annotations

from .cpu import CpuBackend
from .cuda import CudaBackend
from .null import NullBackend
from .python import PythonBackend

__all__ = ["CpuBackend", "CudaBackend", "NullBackend", "PythonBackend"]
