"""softmax/generated on CUDA devices."""

from __future__ import annotations

from ..reduce import RowKernel
from ..softmax import OPS
from .rows import CUDA

__all__ = ["KERNELS"]

KERNELS = (RowKernel("softmax/generated", OPS, CUDA),)
