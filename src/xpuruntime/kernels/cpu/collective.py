"""Collectives between threads of the host (``cpp/src/runtime/collectives.cpp``)."""

from __future__ import annotations

from ..spec.collective import CollectiveKernel

__all__ = ["KERNELS"]

KERNELS = (CollectiveKernel("other/threads", "collectives"),)
