"""reduce/generated on CUDA devices."""

from __future__ import annotations

from ..reduce import OPS, RowKernel
from .rows import CUDA

__all__ = ["KERNELS"]

KERNELS = (RowKernel("reduce/generated", OPS, CUDA),)
