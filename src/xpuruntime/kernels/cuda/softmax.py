"""``softmax/generated`` on CUDA devices: row reductions that keep the row."""

from __future__ import annotations

from ..spec.reduce import SOFTMAX_OPS, RowKernel
from .rows.loops import CUDA

__all__ = ["KERNELS"]

KERNELS = (RowKernel("softmax/generated", SOFTMAX_OPS, CUDA),)
