"""``elementwise/generated`` for ``fused`` on CUDA devices: fused pointwise ops, also around row reductions."""

from __future__ import annotations

from ..spec.fused import Fused
from .rows.loops import CUDA

__all__ = ["KERNELS"]

KERNELS = (Fused(CUDA),)
