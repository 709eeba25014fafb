"""Collectives between GPUs by NCCL (``cpp/src/backends/cuda/libraries/nccl.cpp``)."""

from __future__ import annotations

from ..spec.collective import CollectiveKernel

__all__ = ["KERNELS"]

KERNELS = (CollectiveKernel("other/nccl", "nccl"),)
