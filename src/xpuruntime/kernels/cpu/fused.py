"""elementwise/generated for ``fused`` on CPUs: bodies of pointwise ops, and of row reductions with work around them."""

from __future__ import annotations

from ..spec.fused import Fused
from .rows.loops import CPP

__all__ = ["KERNELS"]

KERNELS = (Fused(CPP),)
