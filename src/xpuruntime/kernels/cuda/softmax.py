"""``softmax/generated`` on CUDA devices: row reductions with one result per element."""

from __future__ import annotations

from ..spec.reduce import SOFTMAX_OPS, RowKernel
from .rows.loops import CUDA

__all__ = ["KERNELS"]

KERNELS = (RowKernel("softmax/generated", SOFTMAX_OPS, CUDA),)
