"""``elementwise/generated`` for ``fused`` on CPUs: fused pointwise ops, also around row reductions."""

from __future__ import annotations

from ..spec.fused import Fused
from .rows.loops import CPP

__all__ = ["KERNELS"]

KERNELS = (Fused(CPP),)
