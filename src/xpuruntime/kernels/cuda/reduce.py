"""``reduce/generated`` on CUDA devices: row reductions."""

from __future__ import annotations

from ..spec.reduce import OPS, RowKernel
from .rows.loops import CUDA

__all__ = ["KERNELS"]

KERNELS = (RowKernel("reduce/generated", OPS, CUDA),)
